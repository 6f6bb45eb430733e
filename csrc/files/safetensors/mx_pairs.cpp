#include "files/safetensors/mx_pairs.h"

#include <string>
#include <utility>

#include "core/dtype.h"
#include "files/joined/joined.h"

namespace pyflow {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kBlock = 32, kNibbleBytes = 16;

bool is_bytes(const TensorRow& t) { return t.type_name == "U8" && t.strides.empty(); }

// The scales of a tensor of blocks, or null.
const TensorRow* scales_of(const Checkpoint& of, const TensorRow& t) {
  if (!t.name.ends_with(kBlocks) || !is_bytes(t) || t.shape.size() < 2 ||
      t.shape.back() != kNibbleBytes || t.nbytes == 0)
    return nullptr;
  const std::string stem = t.name.substr(0, t.name.size() - kBlocks.size());
  const TensorRow* scales = of.row_named(stem + std::string(kScales));
  const std::vector<int64_t> shape(t.shape.begin(), t.shape.end() - 1);
  return scales && is_bytes(*scales) && scales->shape == shape ? scales : nullptr;
}

// As GGUF has them: e, then in byte j weight j in the low and weight j + 16 in the high nibble.
class MxRows : public MadeRows {
 public:
  MxRows(std::span<const uint8_t> blocks, std::span<const uint8_t> scales, int64_t per_row)
      : blocks_(blocks), scales_(scales), per_row_(per_row) {}

  void read(int64_t first, int64_t n, uint8_t* out) const override {
    const uint8_t* e = scales_.data() + first * per_row_;
    const uint8_t* from = blocks_.data() + first * per_row_ * kNibbleBytes;
    for (int64_t i = 0; i < n * per_row_; ++i, from += kNibbleBytes) {
      *out++ = *e++;
      for (int j = 0; j < 16; ++j) {
        const int low = from[j / 2] >> j % 2 * 4 & 15, high = from[8 + j / 2] >> j % 2 * 4 & 15;
        *out++ = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
  std::vector<std::span<const uint8_t>> parts() const override { return {blocks_, scales_}; }

 private:
  std::span<const uint8_t> blocks_, scales_;
  int64_t per_row_;
};

JoinedCheckpoint::Join joined(const Checkpoint& of, const TensorRow& blocks,
                              const TensorRow& scales) {
  TensorRow t = blocks;
  t.set_type(tensor_type(DType::MXFP4));
  t.shape.pop_back();
  const int64_t per_row = t.shape.back();
  t.shape.back() *= kBlock;
  t.nbytes = t.span = blocks.nbytes + scales.nbytes;
  t.made = mx_rows(of.parts(blocks)[0], of.parts(scales)[0], per_row);
  return {std::move(t), {blocks.name, scales.name}};
}

}  // namespace

std::shared_ptr<const MadeRows> mx_rows(std::span<const uint8_t> blocks,
                                        std::span<const uint8_t> scales, int64_t per_row) {
  return std::make_shared<MxRows>(blocks, scales, per_row);
}

std::shared_ptr<Checkpoint> join_mx_pairs(std::shared_ptr<Checkpoint> of) {
  std::vector<JoinedCheckpoint::Join> joins;
  for (const TensorRow& t : of->table())
    if (const TensorRow* scales = scales_of(*of, t)) joins.push_back(joined(*of, t, *scales));
  if (joins.empty()) return of;
  return std::make_shared<JoinedCheckpoint>(std::move(of), std::move(joins),
                                            std::vector<std::string>());
}

}  // namespace pyflow
