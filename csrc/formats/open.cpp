#include "formats/open.h"

#include <string_view>

#include "core/errors.h"
#include "formats/cursor.h"
#include "formats/gguf.h"
#include "formats/message.h"
#include "formats/safetensors.h"
#include "formats/shards.h"

namespace pyflow {
namespace {

std::string_view head(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 64)};
}

// The length of a header, whose upper bytes are zeros as they never are in text, then the header.
bool is_safetensors(std::string_view head) {
  return head.size() > 8 && head[8] == '{' && head.substr(0, 8).find('\0') != head.npos;
}

std::shared_ptr<const Checkpoint> open_part(const std::string& path) {
  if (auto part = open_checkpoint(path)) return part;
  throw FormatError(printable(path, 4096) +
                    ": expected a shard of a checkpoint, found none of a format known here; " +
                    std::string(kAdviseDownload));
}

}  // namespace

std::shared_ptr<Checkpoint> open_checkpoint(const std::string& path) {
  constexpr std::string_view kIndex = ".index.json";
  if (path.ends_with(kIndex))
    return ShardedCheckpoint::open_index(path, [](const std::string& part) {
      if (part.ends_with(kIndex))
        throw FormatError(printable(part, 4096) + ": expected a file of weights, found an index");
      return open_part(part);
    });
  const MappedFile file(path);
  const std::string_view start = head(file);
  if (start.starts_with("GGUF")) return GgufFile::open(path);
  if (is_safetensors(start)) return SafetensorsFile::open(path);
  return nullptr;
}

}  // namespace pyflow
