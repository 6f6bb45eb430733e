#include "model/heads/base_head.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace pyflow {

BaseHead::BaseHead(std::shared_ptr<const Stage> stage, const PackedTensor* weight,
                   const std::vector<int32_t>& tokens)
    : stage_(std::move(stage)), weight_(weight) {
  const Stage::Head head = stage_->head();
  if (!weight_)
    throw UnsupportedError(
        "speculator: expected the model's head in this process and on the CPU, found it " +
        std::string(!head.weight                    ? "on another rank"
                    : stage_->spec().member.alone() ? "on a device"
                                                    : "cut among members"));
  if (tokens.empty()) return;
  const int64_t n_vocab = weight_->rows(), n = std::ssize(tokens);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < (i ? tokens[i - 1] + 1 : 0) || tokens[i] >= n_vocab)
      throw ShapeError("speculator: draft vocabulary: expected ascending tokens below " +
                       std::to_string(n_vocab) + ", found " + std::to_string(tokens[i]) +
                       " as number " + std::to_string(i));
  rows_ = PackedTensor(weight_->dtype(), n, weight_->cols());
  arena_ = Buffer(rows_.nbytes(), "draft vocabulary", "model");
  rows_.place(arena_.data());
  const size_t nbytes = row_bytes(rows_.dtype(), rows_.cols());
  std::vector<uint8_t> tile(static_cast<size_t>(kTileRows) * nbytes);
  for (int64_t t = 0; t < rows_.tiles(); ++t) {
    const int64_t first = t * kTileRows, end = std::min(n, first + kTileRows);
    for (int64_t i = first; i < end; ++i)
      weight_->unpack_row(tokens[static_cast<size_t>(i)],
                          tile.data() + static_cast<size_t>(i - first) * nbytes);
    rows_.pack_tile(tile.data(), t);
  }
  if (weight_->factors()) {
    factors_.resize(static_cast<size_t>(rows_.tiles() * kTileRows), 1.0f);
    for (size_t i = 0; i < tokens.size(); ++i) factors_[i] = weight_->factors()[tokens[i]];
  }
  rows_.take_for(factors_.empty() ? nullptr : factors_.data(), weight_->order());
  if (head.bias)
    for (const int32_t token : tokens) bias_.push_back(head.bias[token]);
}

void BaseHead::finish(float* logits, int64_t column, int64_t n) const {
  const Stage::Head head = stage_->head();
  const KernelTable& kernels = stage_->kernels();
  const float* bias = rows_.rows() && head.bias ? bias_.data() : head.bias;
  if (bias) kernels.add(logits, bias + column, n);
  if (head.scale != 1) kernels.scale(logits, head.scale, n);
  if (head.softcap != 0) kernels.softcap(logits, head.softcap, n);
}

}  // namespace pyflow
