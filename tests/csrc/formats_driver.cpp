// Opens checkpoints and touches everything that an open one offers; built with sanitizers by
// tests/formats/test_sanitized.py. Prints one line per file: "accepted", or the error's name and
// text. Exit status: 0 all accepted, 1 some refused, anything else is a fault of the loader.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <new>
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

// No file of the tests is larger than a megabyte. Whatever it says, opening it takes no more than
// this, in bytes that are live at once and in processor time.
constexpr size_t kMaxLive = 64 << 20;
constexpr clock_t kMaxTime = CLOCKS_PER_SEC;
size_t g_live = 0;

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

void* operator new(size_t n) {
  void* p = n <= kMaxLive ? std::malloc(n) : nullptr;
  if (!p) throw std::bad_alloc();
  g_live += malloc_usable_size(p);
  if (g_live > kMaxLive) {
    std::fprintf(stderr, "%zu bytes are live\n", g_live);
    abort();
  }
  return p;
}
void operator delete(void* p) noexcept {
  if (p) g_live -= malloc_usable_size(p);
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }

int main(int argc, char** argv) {
  bool refused = false;
  clock_t begin = clock();
  for (int i = 1; i < argc; ++i) {
    if (clock() - begin > kMaxTime) {
      std::fprintf(stderr, "%s took too long\n", argv[i - 1]);
      abort();
    }
    begin = clock();
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
