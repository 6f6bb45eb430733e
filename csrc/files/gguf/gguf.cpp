#include "files/gguf/gguf.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/gguf/sections.h"

namespace pyflow {
namespace {

constexpr std::string_view kMagic = "GGUF";
// Hundreds of times what real models have, and a bound on the memory that a hostile file can ask
// for: an entry takes about ten times its bytes in the file.
constexpr uint64_t kMaxEntries = 1 << 20;

// What no version will reach: a greater number is no version, and the file is damaged.
constexpr uint32_t kMaxVersion = 255;

void check_version(const Cursor& in, uint32_t version) {
  if (version == 2 || version == 3) return;
  constexpr std::string_view kExpected = "2 or 3";
  if (version == 0) in.fail(4, "version", kExpected, "0", kAdviseConvert);
  // A big-endian file's version has its bytes the other way round.
  const uint32_t swapped = __builtin_bswap32(version);
  if (std::min(version, swapped) > kMaxVersion)
    in.fail(4, "version", kExpected, grouped(version), kAdviseDownload);
  const auto refuse = [&](const std::string& found, std::string_view advice) {
    throw UnsupportedError(in.describe(4, "version", kExpected, found, advice));
  };
  if (swapped < version)
    refuse("a big-endian file of version " + std::to_string(swapped),
           "get the little-endian file, or swap this one with gguf_convert_endian.py");
  if (version == 1) refuse("1", "convert the model again, or download a newer file of it");
  refuse(grouped(version), "update pyflow, or download a file of version 3");
}

struct Header {
  uint32_t version;
  uint64_t n_tensors, n_entries;
};

Header read_header(Cursor& in) {
  in.enter("header", 0, 0);
  in.require(kMagic.size(), "magic");
  const std::string_view magic(reinterpret_cast<const char*>(in.data()), kMagic.size());
  if (magic != kMagic) in.fail(0, "magic", "'GGUF'", quoted(magic), "give the path of a GGUF file");
  in.skip(kMagic.size(), "magic");
  Header h{};
  h.version = in.read<uint32_t>("version");
  check_version(in, h.version);
  const auto read_count = [&](uint64_t least_bytes, std::string_view field) {
    const uint64_t at = in.pos(), n = in.read_count(least_bytes, field);
    if (n > kMaxEntries) in.fail(at, field, "at most 1,048,576", grouped(n), kAdviseConvert);
    return n;
  };
  h.n_tensors = read_count(gguf_sections::kMinTensorBytes, "tensor count");
  h.n_entries = read_count(gguf_sections::kMinEntryBytes, "metadata count");
  return h;
}

}  // namespace

std::vector<std::string_view> GgufArray::strings() const {
  std::vector<std::string_view> out;
  if (type != GgufType::String) return out;
  out.reserve(count);
  const uint8_t *p = data, *const end = data + nbytes;
  for (uint64_t i = 0; i < count; ++i) {
    // Right when the file was opened; looked at again because somebody may rewrite it since.
    const uint64_t left = static_cast<uint64_t>(end - p);
    const uint64_t length = left < 8 ? left : load<uint64_t>(p);
    if (left < 8 || length > left - 8)
      throw FormatError(
          "the file was overwritten while it was open; open it again, and replace files by "
          "renaming a new one");
    out.emplace_back(reinterpret_cast<const char*>(p + 8), length);
    p += 8 + length;
  }
  return out;
}

GgufFile::GgufFile(std::shared_ptr<const MappedFile> file) : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::vector<MetadataEntry> GgufFile::metadata() const {
  std::vector<MetadataEntry> out;
  for (const GgufEntry& e : entries_)
    out.push_back({e.key, std::visit(
                              [](const auto& v) -> MetadataValue {
                                using T = std::decay_t<decltype(v)>;
                                if constexpr (std::is_same_v<T, GgufArray>)
                                  return v;
                                else if constexpr (std::is_same_v<T, std::string_view>)
                                  return MetadataScalar(std::string(v));
                                else if constexpr (std::is_same_v<T, bool>)
                                  return MetadataScalar(v);
                                else if constexpr (std::is_floating_point_v<T>)
                                  return MetadataScalar(double{v});
                                else if constexpr (std::is_signed_v<T>)
                                  return MetadataScalar(int64_t{v});
                                else
                                  return MetadataScalar(uint64_t{v});
                              },
                              e.value)});
  return out;
}

std::shared_ptr<GgufFile> GgufFile::open(const std::string& path) try {
  std::shared_ptr<GgufFile> f(new GgufFile(std::make_shared<const MappedFile>(path)));
  Cursor in(f->file());
  const Header header = read_header(in);
  auto metadata = gguf_sections::read_metadata(in, header.n_entries);
  auto tensors = gguf_sections::read_tensors(in, header.n_tensors, metadata.alignment);
  f->version_ = header.version;
  f->alignment_ = metadata.alignment;
  f->data_offset_ = tensors.data_offset;
  f->entries_ = std::move(metadata.entries);
  f->set_table(std::move(tensors.table));
  return f;
} catch (const std::bad_alloc&) {
  throw ResourceError(printable(path, 4096) +
                      ": not enough memory for its metadata; close other programs");
}

}  // namespace pyflow
