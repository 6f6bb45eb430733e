// Opens GGUF files and touches everything that an open file offers; built with sanitizers by
// tests/formats/test_sanitized.py. Prints one line per file: "accepted", or the error's name and
// text. Exit status: 0 all accepted, 1 some refused, anything else is a fault of the loader.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/errors.h"
#include "formats/gguf.h"

namespace {

using namespace pyflow;

// Reads every byte, so that a sanitizer sees the access. Volatile: the sums must not be optimized
// away.
volatile uint64_t g_sum = 0;

void touch(const uint8_t* data, uint64_t nbytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < nbytes; ++i) sum += data[i];
  g_sum = g_sum + sum;
}

void touch(std::string_view s) { touch(reinterpret_cast<const uint8_t*>(s.data()), s.size()); }

void touch(const GgufArray& a) {
  touch(a.data, a.nbytes);
  for (const std::string_view s : a.strings()) touch(s);
  for (const GgufArray& inner : a.inner) touch(inner);
}

void use(const GgufFile& f) {
  for (const GgufEntry& e : f.metadata())
    std::visit(
        [](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, std::string_view> || std::is_same_v<T, GgufArray>)
            touch(v);
          else
            g_sum = g_sum + static_cast<uint64_t>(v != T{});
        },
        e.value);
  for (const GgufTensor& t : f.table()) {
    touch(f.file().data() + t.offset, t.nbytes);
    try {
      const TensorRecord* r = f.find(t.name);
      if (!r || r->name != t.name || r->data != f.file().data() + t.offset || !t.supported) abort();
    } catch (const UnsupportedError& e) {
      if (t.supported) abort();
      std::printf("  %s\n", e.what());
    }
  }
  if (f.find("no such tensor")) abort();
  for (const TensorRecord& r : f.tensors()) f.file().release(r.offset, r.nbytes);
  f.file().advise_sequential();
}

}  // namespace

int main(int argc, char** argv) {
  bool refused = false;
  for (int i = 1; i < argc; ++i) {
    try {
      const auto file = GgufFile::open(argv[i]);
      use(*file);
      std::printf("accepted\n");
      continue;
    } catch (const FormatError& e) {
      std::printf("FormatError %s\n", e.what());
    } catch (const UnsupportedError& e) {
      std::printf("UnsupportedError %s\n", e.what());
    }
    refused = true;
  }
  return refused;
}
