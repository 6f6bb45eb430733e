// Opens checkpoints and touches everything that an open one offers; built with sanitizers by
// tests/formats/test_sanitized.py. Prints one line per file: "accepted", or the error's name and
// text. Exit status: 0 all accepted, 1 some refused, anything else is a fault of the loader.
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "files/open.h"
#include "files/safetensors/safetensors.h"
#include "use_checkpoint.h"

namespace {

using namespace pyflow;

// No file of the tests is larger than a megabyte. Whatever it says, opening it takes no more than
// this, in bytes that are live at once and in allocations, which count work the same everywhere.
constexpr size_t kMaxLive = 64 << 20;
constexpr size_t kMaxAllocations = 2'000'000;
size_t g_live = 0;
size_t g_n_allocations = 0;

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
  if (++g_n_allocations > kMaxAllocations) {
    std::fprintf(stderr, "more than %zu allocations for one file\n", kMaxAllocations);
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
  for (int i = 1; i < argc; ++i) {
    g_n_allocations = 0;
    try {
      use(*open(argv[i]), [](const char* why) { std::printf("  %s\n", why); });
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
