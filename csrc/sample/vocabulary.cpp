#include "sample/vocabulary.h"

#include <algorithm>

#include "core/errors.h"

namespace pyflow {

Vocabulary::Vocabulary(const std::vector<std::string>& pieces, const std::vector<int32_t>& control)
    : control_(pieces.size()) {
  size_t n = 0;
  for (const std::string& piece : pieces) n += piece.size();
  if (n > UINT32_MAX)
    throw ShapeError("vocabulary: expected less than 4 GiB, found " + std::to_string(n) + " bytes");
  blob_.reserve(n);
  begin_.reserve(pieces.size() + 1);
  for (const std::string& piece : pieces) {
    begin_.push_back(static_cast<uint32_t>(blob_.size()));
    blob_ += piece;
  }
  begin_.push_back(static_cast<uint32_t>(blob_.size()));
  for (const int32_t token : control) {
    if (token < 0 || token >= size())
      throw ShapeError("vocabulary: control token " + std::to_string(token) + ": expected 0 to " +
                       std::to_string(size() - 1));
    control_[static_cast<size_t>(token)] = true;
  }
}

std::string_view Vocabulary::spelling(int32_t token) const {
  if (token < 0 || token >= size()) return {};
  const auto t = static_cast<size_t>(token);
  return std::string_view(blob_).substr(begin_[t], begin_[t + 1] - begin_[t]);
}

std::vector<std::pair<int32_t, int32_t>> Vocabulary::heads(std::string_view text) const {
  std::vector<std::pair<int32_t, int32_t>> out;
  if (text.empty()) return out;
  for (int32_t token = 0; token < size(); ++token) {
    const std::string_view piece = spelling(token);
    if (piece.find(text) != std::string_view::npos) {
      out.emplace_back(token, 0);
      continue;
    }
    for (size_t n = std::min(piece.size(), text.size() - 1); n > 0; --n)
      if (piece.ends_with(text.substr(0, n))) out.emplace_back(token, static_cast<int32_t>(n));
  }
  return out;
}

}  // namespace pyflow
