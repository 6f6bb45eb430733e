#include "files/cursor.h"

#include "core/errors.h"
#include "core/message.h"

namespace pyflow {

uint64_t Cursor::read_count(uint64_t min_bytes, std::string_view field) {
  const uint64_t at = pos_;
  const auto count = read<uint64_t>(field);
  const uint64_t most = remaining() / min_bytes;
  if (count > most)
    fail(at, field,
         "at most " + grouped(most) + " (what the rest of the " + std::string(bytes_.whole) +
             " can hold)",
         grouped(count), kAdviseDownload);
  return count;
}

std::string Cursor::describe(uint64_t offset, std::string_view field, std::string_view expected,
                             std::string_view found, std::string_view advice) const {
  std::string s(bytes_.label);
  s.append(": ").append(section_);
  if (name_.data())
    s.append(" ").append(quoted(name_));
  else if (count_ > 0)
    s += " entry " + grouped(index_ + 1) + " of " + grouped(count_);
  s.append(": ").append(field).append(" at byte ").append(grouped(in_file(offset)));
  s.append(": expected ").append(expected).append(", found ").append(found);
  return s.append("; ").append(advice);
}

void Cursor::fail(uint64_t offset, std::string_view field, std::string_view expected,
                  std::string_view found, std::string_view advice) const {
  throw FormatError(describe(offset, field, expected, found, advice));
}

void Cursor::fail_short(uint64_t n, std::string_view field) const {
  fail(pos_, field, grouped(n) + " bytes",
       "the end of the " + std::string(bytes_.whole) + " after " + grouped(remaining()) + " (" +
           std::string(bytes_.whole) + " size " + grouped(bytes_.size) + ")",
       kAdviseDownload);
}

void Cursor::fail_length(uint64_t length, std::string_view field) const {
  fail(pos_ - sizeof length, field,
       "a length of at most " + grouped(remaining()) + " (the rest of the " +
           std::string(bytes_.whole) + ")",
       grouped(length), kAdviseDownload);
}

}  // namespace pyflow
