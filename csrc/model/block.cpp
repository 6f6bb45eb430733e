#include "model/block.h"

#include "model/blocks/blocks.h"

namespace pyflow {

std::unique_ptr<Block> make_block(const BlockSpec& spec, BlockContext& c) {
  // One line per kind.
  static constexpr struct {
    const char* kind;
    std::unique_ptr<Block> (*make)(const BlockSpec&, BlockContext&);
  } kKinds[] = {
      {"norm", make_norm}, {"attention", make_attention}, {"ffn", make_ffn}, {"moe", make_moe},
      {"add", make_add},   {"positions", make_positions},
  };
  for (const auto& k : kKinds)
    if (spec.kind == k.kind) return k.make(spec, c);
  throw UnsupportedError("block '" + spec.kind + "': no such kind in this build");
}

size_t register_index(const std::string& name) {
  if (name == "x") return 0;
  if (name == "h") return 1;
  if (name == "a") return 2;
  throw ShapeError("register '" + name + "': expected x, h or a");
}

}  // namespace pyflow
