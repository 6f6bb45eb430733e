// How Python's arrays, names and lists become the core's types, and back.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "core/dtype.h"
#include "core/errors.h"
#include "kv/kv_cache.h"
#include "quant/packed_tensor.h"
#include "sample/distribution.h"

namespace pyflow {

// Any numbers, cast where they are of another type.
using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;
using IntArray = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
// Numbers that fit the type without a cast: other ones are a TypeError.
using ExactFloats = py::array_t<float, py::array::c_style>;
using ExactInts = py::array_t<int32_t, py::array::c_style>;
using ByteArray = py::array_t<uint8_t, py::array::c_style>;

inline std::span<const int32_t> ints(const IntArray& a) {
  return {a.data(), static_cast<size_t>(a.size())};
}
inline std::span<const float> floats(const FloatArray& a) {
  return {a.data(), static_cast<size_t>(a.size())};
}

// A weight format by its name. Throws UnsupportedError, naming all.
inline DType dtype_of(const std::string& name) {
  std::string known;
  for (const DTypeInfo& d : kDTypes) {
    if (d.name == name) return d.dtype;
    known += (known.empty() ? "" : ", ") + std::string(d.name);
  }
  throw UnsupportedError("weight format " + name + ": not one of " + known);
}

// Throws ShapeError unless data are so many weights.
inline void check_bytes(const ByteArray& data, DType dtype, int64_t rows, int64_t cols) {
  const size_t expected = static_cast<size_t>(rows) * row_bytes(dtype, cols);
  if (static_cast<size_t>(data.nbytes()) != expected)
    throw ShapeError(std::to_string(rows) + " x " + std::to_string(cols) + " weights of " +
                     std::string(info(dtype).name) + ": expected " + std::to_string(expected) +
                     " bytes, found " + std::to_string(data.nbytes()));
}

// Throws UnsupportedError, naming the types that exist.
inline CacheType cache_type(const std::string& name) {
  if (name == "f16") return CacheType::F16;
  if (name == "q8_0") return CacheType::Q8_0;
  throw UnsupportedError("cache type '" + name + "': expected f16 or q8_0");
}

// Throws UnsupportedError, naming those that exist.
// The name of the arithmetic of prompts, which may have one of their own.
inline const char* prefill_of(bool has_prefill) { return has_prefill ? "bf16" : "decode"; }

inline Regime regime_of(const std::string& name) {
  if (name == "prefill") return Regime::Prefill;
  if (name == "decode") return Regime::Decode;
  throw UnsupportedError("regime '" + name + "': expected prefill or decode");
}

// Throws ShapeError unless a context can have a sequence of this number.
inline int checked_sequence(int seq) {
  if (seq >= 0 && seq < kMaxSequences) return seq;
  throw ShapeError("sequence " + std::to_string(seq) + ": expected 0 to " +
                   std::to_string(kMaxSequences - 1));
}

// Rows of a tree that stay, each with the sequence that gets it.
using AcceptedRows = std::vector<std::pair<int32_t, int>>;
inline std::vector<kv::Accepted> accepted_rows(const AcceptedRows& given) {
  std::vector<kv::Accepted> rows;
  for (const auto& [row, seq] : given) rows.push_back({row, seq});
  return rows;
}

// Laws are lists of (token, probability).
using Pairs = std::vector<std::pair<int32_t, double>>;

inline std::vector<Distribution> distributions_of(const std::vector<Pairs>& given) {
  std::vector<Distribution> distributions;
  for (const Pairs& pairs : given) {
    std::vector<Weighted> weights;
    for (const auto& [token, weight] : pairs) weights.push_back({token, weight});
    distributions.push_back(make_distribution(std::move(weights)));
  }
  return distributions;
}

template <class T, class Number>
Pairs pairs_of(const std::vector<T>& items, Number T::*number) {
  Pairs pairs;
  for (const T& item : items) pairs.emplace_back(item.token, item.*number);
  return pairs;
}

}  // namespace pyflow
