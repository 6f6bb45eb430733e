// Opens checkpoints and touches everything that an open one offers; built with sanitizers by
// tests/formats/test_sanitized.py. Prints one line per file: "accepted", or the error's name and
// text. Exit status: 0 all accepted, 1 some refused, anything else is a fault of the loader.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/errors.h"
#include "formats/gguf.h"
#include "formats/open.h"
#include "formats/safetensors.h"

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
  f.file().advise_sequential();
}

void use(const Checkpoint& c) {
  if (const auto* f = dynamic_cast<const GgufFile*>(&c)) use(*f);
  for (const TensorEntry& t : c.table()) {
    const Contents contents = c.contents(t);
    touch(contents.data, contents.nbytes);
    try {
      const TensorRecord* r = c.find(t.name);
      if (!r || r->name != t.name || r->data != contents.data || !t.supported) abort();
    } catch (const UnsupportedError& e) {
      if (t.supported && c.hindrance(t).empty()) abort();
      std::printf("  %s\n", e.what());
    }
  }
  if (c.find("no such tensor")) abort();
  for (const TensorRecord& r : c.tensors()) c.release(r);
}

std::shared_ptr<Checkpoint> open(const std::string& path) {
  if (auto checkpoint = open_checkpoint(path)) return checkpoint;
  if (path.ends_with(".safetensors")) return SafetensorsFile::open(path);
  return GgufFile::open(path);
}

}  // namespace

int main(int argc, char** argv) {
  bool refused = false;
  for (int i = 1; i < argc; ++i) {
    try {
      use(*open(argv[i]));
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
