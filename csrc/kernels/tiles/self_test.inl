// Whether a unit of tiles computes what the emulator does: asked before a CPU's tiles are used.
#pragma once

enum class Dot { kS8, kSu8, kBf16 };
struct Operands {
  emulator::Tile a, b, c;
};

// C after one instruction on its first rows. A has `depth` dwords in a row.
template <class Tiles>
emulator::Tile sums(Dot kind, const Operands& of, int rows, int depth) {
  TileConfig config;
  for (const int tile : {0, 1, 2}) {
    config.rows[tile] = static_cast<uint8_t>(tile == 2 ? depth : rows);
    config.row_bytes[tile] = static_cast<uint16_t>(tile == 1 ? 4 * depth : 64);
  }
  emulator::Tile c = of.c;
  Tiles::config(config);
  Tiles::template load<0>(&c, 64);
  Tiles::template load<1>(&of.a, 64);
  Tiles::template load<2>(&of.b, 64);
  if (kind == Dot::kS8) Tiles::template dot_s8<0, 1, 2>();
  if (kind == Dot::kSu8) Tiles::template dot_su8<0, 1, 2>();
  if (kind == Dot::kBf16) Tiles::template dot_bf16<0, 1, 2>();
  Tiles::template store<0>(&c, 64);
  Tiles::release();
  return c;
}

// Random bytes; or bf16 and f32 of usual sizes, or about the least normal number, where designs
// differ in what becomes zero.
Operands random_operands(uint32_t seed, Dot kind, bool usual) {
  Operands of;
  for (emulator::Tile* tile : {&of.a, &of.b, &of.c})
    for (auto& row : tile->words)
      for (uint32_t& word : row) {
        seed =
            seed * 1664525u + 1013904223u;  // Numerical Recipes; the high bits are the better ones
        word = seed >> 16 | seed << 16;
      }
  if (kind != Dot::kBf16) return of;
  const uint32_t least = usual ? 120 : 56, span = usual ? 16 : 12;
  for (emulator::Tile* tile : {&of.a, &of.b})
    for (auto& row : tile->halves)
      for (uint16_t& half : row)
        half = static_cast<uint16_t>((half & 0x807fu) | ((half >> 7) % span + least) << 7);
  for (auto& row : of.c.words)
    for (uint32_t& word : row)
      word = (word & 0x807fffffu) | ((word >> 23) % (usual ? 16 : 6) + (usual ? 120 : 0)) << 23;
  return of;
}

template <class Tiles>
bool agrees_with_emulator() {
  constexpr struct {
    int rows, depth;
  } kSizes[] = {{16, 16}, {16, 16}, {5, 7}};
  uint32_t seed = 0;
  for (const Dot kind : {Dot::kS8, Dot::kSu8, Dot::kBf16})
    for (const bool usual : {false, true})
      for (const auto [rows, depth] : kSizes) {
        const Operands of = random_operands(++seed, kind, usual);
        const emulator::Tile expected = sums<Emulated>(kind, of, rows, depth);
        const emulator::Tile found = sums<Tiles>(kind, of, rows, depth);
        if (__builtin_memcmp(&found, &expected, sizeof found) != 0) return false;
      }
  return true;
}
