// A target of libFuzzer per parser of untrusted files, chosen by PYFLOW_FUZZ_PARSER; see `make
// fuzz`. Whatever the bytes are, the file opens and all of it can be used, or one of our errors
// says why not.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "files/ctranslate2/ctranslate2.h"
#include "files/llama2c/llama2c.h"
#include "files/marian/marian.h"
#include "files/npz/npz.h"
#include "files/safetensors/safetensors.h"
#include "files/shards.h"
#include "files/torch/torch.h"
#include "use_checkpoint.h"

namespace {

using namespace pyflow;

// A file without a name in any folder.
class MemoryFile {
 public:
  MemoryFile(const void* data, size_t size) : fd_(memfd_create("fuzz", 0)) {
    if (fd_ < 0 || write(fd_, data, size) != static_cast<ssize_t>(size)) abort();
  }
  ~MemoryFile() { close(fd_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// What every file name in an index stands for: a file of one tensor, "a".
std::shared_ptr<const Checkpoint> shard() {
  static const std::string text = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  static const std::string bytes =
      std::string(1, static_cast<char>(text.size())) + std::string(7, '\0') + text + "x";
  static const MemoryFile file(bytes.data(), bytes.size());
  return SafetensorsFile::open(file.path());
}

// Two parts of a split file under the names that they need. The input has the size of the first one
// in two bytes, then both.
class TwoParts {
 public:
  TwoParts(const uint8_t* data, size_t size)
      : n_(size < 2 ? 0 : std::min<size_t>(size - 2, data[0] | data[1] << 8)),
        first_(data + std::min<size_t>(size, 2), n_),
        second_(data + std::min<size_t>(size, 2) + n_, size < 2 ? 0 : size - 2 - n_) {
    link(first_, "/m-00001-of-00002.gguf");
    link(second_, "/m-00002-of-00002.gguf");
  }
  std::shared_ptr<const Checkpoint> open() const {
    auto first = GgufFile::open(folder().path + "/m-00001-of-00002.gguf");
    if (split_count(*first) > 1) return ShardedCheckpoint::open_split(std::move(first));
    return first;
  }

 private:
  struct Folder {
    std::string path = "/tmp/fuzz_split_XXXXXX";
    Folder() {
      if (!mkdtemp(path.data())) abort();
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder& folder() {
    static const Folder folder;
    return folder;
  }
  static void link(const MemoryFile& file, const char* name) {
    const std::string path = folder().path + name;
    unlink(path.c_str());
    if (symlink(file.path().c_str(), path.c_str())) abort();
  }

  size_t n_;
  MemoryFile first_, second_;
};

std::shared_ptr<const Checkpoint> open(std::string_view parser, const std::string& path) {
  if (parser == "gguf") return GgufFile::open(path);
  if (parser == "safetensors") return SafetensorsFile::open(path);
  if (parser == "torch") {
    TorchFile::inspect(path, {});
    return TorchFile::open(path, {});
  }
  if (parser == "llama2c") return Llama2cFile::open(path);
  if (parser == "ctranslate2") return CTranslate2File::open(path);
  if (parser == "marian") return MarianFile::open(path);
  if (parser == "npz") return NpzFile::open(path);
  return ShardedCheckpoint::open_index(path, [](const std::string&) { return shard(); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::string_view parser = PYFLOW_FUZZ_PARSER;
  const MemoryFile file(data, size);
  const auto parts = parser == "split" ? std::make_unique<TwoParts>(data, size) : nullptr;
  try {
    use(*(parts ? parts->open() : open(parser, file.path())), [](std::string_view) {});
  } catch (const FormatError&) {
  } catch (const UnsupportedError&) {
  }
  return 0;
}
