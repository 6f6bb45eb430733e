// Strings that an answer never contains.
//
// A string may be written by many sequences of tokens. The draw that would complete it is forbidden,
// whichever tokens wrote its beginning: an occurrence ends in token t if t contains the string, or
// if the answer ends with its first d bytes and t begins with the others. So a token may be
// forbidden in one place and allowed in the next, and beginnings of the string stay in the text.
// What the prompt holds does not count. Bytes are compared, so case matters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sample/text_view.h"
#include "sample/vocabulary.h"

namespace pyflow {

class BannedStrings {
 public:
  // Throws ShapeError for an empty string.
  BannedStrings(std::shared_ptr<const Vocabulary> vocabulary, std::vector<std::string> strings);

  // Clears the bits of tokens that may not come after a text. allowed: of a row of logits.
  void forbid(const TextView& text, std::span<uint32_t> allowed) const;

 private:
  // The end of the answer, as many bytes as a string can have before its last one.
  std::string end_of(const TextView& text) const;

  struct Banned {
    std::string text;
    // [d]: tokens that complete it after its first d bytes; [0]: those that contain it.
    std::vector<std::vector<int32_t>> completing;
  };
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<Banned> strings_;
  size_t longest_ = 0;
};

}  // namespace pyflow
