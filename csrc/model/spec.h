// A model as plain data, as Python builds it from a checkpoint's metadata
// (pyflow/specs/model_spec.py).
//
// A stage is a list of blocks. Each block has a kind ("norm", "attention", ...; one file each in
// blocks/) and named parameters. Hidden states live in registers, one row per token: x is the
// residual stream, h the branch that will be added to it, a another one beside it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/errors.h"
#include "model/cut.h"

namespace pyflow {

// A tensor of the checkpoint, or a part of one: `TensorRef` of pyflow/specs/parts.py.
struct TensorRef {
  std::string name;
  // Segments (start, count), none: all. A negative start makes rows, or values, of zeros.
  std::vector<std::pair<int64_t, int64_t>> rows = {};
  int64_t step = 1;  // between rows of a segment
  bool transposed = false;
  std::pair<int64_t, int64_t> inputs = {0, 0};  // of a transposed one, (start, count); 0: all
  double add = 0;

  // Rows [first, first + n) of the rows that these segments make.
  TensorRef slice(int64_t first, int64_t n) const;
  // A number that tells which part of the tensor this is: the first row, from the first input on.
  int64_t first() const { return inputs.first + (rows.empty() ? 0 : rows[0].first); }
  // Throws ShapeError, which begins with `where`, unless the segments are `needed` of `have` rows
  // (values, of a vector).
  void check_rows(const std::string& where, int64_t have, int64_t needed) const;
  std::string text() const;  // for messages
  auto operator<=>(const TensorRef&) const = default;
};

class BlockSpec {
 public:
  using Value = std::variant<bool, int64_t, double, std::string, TensorRef, std::vector<TensorRef>,
                             std::vector<double>>;

  std::string kind;
  std::map<std::string, Value, std::less<>> params;

  int64_t integer(std::string_view name) const { return get<int64_t>(name, "an integer"); }
  bool flag(std::string_view name) const { return get<bool>(name, "a bool"); }
  const std::string& text(std::string_view name) const {
    return get<std::string>(name, "a string");
  }
  float number(std::string_view name) const {
    if (const auto* i = std::get_if<int64_t>(&at(name))) return static_cast<float>(*i);
    return static_cast<float>(get<double>(name, "a number"));
  }
  // A tensor; a string names a whole one.
  TensorRef tensor(std::string_view name) const {
    if (const auto* whole = std::get_if<std::string>(&at(name))) return {.name = *whole};
    return get<TensorRef>(name, "a tensor");
  }
  std::optional<TensorRef> tensor_or_none(std::string_view name) const {
    if (!has(name)) return std::nullopt;
    return tensor(name);
  }
  // Several tensors, or the one that holds all of them.
  std::vector<TensorRef> tensors(std::string_view name) const {
    if (const auto* each = std::get_if<std::vector<TensorRef>>(&at(name))) return *each;
    return {tensor(name)};
  }
  const std::vector<double>& numbers(std::string_view name) const {
    return get<std::vector<double>>(name, "a list of numbers");
  }
  bool has(std::string_view name) const { return params.contains(name); }

 private:
  const Value& at(std::string_view name) const {
    const auto it = params.find(name);
    if (it == params.end())
      throw ShapeError("block '" + kind + "': parameter '" + std::string(name) + "' is missing");
    return it->second;
  }
  template <class T>
  const T& get(std::string_view name, const char* expected) const {
    if (const T* value = std::get_if<T>(&at(name))) return *value;
    throw ShapeError("block '" + kind + "': parameter '" + std::string(name) + "': expected " +
                     expected);
  }
};

// Rotary embedding: pair i of a head turns by position * inv_freq[i]. The spec has every scaling
// law (linear, YaRN, Llama 3) folded into inv_freq and magnitude; LongRoPE has another pair of
// these for contexts of more than n_ctx_original cells.
struct RopeSpec {
  std::vector<double> inv_freq;
  double magnitude = 1.0;
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + n/2)
  std::vector<double> long_inv_freq = {};
  double long_magnitude = 1.0;
  int64_t n_ctx_original = 0;

  size_t pairs() const { return inv_freq.size(); }
  bool is_long(int64_t n_ctx) const { return !long_inv_freq.empty() && n_ctx > n_ctx_original; }
  const std::vector<double>& inv_freq_at(int64_t n_ctx) const {
    return is_long(n_ctx) ? long_inv_freq : inv_freq;
  }
  double magnitude_at(int64_t n_ctx) const { return is_long(n_ctx) ? long_magnitude : magnitude; }
  // Cosines and sines, pairs() of each, of the angles that the pairs turn by at `position`.
  void angles(int32_t position, int64_t n_ctx, double magnitude, float* cos_sin) const;
};

struct StageSpec {
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  int64_t n_carried = 0;  // floats that a row takes from layer to layer beside x
  std::vector<RopeSpec> ropes;
  std::optional<BlockSpec> embedding;          // on the first stage
  bool embedded = false;                       // its tokens are, by another stage
  std::vector<std::vector<BlockSpec>> layers;  // of this stage only
  std::optional<BlockSpec> head;               // on the last stage
  // Of encoders, by name: layers that a readout may take (model/texts/).
  std::map<std::string, std::vector<BlockSpec>, std::less<>> chains = {};
  Membership member = {};  // of those that share the stage

  // Floats of a row between layers: x, then what it carries.
  int64_t row_width() const { return n_embd + n_carried; }
};

}  // namespace pyflow
