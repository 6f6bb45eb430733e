#include "files/json.h"

#include "core/message.h"
#include "files/twins.h"

namespace pyflow {
namespace {

constexpr int kMaxDepth = 32;  // real headers have 3 levels, real indices 2

bool is_digit(char c) { return c >= '0' && c <= '9'; }

void append_utf8(std::string& out, uint32_t c) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

void JsonReader::fail(std::string_view field, std::string_view expected) {
  const bool end = in_.remaining() == 0;
  const std::string_view next(reinterpret_cast<const char*>(in_.data()), end ? 0 : 1);
  in_.fail(in_.pos(), field, expected, end ? std::string("the end") : quoted(next), kAdviseConvert);
}

void JsonReader::space() {
  while (in_.remaining() > 0) {
    const uint8_t c = *in_.data();
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    in_.skip(1, "white space");
  }
}

char JsonReader::peek() {
  space();
  return in_.remaining() > 0 ? static_cast<char>(*in_.data()) : '\0';
}

uint64_t JsonReader::at() {
  space();
  return in_.pos();
}

void JsonReader::expect(char c, std::string_view expected, std::string_view field) {
  if (peek() != c) fail(field, expected);
  in_.skip(1, field);
}

void JsonReader::open(char bracket, std::string_view expected, std::string_view field) {
  expect(bracket, expected, field);
  if (++depth_ > kMaxDepth)
    in_.fail(in_.pos() - 1, field, "at most 32 levels of JSON", "another one", kAdviseConvert);
}

bool JsonReader::next(char bracket, bool first, std::string_view field) {
  const char c = peek();
  if (c == bracket) {
    in_.skip(1, field);
    return false;
  }
  if (first) return true;
  if (c != ',') fail(field, bracket == '}' ? "',' or '}'" : "',' or ']'");
  in_.skip(1, field);
  return true;
}

std::string JsonReader::string(std::string_view field) {
  expect('"', "a string", field);
  const uint64_t begin = in_.pos() - 1;
  std::string out;
  for (;;) {
    if (in_.remaining() == 0) fail(field, "'\"' at the end of a string");
    const auto c = static_cast<char>(*in_.data());
    if (static_cast<uint8_t>(c) < 0x20) fail(field, "an escape for a control character");
    in_.skip(1, field);
    if (c == '"') break;
    if (c == '\\')
      escape(out, field);
    else
      out += c;
  }
  if (!is_utf8(out)) in_.fail(begin, field, "UTF-8", quoted(out), kAdviseConvert);
  return out;
}

void JsonReader::escape(std::string& out, std::string_view field) {
  constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
  const uint64_t at = in_.pos() - 1;
  const char c = in_.remaining() > 0 ? static_cast<char>(*in_.data()) : '\0';
  if (const size_t i = kFrom.find(c); i != kFrom.npos && c != '\0') {
    in_.skip(1, field);
    out += kTo[i];
    return;
  }
  if (c != 'u') fail(field, "an escape of JSON");
  in_.skip(1, field);
  uint32_t code = hex4(field);
  const bool high = code >= 0xD800 && code < 0xDC00;
  if (high && in_.remaining() >= 2 && in_.data()[0] == '\\' && in_.data()[1] == 'u') {
    in_.skip(2, field);
    const uint32_t low = hex4(field);
    if (low >= 0xDC00 && low < 0xE000) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (code >= 0xD800 && code < 0xE000)
    in_.fail(at, field, "a pair of surrogates", "a lone surrogate", kAdviseConvert);
  append_utf8(out, code);
}

uint32_t JsonReader::hex4(std::string_view field) {
  uint32_t code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = in_.remaining() > 0 ? static_cast<char>(*in_.data()) : '\0';
    const int digit = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail(field, "four hexadecimal digits");
    in_.skip(1, field);
    code = code * 16 + static_cast<uint32_t>(digit);
  }
  return code;
}

int64_t JsonReader::integer(std::string_view field) {
  const uint64_t begin = at();
  int64_t value = 0;
  bool fits = true;
  uint64_t n = 0;
  for (; in_.remaining() > 0 && is_digit(static_cast<char>(*in_.data())); ++n) {
    fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
           !__builtin_add_overflow(value, *in_.data() - '0', &value);
    in_.skip(1, field);
  }
  const char c = in_.remaining() > 0 ? static_cast<char>(*in_.data()) : '\0';
  if (n == 0 || c == '.' || c == 'e' || c == 'E') fail(field, "an integer of 0 or more");
  if (!fits)
    in_.fail(begin, field, "an integer below 2^63", grouped(n) + " digits", kAdviseConvert);
  if (n > 1 && in_.data()[-static_cast<int64_t>(n)] == '0')
    in_.fail(begin, field, "an integer without leading zeros", "'0' first", kAdviseConvert);
  return value;
}

void JsonReader::number(std::string_view field) {
  const auto take = [&](std::string_view any) {
    const bool there = in_.remaining() > 0 && any.find(static_cast<char>(*in_.data())) != any.npos;
    if (there) in_.skip(1, field);
    return there;
  };
  constexpr std::string_view kDigits = "0123456789";
  const auto digits = [&] {
    if (!take(kDigits)) fail(field, "a digit");
    while (take(kDigits)) {
    }
  };
  take("-");
  if (!take("0")) digits();
  if (take(".")) digits();
  if (take("eE")) {
    take("+-");
    digits();
  }
}

void JsonReader::literal(std::string_view word, std::string_view field) {
  const uint64_t begin = in_.pos();
  const std::string_view found(reinterpret_cast<const char*>(in_.data()),
                               std::min<uint64_t>(word.size(), in_.remaining()));
  if (found != word) in_.fail(begin, field, "a value of JSON", quoted(found), kAdviseConvert);
  in_.skip(word.size(), field);
}

void JsonReader::skip(std::string_view field) {
  switch (peek()) {
    case '{':
      return object(field, [&](std::string_view) { skip(field); });
    case '[':
      return array(field, [&] { skip(field); });
    case '"':
      string(field);
      return;
    case 't':
      return literal("true", field);
    case 'f':
      return literal("false", field);
    case 'n':
      return literal("null", field);
    default:
      return number(field);
  }
}

void JsonReader::end(std::string_view field) {
  space();
  if (in_.remaining() > 0) fail(field, "nothing after the end of the JSON");
}

void JsonReader::refuse_duplicates(const std::vector<Key>& keys) {
  const auto key = [&](uint32_t i) -> std::string_view { return keys[i].name; };
  each_twins(keys.size(), key, [&](uint32_t a, uint32_t b) {
    in_.fail(keys[b].at, "key " + quoted(keys[b].name), "each key once",
             "the key at byte " + grouped(in_.in_file(keys[a].at)) + " again", kAdviseConvert);
  });
}

}  // namespace pyflow
