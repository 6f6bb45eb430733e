#include "quant/packed_tensor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/errors.h"
#include "quant/formats.def"
#include "quant/scaled_floats.h"

namespace pyflow {
namespace {

constexpr int64_t kTileRows = 16;

// What this file does for one format. Blocks are copied in and out: a file aligns them to nothing.
template <class Format>
struct Packer {
  using Block = typename Format::Block;
  static constexpr int64_t unit_k() {
    if constexpr (Format::kBlock == 1) {
      return 1;
    } else {
      return 64 * Format::kPieces;
    }
  }
  static constexpr int64_t kUnitBlocks = unit_k() / Format::kBlock;

  static int64_t units(int64_t cols) { return (cols + unit_k() - 1) / unit_k(); }
  static size_t tile_bytes(int64_t cols) {
    return (static_cast<size_t>(units(cols)) * Format::kUnitBytes + 63) / 64 * 64;
  }

  static void pack(const uint8_t* src, int64_t rows, int64_t cols, int64_t tile_begin,
                   int64_t tile_end, uint8_t* dst) {
    const int64_t n_blocks = cols / Format::kBlock, n_units = units(cols);
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      uint8_t* tile = dst + static_cast<size_t>(t) * tile_bytes(cols);
      std::memset(tile, 0, tile_bytes(cols));
      const int lanes = static_cast<int>(std::min(kTileRows, rows - t * kTileRows));
      for (int64_t u = 0; u < n_units; ++u) {
        const int64_t first = u * kUnitBlocks, count = std::min(kUnitBlocks, n_blocks - first);
        for (int lane = 0; lane < lanes; ++lane) {
          Block blocks[kUnitBlocks] = {};
          const int64_t row = t * kTileRows + lane;
          std::memcpy(blocks, src + static_cast<size_t>(row * n_blocks + first) * sizeof(Block),
                      static_cast<size_t>(count) * sizeof(Block));
          Format::pack(blocks, lane, tile + u * Format::kUnitBytes);
        }
      }
    }
  }

  // Calls take(index of block in row, block) for every block of a row.
  template <class Take>
  static void each_block(const uint8_t* tiles, int64_t cols, int64_t row, Take&& take) {
    const int64_t n_blocks = cols / Format::kBlock;
    const uint8_t* unit = tiles + static_cast<size_t>(row / kTileRows) * tile_bytes(cols);
    for (int64_t b = 0; b < n_blocks; b += kUnitBlocks, unit += Format::kUnitBytes) {
      Block blocks[kUnitBlocks];
      Format::unpack(unit, static_cast<int>(row % kTileRows), blocks);
      for (int64_t i = 0; i < std::min(kUnitBlocks, n_blocks - b); ++i) take(b + i, blocks[i]);
    }
  }

  static void unpack_row(const uint8_t* tiles, int64_t cols, int64_t row, uint8_t* out) {
    each_block(tiles, cols, row, [out](int64_t b, const Block& block) {
      std::memcpy(out + static_cast<size_t>(b) * sizeof(Block), &block, sizeof(Block));
    });
  }
  static void dequantize_row(const uint8_t* tiles, int64_t cols, int64_t row, float* out) {
    each_block(tiles, cols, row, [out](int64_t b, const Block& block) {
      Format::dequantize(block, out + b * Format::kBlock);
    });
  }

  static void dequantize(const uint8_t* src, int64_t n, float* out) {
    for (int64_t b = 0; b < n / Format::kBlock; ++b) {
      Block block;
      std::memcpy(&block, src + static_cast<size_t>(b) * sizeof(Block), sizeof(Block));
      Format::dequantize(block, out + b * Format::kBlock);
    }
  }
};

template <class Format>
constexpr bool has_fine_inputs() {
  if constexpr (requires { Format::kFineInputs; }) return Format::kFineInputs;
  return false;
}

struct PackerTable {
  decltype(&Packer<quant::F32>::tile_bytes) tile_bytes;
  decltype(&Packer<quant::F32>::pack) pack;
  decltype(&Packer<quant::F32>::unpack_row) unpack_row;
  decltype(&Packer<quant::F32>::dequantize_row) dequantize_row;
  decltype(&Packer<quant::F32>::dequantize) dequantize;
  bool fine_inputs, float_inputs;
};

constexpr PackerTable kPackers[] = {
#define PYFLOW_FORMAT(name, id, block, bytes)                            \
  {Packer<quant::name>::tile_bytes, Packer<quant::name>::pack,           \
   Packer<quant::name>::unpack_row, Packer<quant::name>::dequantize_row, \
   Packer<quant::name>::dequantize, has_fine_inputs<quant::name>(),      \
   quant::FloatInputs<quant::name>},
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

#define PYFLOW_FORMAT(name, id, block, bytes)         \
  static_assert(quant::name::kBlock == block, #name); \
  static_assert(sizeof(quant::name::Block) == bytes, #name);
#include "quant/formats.def"
#undef PYFLOW_FORMAT

const PackerTable& packer(DType dtype) { return kPackers[static_cast<size_t>(dtype)]; }

}  // namespace

void pack_tiles(const uint8_t* src, DType dtype, int64_t rows, int64_t cols, int64_t tile_begin,
                int64_t tile_end, uint8_t* dst) {
  packer(dtype).pack(src, rows, cols, tile_begin, tile_end, dst);
}

void dequantize(DType dtype, const uint8_t* src, int64_t n, float* out) {
  packer(dtype).dequantize(src, n, out);
}

bool fine_inputs(DType dtype) { return packer(dtype).fine_inputs; }

bool float_inputs(DType dtype) { return packer(dtype).float_inputs; }

size_t row_bytes(DType dtype, int64_t cols) {
  const DTypeInfo& d = info(dtype);
  if (cols <= 0 || cols >= int64_t{1} << 31 || cols % d.block != 0)
    throw ShapeError("a row of " + std::string(d.name) + " has a positive multiple of " +
                     std::to_string(d.block) + " weights, found " + std::to_string(cols));
  return static_cast<size_t>(cols) / d.block * d.block_bytes;
}

size_t PackedTensor::packed_bytes(DType dtype, int64_t rows, int64_t cols) {
  row_bytes(dtype, cols);
  if (rows < 0 || rows >= int64_t{1} << 31)
    throw ShapeError("a packed tensor has between 0 and 2^31 - 1 rows, found " +
                     std::to_string(rows));
  return static_cast<size_t>(tile_count(rows)) * packer(dtype).tile_bytes(cols);
}

PackedTensor::PackedTensor(DType dtype, int64_t rows, int64_t cols)
    : dtype_(dtype), rows_(rows), cols_(cols), nbytes_(packed_bytes(dtype, rows, cols)) {}

PackedTensor PackedTensor::pack(const uint8_t* src, int64_t rows, int64_t cols, DType dtype) {
  if (rows == 0) throw ShapeError("a packed tensor has some rows, found none");
  PackedTensor tensor(dtype, rows, cols);
  tensor.own_ = Buffer(tensor.nbytes(), "weights", "model");
  tensor.place(tensor.own_.data());
  tensor.pack_tiles(src, 0, tensor.tiles());
  return tensor;
}

// Threads are numbered by node, pieces by copy.
void PackedTensor::copy_all(size_t n_copies, Team& team) {
  constexpr size_t kPiece = size_t{64} << 10;
  if (n_copies == 1) return;
  const size_t pieces = (nbytes_ + kPiece - 1) / kPiece;
  team.for_each(static_cast<int64_t>(n_copies * pieces), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t at = i % pieces * kPiece, n = std::min(kPiece, nbytes_ - at);
      if (const size_t to = i / pieces) copy(to, at, n);
    }
  });
}

void PackedTensor::dequantize_row(int64_t row, float* out, size_t copy) const {
  std::vector<float> sorted(order_ ? static_cast<size_t>(cols_) : 0);
  float* values = order_ ? sorted.data() : out;
  packer(dtype_).dequantize_row(data(copy), cols_, row, values);
  if (factors_)
    for (int64_t i = 0; i < cols_; ++i) values[i] *= factors_[row];
  if (order_)
    for (size_t i = 0; i < sorted.size(); ++i) out[(*order_)[i]] = sorted[i];
}

void PackedTensor::unpack_row(int64_t row, uint8_t* out) const {
  packer(dtype_).unpack_row(data(), cols_, row, out);
}

}  // namespace pyflow
