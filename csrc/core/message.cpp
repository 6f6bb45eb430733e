#include "core/message.h"

namespace pyflow {
namespace {

// Length of the well-formed UTF-8 sequence at the start of s, or 0. The bounds on the second byte
// shut out overlong forms, surrogates and what lies beyond U+10FFFF (Unicode 15, table 3-7).
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead >= 0xC2 && lead <= 0xDF   ? 2
                   : lead >= 0xE0 && lead <= 0xEF ? 3
                   : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                  : 0;
  if (n == 0 || s.size() < n) return 0;
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < n; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  return n;
}

// U+0080..U+009F move the cursor of some terminals just as ASCII control characters do.
bool is_control(std::string_view s) {
  const auto lead = static_cast<uint8_t>(s[0]);
  return lead < 0x20 || lead == 0x7F || (lead == 0xC2 && static_cast<uint8_t>(s[1]) < 0xA0);
}

}  // namespace

std::string printable(std::string_view bytes, size_t max_chars) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (size_t chars = 0; !bytes.empty(); ++chars) {
    if (chars == max_chars) return out + "...";
    const size_t n = utf8_length(bytes);
    if (n == 0 || is_control(bytes) || bytes[0] == '\\') {
      const auto b = static_cast<uint8_t>(bytes[0]);
      out += {'\\', 'x', kHex[b >> 4], kHex[b & 15]};
      bytes.remove_prefix(1);
    } else {
      out += bytes.substr(0, n);
      bytes.remove_prefix(n);
    }
  }
  return out;
}

std::string quoted(std::string_view bytes) {
  std::string out = "'";
  return out.append(printable(bytes)).append("'");
}

std::string grouped(uint64_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t n = utf8_length(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

}  // namespace pyflow
