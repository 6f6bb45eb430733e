#include "sample/stages/bans.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/errors.h"

namespace pyflow {

BannedStrings::BannedStrings(std::shared_ptr<const Vocabulary> vocabulary,
                             std::vector<std::string> strings)
    : vocabulary_(std::move(vocabulary)) {
  for (std::string& text : strings) {
    if (text.empty()) throw ShapeError("banned string: expected text, found none");
    longest_ = std::max(longest_, text.size());
    Banned banned{std::move(text), {}};
    const std::string_view whole = banned.text;
    banned.completing.resize(whole.size());
    std::array<std::vector<size_t>, 256> places;  // of each byte
    for (size_t d = 1; d < whole.size(); ++d) places[static_cast<uint8_t>(whole[d])].push_back(d);
    for (int32_t token = 0; token < vocabulary_->size(); ++token) {
      const std::string_view bytes = vocabulary_->bytes(token);
      if (bytes.empty()) continue;
      if (bytes.find(whole) != std::string_view::npos) banned.completing[0].push_back(token);
      for (const size_t d : places[static_cast<uint8_t>(bytes[0])])
        if (bytes.starts_with(whole.substr(d))) banned.completing[d].push_back(token);
    }
    strings_.push_back(std::move(banned));
  }
}

void BannedStrings::forbid(const TextView& text, std::span<uint32_t> allowed) const {
  const std::string end = end_of(text);
  for (const Banned& banned : strings_) {
    const std::string_view whole = banned.text;
    for (size_t d = 0; d < whole.size() && d <= end.size(); ++d) {
      if (!std::string_view(end).ends_with(whole.substr(0, d))) continue;
      for (const int32_t token : banned.completing[d])
        if (const auto word = static_cast<size_t>(token / 32); word < allowed.size())
          allowed[word] &= ~(uint32_t{1} << (token % 32));
    }
  }
}

std::string BannedStrings::end_of(const TextView& text) const {
  std::string reversed;
  for (int64_t i = 0; i < std::min(text.n_drawn, text.size()) && reversed.size() + 1 < longest_;
       ++i) {
    const std::string_view bytes = vocabulary_->bytes(text.back(i));
    reversed.append(bytes.rbegin(), bytes.rend());
  }
  return {reversed.rbegin(), reversed.rend()};
}

}  // namespace pyflow
