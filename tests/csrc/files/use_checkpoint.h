// Touches everything that an open checkpoint offers, so that a sanitizer sees the access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/errors.h"
#include "files/checkpoint.h"
#include "files/gguf/gguf.h"

namespace pyflow {

// Volatile: the sums must not be optimized away.
inline volatile uint64_t g_sum = 0;

inline void touch(const uint8_t* data, uint64_t nbytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < nbytes; ++i) sum += data[i];
  g_sum = g_sum + sum;
}

inline void touch(std::string_view s) {
  touch(reinterpret_cast<const uint8_t*>(s.data()), s.size());
}

inline void touch(const GgufArray& a) {
  touch(a.data, a.nbytes);
  for (const std::string_view s : a.strings()) touch(s);
  for (const GgufArray& inner : a.inner) touch(inner);
}

inline void use(const GgufFile& f) {
  for (const GgufEntry& e : f.entries())
    std::visit(
        [](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::string_view> || std::is_same_v<T, GgufArray>)
            touch(v);
          else
            g_sum = g_sum + static_cast<uint64_t>(v != T{});
        },
        e.value);
  f.file().advise_sequential();
}

// Calls refused(what) for tensors that cannot be used where they lie. Aborts when the checkpoint
// contradicts itself.
template <class Refused>
void use(const Checkpoint& c, Refused&& refused) {
  if (const auto* f = dynamic_cast<const GgufFile*>(&c)) use(*f);
  for (const MetadataEntry& e : c.metadata()) touch(e.key);
  size_t longest = 0;
  for (const TensorRow& t : c.table()) {
    longest = std::max(longest, t.name.size());
    Contents contents;
    try {
      contents = c.contents(t);
      touch(contents.data, contents.nbytes);
    } catch (const FormatError& e) {  // a checksum
      refused(e.what());
    }
    try {
      const TensorRecord* r = c.find(t.name);
      if (!r || r->name != t.name || r->nbytes != t.nbytes || !t.supported) abort();
      if (contents.data && r->data != contents.data) abort();
      touch(r->data, r->nbytes);
    } catch (const UnsupportedError& e) {
      if (t.supported && c.hindrance(t).empty()) abort();
      refused(e.what());
    }
  }
  if (c.find(std::string(longest + 1, 'x'))) abort();  // no tensor has so long a name
  for (const TensorRecord& r : c.tensors()) c.release(r);
}

}  // namespace pyflow
