// Laws as Python gives and gets them: lists of (token, probability).
#pragma once

#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "sample/law.h"

namespace pyflow {

using Pairs = std::vector<std::pair<int32_t, double>>;

inline std::vector<Law> laws_of(const std::vector<Pairs>& given) {
  std::vector<Law> laws;
  for (const Pairs& pairs : given) {
    std::vector<Weighted> weights;
    for (const auto& [token, weight] : pairs) weights.push_back({token, weight});
    laws.push_back(make_law(std::move(weights)));
  }
  return laws;
}

template <class T, class Number>
Pairs pairs_of(const std::vector<T>& items, Number T::*number) {
  Pairs pairs;
  for (const T& item : items) pairs.emplace_back(item.token, item.*number);
  return pairs;
}

}  // namespace pyflow
