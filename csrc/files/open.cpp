#include "files/open.h"

#include <string_view>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/ctranslate2/ctranslate2.h"
#include "files/cursor.h"
#include "files/gguf/gguf.h"
#include "files/llama2c/llama2c.h"
#include "files/marian/marian.h"
#include "files/npz/npz.h"
#include "files/safetensors/safetensors.h"
#include "files/shards.h"

namespace pyflow {
namespace {

std::string_view head(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 512)};
}

// The length of a header, whose upper bytes are zeros as they never are in text, then the header.
bool is_safetensors(std::string_view head) {
  return head.size() > 8 && head[8] == '{' && head.substr(0, 8).find('\0') != head.npos;
}

// The pickle opcode PROTO with one of the protocols that torch.save writes.
bool is_pickle(std::string_view head) {
  return head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
}

std::shared_ptr<Checkpoint> open_gguf(const std::string& path) {
  auto file = GgufFile::open(path);
  if (split_count(*file) <= 1) return file;
  return ShardedCheckpoint::open_split(std::move(file));
}

constexpr std::string_view kIndex = ".index.json";

std::shared_ptr<const Checkpoint> open_part(const std::string& path, const Inflate& inflate) {
  if (path.ends_with(kIndex))
    throw FormatError(printable(path, 4096) + ": expected a file of weights, found an index");
  if (auto part = open_checkpoint(path, inflate)) return part;
  throw FormatError(printable(path, 4096) +
                    ": expected a shard in a known format, found another file; " +
                    std::string(kAdviseDownload));
}

}  // namespace

std::shared_ptr<Checkpoint> open_checkpoint(const std::string& path, const Inflate& inflate) {
  if (path.ends_with(kIndex))
    return ShardedCheckpoint::open_index(
        path, [&](const std::string& part) { return open_part(part, inflate); });
  const MappedFile file(path);
  const std::string_view start = head(file);
  if (start.starts_with("GGUF")) return open_gguf(path);
  // First, for a length of 640 begins like a pickle.
  if (is_safetensors(start)) return SafetensorsFile::open(path);
  if (NpzFile::matches(start)) return NpzFile::open(path);
  if (start.starts_with("PK\3\4") || is_pickle(start)) return TorchFile::open(path, inflate);
  if (CTranslate2File::matches(start)) return CTranslate2File::open(path);
  if (MarianFile::matches(start)) return MarianFile::open(path);
  if (Llama2cFile::matches(start)) return Llama2cFile::open(path);
  return nullptr;
}

std::shared_ptr<Checkpoint> open_shards(const std::vector<std::string>& paths,
                                        const Inflate& inflate) {
  std::vector<std::shared_ptr<const Checkpoint>> parts;
  for (const std::string& path : paths) parts.push_back(open_part(path, inflate));
  std::string label = parts.at(0)->label();
  return std::make_shared<ShardedCheckpoint>(std::move(label), std::move(parts));
}

}  // namespace pyflow
