// A model as plain data: what Python builds from a checkpoint's metadata (pyflow/spec.py).
//
// A stage is a list of blocks. Each block has a kind ("norm", "attention", ...; one file each in
// blocks/) and named parameters. Hidden states live in registers, one row per token: x is the
// residual stream, h the branch that will be added to it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/errors.h"

namespace pyflow {

class BlockSpec {
 public:
  using Value = std::variant<bool, int64_t, double, std::string>;

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
  // The name of an optional tensor; empty when the model has none.
  std::string tensor_or_none(std::string_view name) const {
    return params.contains(name) ? text(name) : std::string();
  }

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

// Rotary embedding: pair i of a head turns by position * inv_freq[i]. Every scaling law (linear,
// YaRN, Llama 3) is folded into inv_freq and magnitude by whoever writes the spec.
struct RopeSpec {
  std::vector<double> inv_freq;
  double magnitude = 1.0;
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + n/2)
};

struct StageSpec {
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  std::vector<RopeSpec> ropes;
  std::optional<BlockSpec> embedding;          // on the first stage
  std::vector<std::vector<BlockSpec>> layers;  // of this stage only
  std::optional<BlockSpec> head;               // on the last stage
};

}  // namespace pyflow
