// The words of error messages: bytes of unknown origin made printable, numbers made readable.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pyflow {

// Bytes from a file or a path, fit for one line of a terminal: control characters, backslashes and
// invalid UTF-8 as \xNN, and no more than max_chars characters, then "...".
std::string printable(std::string_view bytes, size_t max_chars = 80);

// The same in single quotes.
std::string quoted(std::string_view bytes);

// 98362400 -> "98,362,400"
std::string grouped(uint64_t n);

// True when every byte belongs to a well-formed UTF-8 sequence (no surrogates, no overlong forms).
bool is_utf8(std::string_view bytes);

}  // namespace pyflow
