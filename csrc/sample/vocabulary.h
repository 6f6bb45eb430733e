// The bytes of a vocabulary's tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pyflow {

class Vocabulary {
 public:
  // control: tokens that are marks, which write nothing; their bytes are their spelling.
  // Throws ShapeError for a control token outside the vocabulary.
  Vocabulary(const std::vector<std::string>& pieces, const std::vector<int32_t>& control);

  int32_t size() const { return static_cast<int32_t>(begin_.size()) - 1; }
  // A token's bytes, or its spelling; empty for a token outside.
  std::string_view spelling(int32_t token) const;
  // What it adds to a text.
  std::string_view bytes(int32_t token) const {
    return is_control(token) ? std::string_view() : spelling(token);
  }
  bool is_control(int32_t token) const {
    return token >= 0 && token < size() && control_[static_cast<size_t>(token)];
  }

  // Tokens whose spelling ends with the first n bytes of a text, n being below its length, with n;
  // n = 0: the whole text is in the spelling.
  std::vector<std::pair<int32_t, int32_t>> heads(std::string_view text) const;

 private:
  std::string blob_;
  std::vector<uint32_t> begin_;  // of each token in the blob, and the end
  std::vector<bool> control_;
};

}  // namespace pyflow
