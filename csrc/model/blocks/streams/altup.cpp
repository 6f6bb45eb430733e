// Several residual streams, of which a layer computes one (AltUp: Baykal et al. 2023; Gemma 3n). The
// streams z_0, z_1, ... are carried from layer to layer; x is the one that a layer works on.
//   begin    z_0 = x, z_j = U_j x, scaled to the root mean square of x
//   predict  m = tanh(R norm(z_a) / n_embd); z_j += sum_k (P m)[j n + k] z_k; x = z_a
//   correct  m = tanh(R norm(x) / n_embd); z_j += (1 + (C m)[j]) (x - z_a); x = z_a
//   add      z_j += h for j > 0
//   merge    x = mean of z_0 and of V_j z_j, scaled to the root mean square of z_0
// where a is the active stream, and the right sides have the values from before the line.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/blocks/row_norm.h"
#include "model/blocks/streams/carried.h"

namespace pyflow {
namespace {

constexpr int64_t kMostStreams = 8;
using Values = std::array<float, kMostStreams>;

float mean_square(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return static_cast<float>(sum / static_cast<double>(n));
}

// What the parts share.
class Altup : public Block {
 protected:
  Altup(const BlockSpec& spec, BlockContext& c)
      : n_embd_(c.stage.n_embd),
        n_(spec.integer("n")),
        active_(spec.integer("active")),
        at_(carried(c, spec, "at", n_ * n_embd_)) {
    if (n_ < 2 || n_ > kMostStreams || active_ < 0 || active_ >= n_)
      throw ShapeError("altup: expected 2 to " + std::to_string(kMostStreams) +
                       " streams, one of them active, found " + std::to_string(active_) + " of " +
                       std::to_string(n_));
  }

  float* stream(const Step& s, int64_t row, int64_t j) const {
    return s.carried + row * s.carried_stride + at_ + j * n_embd_;
  }
  // Scales y to a root mean square.
  void level(const Step& s, float* y, float root) const {
    s.kernels.scale(y, root / std::sqrt(std::max(mean_square(y, n_embd_), 1e-5f)), n_embd_);
  }

  int64_t n_embd_, n_, active_, at_;
};

// begin and merge: a matrix for each stream but the first one.
class AltupEnds final : public Altup {
 public:
  AltupEnds(const BlockSpec& spec, BlockContext& c, bool begins) : Altup(spec, c), begins_(begins) {
    const std::vector<TensorRef> refs = spec.tensors("projections");
    if (refs.size() != 1 && std::ssize(refs) != n_ - 1)
      throw ShapeError("altup: expected a projection for each of " + std::to_string(n_ - 1) +
                       " streams, or one for all, found " + std::to_string(refs.size()));
    for (int64_t j = 0; j < n_ - 1; ++j)
      projections_.push_back(&c.weights.matrix(
          refs.size() == 1 ? refs[0].slice(j * n_embd_, n_embd_) : refs[static_cast<size_t>(j)],
          n_embd_, n_embd_, Weights::Loop::Own, Weights::Format::AsStored));
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = (n_ - 1) * padded(n_embd_),
            .act_blocks_per_row = act_blocks(n_embd_),
            .panel_cols = n_embd_};
  }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(n_embd_);
    const auto projected = [&](int64_t j) { return s.temp + (j - 1) * s.n_rows * stride; };
    for (int64_t j = 1; j < n_; ++j)
      multiply(s, team, Product{projections_[static_cast<size_t>(j - 1)], projected(j), stride},
               nullptr,
               begins_ ? all_rows(s, s.registers[0], s.stride)
                       : all_rows(s, stream(s, 0, j), s.carried_stride));
    const float* x = s.registers[0];
    float* out = begins_ ? nullptr : s.row_output(0);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* first = begins_ ? x + r * s.stride : stream(s, r, 0);
        const float root = std::sqrt(mean_square(first, n_embd_));
        float* to = begins_ ? stream(s, r, 0) : out + r * s.stride;
        std::copy_n(first, n_embd_, to);
        for (int64_t j = 1; j < n_; ++j) {
          float* z = stream(s, r, j);
          std::copy_n(projected(j) + r * stride, n_embd_, z);
          level(s, z, root);
          if (!begins_) s.kernels.add(to, z, n_embd_);
        }
        if (!begins_) s.kernels.scale(to, 1.0f / static_cast<float>(n_), n_embd_);
      }
    });
    if (s.own_rows) team.barrier();  // before another block writes what was read here
  }

 private:
  bool begins_;
  std::vector<const PackedTensor*> projections_;
};

// predict and correct: by weights that depend on one stream.
class AltupMap final : public Altup {
 public:
  AltupMap(const BlockSpec& spec, BlockContext& c, bool predicts)
      : Altup(spec, c), predicts_(predicts) {
    // A router is small, and nothing corrects its errors.
    router_ = &c.weights.matrix(spec.tensor("router"), n_, n_embd_, Weights::Loop::Own,
                                Weights::Format::AsStored);
    c.facts.unadapted.insert(router_);
    norm_ = RowNorm(c.weights, "rms", spec.number("eps"), spec.tensor("router_norm"), std::nullopt,
                    n_embd_);
    n_weights_ = predicts_ ? n_ * n_ : n_;
    weights_ = c.weights.vector(spec.tensor("coefs"), n_weights_ * n_);
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = padded(n_),
            .row_floats_per_row = padded(n_embd_),
            .act_blocks_per_row = act_blocks(n_embd_)};
  }
  bool adds() const override { return !predicts_; }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(n_embd_);
    const float* x = s.registers[0];
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* y = s.row_temp + r * stride;
        norm_(s.kernels, predicts_ ? stream(s, r, active_) : x + r * s.stride, n_embd_, y);
        s.kernels.scale(y, 1.0f / static_cast<float>(n_embd_), n_embd_);
      }
    });
    // Prompts take the arithmetic of decoding here, as all routers do.
    multiply(s, team, Product{router_, s.temp, padded(n_)}, nullptr,
             {s.row_temp, stride, s.n_rows});
    float* out = s.row_output(0);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::array<float, kMostStreams * kMostStreams> c{};
        coefficients(s, s.temp + r * padded(n_), c.data());
        if (predicts_)
          predict(stream(s, r, 0), c.data());
        else
          correct(stream(s, r, 0), x + r * s.stride, c.data());
        std::copy_n(stream(s, r, active_), n_embd_, out + r * s.stride);
      }
    });
    if (s.own_rows) team.barrier();  // before another block writes what was read here
  }

 private:
  void coefficients(const Step& s, const float* routed, float* c) const {
    Values m{};
    std::copy_n(routed, n_, m.data());
    s.kernels.softcap(m.data(), 1.0f, n_);
    for (int64_t i = 0; i < n_weights_; ++i)
      for (int64_t k = 0; k < n_; ++k) c[i] += weights_[i * n_ + k] * m[static_cast<size_t>(k)];
  }

  void predict(float* z, const float* c) const {
    for (int64_t i = 0; i < n_embd_; ++i) {
      Values old{};
      for (int64_t k = 0; k < n_; ++k) old[static_cast<size_t>(k)] = z[k * n_embd_ + i];
      for (int64_t j = 0; j < n_; ++j) {
        float sum = 0;
        for (int64_t k = 0; k < n_; ++k) sum += c[j * n_ + k] * old[static_cast<size_t>(k)];
        z[j * n_embd_ + i] += sum;
      }
    }
  }

  void correct(float* z, const float* x, const float* c) const {
    for (int64_t i = 0; i < n_embd_; ++i) {
      const float by = x[i] - z[active_ * n_embd_ + i];
      for (int64_t j = 0; j < n_; ++j) z[j * n_embd_ + i] += (1.0f + c[j]) * by;
    }
  }

  bool predicts_;
  const PackedTensor* router_;
  RowNorm norm_;
  int64_t n_weights_;
  const float* weights_;
};

class AltupAdd final : public Altup {
 public:
  AltupAdd(const BlockSpec& spec, BlockContext& c)
      : Altup(spec, c), in_(register_index(spec.text("input"))) {}

  ScratchNeeds needs(CacheType) const override { return {}; }

  void forward(Step& s, Team& team) const override {
    const float* h = s.registers[in_];
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t j = 1; j < n_; ++j) s.kernels.add(stream(s, r, j), h + r * s.stride, n_embd_);
    });
  }

 private:
  size_t in_;
};

}  // namespace

std::unique_ptr<Block> make_altup(const BlockSpec& spec, BlockContext& c) {
  const std::string& part = spec.text("part");
  if (part == "begin" || part == "merge")
    return std::make_unique<AltupEnds>(spec, c, part == "begin");
  if (part == "predict" || part == "correct")
    return std::make_unique<AltupMap>(spec, c, part == "predict");
  if (part == "add") return std::make_unique<AltupAdd>(spec, c);
  throw UnsupportedError("altup: part '" + part +
                         "': expected begin, predict, correct, add or merge");
}

}  // namespace pyflow
