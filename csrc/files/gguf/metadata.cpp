#include <algorithm>
#include <bit>

#include "core/message.h"
#include "files/gguf/sections.h"
#include "files/twins.h"

namespace pyflow::gguf_sections {
namespace {

constexpr uint64_t kMaxKeyBytes = 65535;     // the format's limit
constexpr uint32_t kMinAlignment = 8;        // the format's limit
constexpr uint32_t kMaxAlignment = 1 << 21;  // a huge page; no writer has a reason for more
// Real files hold no arrays in arrays; the bound keeps a hostile one from exhausting the stack.
constexpr int kMaxArrayDepth = 8;
// Of one value, all levels together: an inner array takes five times its bytes in the file.
constexpr uint64_t kMaxInnerArrays = 1 << 20;

std::string_view read_key(Cursor& in) {
  const uint64_t at = in.pos();
  const std::string_view key = in.read_string("key length");
  const bool ascii =
      std::all_of(key.begin(), key.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
  if (key.empty() || key.size() > kMaxKeyBytes || !ascii)
    in.fail(at, "key", "1 to 65,535 printable ASCII characters",
            grouped(key.size()) + " bytes " + quoted(key), kAdviseConvert);
  return key;
}

GgufType read_value_type(Cursor& in) {
  const uint64_t at = in.pos();
  const auto type = in.read<uint32_t>("value type");
  if (type >= kGgufTypeCount)
    in.fail(at, "value type", "a number from 0 to 12", grouped(type), kAdviseConvert);
  return static_cast<GgufType>(type);
}

// n bytes that must each be 0 or 1.
const uint8_t* read_bools(Cursor& in, uint64_t n) {
  const uint64_t at = in.pos();
  const uint8_t* data = in.data();
  in.skip(n, "bool");
  const uint8_t* bad = std::find_if(data, data + n, [](uint8_t b) { return b > 1; });
  if (bad != data + n)
    in.fail(at + static_cast<uint64_t>(bad - data), "bool", "0 or 1", std::to_string(*bad),
            kAdviseConvert);
  return data;
}

GgufArray read_array(Cursor& in, int depth, uint64_t& inner_left) {
  if (depth > kMaxArrayDepth)
    in.fail(in.pos(), "array", "at most 8 nested arrays", "9", kAdviseConvert);
  GgufArray a;
  a.type = read_value_type(in);
  const uint64_t size = size_of(a.type);
  const uint64_t least = a.type == GgufType::Array ? 12 : a.type == GgufType::String ? 8 : size;
  const uint64_t at = in.pos();
  a.count = in.read_count(least, "array count");
  a.data = in.data();
  const uint64_t begin = in.pos();
  switch (a.type) {
    case GgufType::Array:
      if (a.count > inner_left)
        in.fail(at, "array count", "at most 1,048,576 inner arrays in all", grouped(a.count),
                kAdviseConvert);
      inner_left -= a.count;
      for (uint64_t i = 0; i < a.count; ++i)
        a.inner.push_back(read_array(in, depth + 1, inner_left));
      break;
    case GgufType::String:
      for (uint64_t i = 0; i < a.count; ++i) in.read_string("string length");
      break;
    case GgufType::Bool:
      read_bools(in, a.count);
      break;
    default:
      in.skip(a.count * size, "array values");
  }
  a.nbytes = in.pos() - begin;
  return a;
}

GgufValue read_value(Cursor& in) {
  switch (read_value_type(in)) {
    case GgufType::U8:
      return in.read<uint8_t>("value");
    case GgufType::I8:
      return in.read<int8_t>("value");
    case GgufType::U16:
      return in.read<uint16_t>("value");
    case GgufType::I16:
      return in.read<int16_t>("value");
    case GgufType::U32:
      return in.read<uint32_t>("value");
    case GgufType::I32:
      return in.read<int32_t>("value");
    case GgufType::F32:
      return in.read<float>("value");
    case GgufType::Bool:
      return *read_bools(in, 1) == 1;
    case GgufType::String:
      return in.read_string("string length");
    case GgufType::Array: {
      uint64_t inner_left = kMaxInnerArrays;
      return read_array(in, 1, inner_left);
    }
    case GgufType::U64:
      return in.read<uint64_t>("value");
    case GgufType::I64:
      return in.read<int64_t>("value");
    case GgufType::F64:
      return in.read<double>("value");
  }
  __builtin_unreachable();  // read_value_type lets no other number through
}

uint32_t checked_alignment(const Cursor& in, uint64_t at, const GgufValue& value) {
  constexpr std::string_view kExpected = "a power of two from 8 to 2,097,152 of type 4 (u32)";
  const auto* a = std::get_if<uint32_t>(&value);
  if (!a)
    in.fail(at, "value", kExpected, "a value of type " + std::to_string(value.index()),
            kAdviseConvert);
  if (!std::has_single_bit(*a) || *a < kMinAlignment || *a > kMaxAlignment)
    in.fail(at, "value", kExpected, grouped(*a), kAdviseConvert);
  return *a;
}

}  // namespace

Metadata read_metadata(Cursor& in, uint64_t count) {
  Metadata m;
  m.entries.reserve(std::min(count, kMaxReserve));
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < count; ++i) {
    in.enter("metadata", i, count);
    offsets.push_back(in.pos());
    const std::string_view key = read_key(in);
    in.name(key);
    const uint64_t at = in.pos();
    const uint8_t* const begin = in.data();
    m.entries.push_back({std::string(key), read_value(in), {}});
    m.entries.back().bytes = {begin, in.data()};
    if (key == "general.alignment") m.alignment = checked_alignment(in, at, m.entries.back().value);
  }
  const auto key = [&](uint32_t i) -> std::string_view { return m.entries[i].key; };
  each_twins(m.entries.size(), key, [&](uint32_t a, uint32_t b) {
    in.name(key(b));
    in.fail(offsets[b], "key", "each key once", "the key at byte " + grouped(offsets[a]) + " again",
            kAdviseConvert);
  });
  return m;
}

}  // namespace pyflow::gguf_sections
