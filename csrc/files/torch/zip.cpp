#include "files/torch/zip.h"

#include <algorithm>
#include <optional>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/twins.h"

namespace pyflow {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kZip64 = 0x06064b50, kLocator = 0x07064b50;
constexpr uint64_t kEndBytes = 22, kLocatorBytes = 20, kCentralBytes = 46;
constexpr uint64_t kMaxComment = 65535;
constexpr uint16_t kZip64Extra = 1;
constexpr uint16_t kEncrypted = 1, kDescriptor = 8, kPatched = 32, kStrong = 64, kMasked = 1 << 13;

struct Directory {
  uint64_t count = 0, size = 0, offset = 0;
};

// A cursor on the file from an offset that is known to lie in it.
Cursor from(const MappedFile& file, uint64_t offset, std::string_view section) {
  Cursor in(file);
  in.enter(section, 0, 0);
  in.skip(offset, section);
  return in;
}

void expect_signature(Cursor& in, uint32_t signature, std::string_view expected) {
  const uint64_t at = in.pos();
  if (in.read<uint32_t>("signature") != signature)
    in.fail(at, "signature", expected, "another", kAdviseDownload);
}

// The end record is the last one whose comment reaches exactly to the end of the file.
uint64_t find_end(const MappedFile& file) {
  Cursor in(file);
  in.enter("zip", 0, 0);
  if (file.size() >= kEndBytes) {
    const uint64_t last = file.size() - kEndBytes;
    for (uint64_t back = 0; back <= std::min(last, kMaxComment); ++back) {
      const uint8_t* p = file.data() + last - back;
      if (load<uint32_t>(p) == kEnd && load<uint16_t>(p + 20) == back) return last - back;
    }
  }
  in.fail(file.size(), "end record", "a record in the last 65,557 bytes", "none", kAdviseDownload);
}

// Reads the number of a part, of which there may be one.
template <class T>
void read_disk(Cursor& in) {
  const uint64_t at = in.pos();
  const T disk = in.read<T>("disk");
  if (disk != 0 && disk != static_cast<T>(~T{0}))
    throw UnsupportedError(in.describe(at, "disk", "an archive in one part",
                                       "part " + grouped(disk), "join its parts first"));
}

// Reads the record that takes the place of the end record's fields, when there is one.
std::optional<Directory> read_zip64(const MappedFile& file, uint64_t end, uint64_t& directory_end) {
  if (end < kLocatorBytes || load<uint32_t>(file.data() + end - kLocatorBytes) != kLocator)
    return std::nullopt;
  Cursor locator = from(file, end - kLocatorBytes + 4, "zip64 locator");
  read_disk<uint32_t>(locator);
  const uint64_t at = locator.pos();
  const auto offset = locator.read<uint64_t>("record");
  if (offset > end - kLocatorBytes)
    locator.fail(at, "record", "an offset before the locator", grouped(offset), kAdviseDownload);
  Cursor in = from(file, offset, "zip64 record");
  expect_signature(in, kZip64, "PK\\6\\6");
  const uint64_t size_at = in.pos();
  const auto size = in.read<uint64_t>("size");
  if (size < 44 || size > end - kLocatorBytes - in.pos() || in.pos() + size != end - kLocatorBytes)
    in.fail(size_at, "size", "a record that ends where the locator starts", grouped(size),
            kAdviseDownload);
  in.skip(4, "versions");
  read_disk<uint32_t>(in);
  read_disk<uint32_t>(in);
  Directory d;
  const auto here = in.read<uint64_t>("count");
  const uint64_t count_at = in.pos();
  d.count = in.read<uint64_t>("count");
  if (here != d.count)
    in.fail(count_at, "count", grouped(here) + " as on this disk", grouped(d.count),
            kAdviseDownload);
  d.size = in.read<uint64_t>("directory size");
  d.offset = in.read<uint64_t>("directory offset");
  directory_end = offset;
  return d;
}

// Takes `wide` for a field of the end record that is all ones; otherwise they must agree.
template <class T>
uint64_t field_of_end(Cursor& in, std::string_view field, const uint64_t* wide) {
  const uint64_t at = in.pos();
  const T narrow = in.read<T>(field);
  if (!wide) return narrow;
  if (narrow != static_cast<T>(~T{0}) && narrow != *wide)
    in.fail(at, field, grouped(*wide) + " as in the zip64 record", grouped(narrow),
            kAdviseDownload);
  return *wide;
}

Directory read_end(const MappedFile& file) {
  const uint64_t end = find_end(file);
  uint64_t directory_end = end;
  const std::optional<Directory> wide = read_zip64(file, end, directory_end);
  Cursor in = from(file, end + 4, "end record");
  read_disk<uint16_t>(in);
  read_disk<uint16_t>(in);
  Directory d;
  field_of_end<uint16_t>(in, "count", wide ? &wide->count : nullptr);
  d.count = field_of_end<uint16_t>(in, "count", wide ? &wide->count : nullptr);
  d.size = field_of_end<uint32_t>(in, "directory size", wide ? &wide->size : nullptr);
  const uint64_t at = in.pos();
  d.offset = field_of_end<uint32_t>(in, "directory offset", wide ? &wide->offset : nullptr);
  if (d.size > directory_end || d.offset != directory_end - d.size)
    in.fail(at, "directory offset",
            "a directory of " + grouped(d.size) + " bytes that ends at " + grouped(directory_end),
            "a directory at " + grouped(d.offset), kAdviseDownload);
  if (d.count > d.size / kCentralBytes)
    in.fail(at, "count",
            "at most " + grouped(d.size / kCentralBytes) + " (what the directory can hold)",
            grouped(d.count), kAdviseDownload);
  return d;
}

// What the extra field has for those of the values that are all ones, in this order.
void widen(Cursor& in, uint64_t extra_end, std::initializer_list<uint64_t*> values) {
  const auto saturated = [](const uint64_t* v) { return *v == UINT32_MAX; };
  uint64_t needed =
      8 * static_cast<uint64_t>(std::count_if(values.begin(), values.end(), saturated));
  while (extra_end - in.pos() >= 4) {
    const auto id = in.read<uint16_t>("extra field");
    const uint64_t at = in.pos();
    const auto size = in.read<uint16_t>("extra field");
    if (size > extra_end - in.pos())
      in.fail(at, "extra field", "at most " + grouped(extra_end - in.pos()) + " bytes",
              grouped(size), kAdviseDownload);
    const uint64_t next = in.pos() + size;
    if (id == kZip64Extra && needed > 0) {
      if (size < needed)
        in.fail(at, "zip64 sizes", grouped(needed) + " bytes", grouped(size), kAdviseDownload);
      for (uint64_t* v : values)
        if (saturated(v)) *v = in.read<uint64_t>("zip64 sizes");
      needed = 0;
    }
    in.skip(next - in.pos(), "extra field");
  }
  if (needed > 0)
    in.fail(in.pos(), "zip64 sizes", grouped(needed) + " bytes in the extra field", "none",
            kAdviseDownload);
}

void check_method(const Cursor& in, uint64_t at, uint16_t flags, uint16_t method) {
  if (flags & (kEncrypted | kPatched | kStrong | kMasked))
    throw UnsupportedError(in.describe(at, "flags", "a member without encryption",
                                       "flags " + grouped(flags), "unpack and save it again"));
  if (method != 0 && method != 8)
    throw UnsupportedError(in.describe(at, "method", "0 (stored) or 8 (deflated)", grouped(method),
                                       "unpack the archive and pack it without compression"));
}

// One line of the central directory; `offset` is that of the local header so far.
ZipMember read_line(Cursor& in, uint16_t& flags) {
  ZipMember m;
  expect_signature(in, kCentral, "PK\\1\\2");
  in.skip(4, "versions");
  const uint64_t at = in.pos();
  flags = in.read<uint16_t>("flags");
  const auto method = in.read<uint16_t>("method");
  in.skip(4, "time");
  m.crc = in.read<uint32_t>("CRC");
  m.packed = in.read<uint32_t>("packed size");
  m.nbytes = in.read<uint32_t>("size");
  const auto name_bytes = in.read<uint16_t>("name length");
  const auto extra_bytes = in.read<uint16_t>("extra field length");
  const auto comment_bytes = in.read<uint16_t>("comment length");
  read_disk<uint16_t>(in);
  in.skip(6, "attributes");
  m.offset = in.read<uint32_t>("local header");
  const uint64_t name_at = in.pos();
  m.name = in.take(name_bytes, "name");
  if (m.name.empty() || !is_utf8(m.name) || m.name.find('\0') != m.name.npos)
    in.fail(name_at, "name", "UTF-8 without zero bytes", quoted(m.name), kAdviseConvert);
  in.name(m.name);
  check_method(in, at, flags, method);
  m.deflated = method == 8;
  in.require(extra_bytes, "extra field");
  widen(in, in.pos() + extra_bytes, {&m.nbytes, &m.packed, &m.offset});
  in.skip(comment_bytes, "comment");
  return m;
}

// Reads the local header, and turns the offset of it into that of the data.
void place(const MappedFile& file, ZipMember& m, uint16_t flags, uint64_t members_end) {
  Cursor in(Bytes{file.label(), file.data(), members_end, 0, "members"});
  in.enter("zip member", 0, 0);
  in.name(m.name);
  if (m.offset > members_end)
    in.fail(m.offset, "local header", "an offset before the directory at " + grouped(members_end),
            grouped(m.offset), kAdviseDownload);
  in.skip(m.offset, "local header");
  expect_signature(in, kLocal, "PK\\3\\4");
  in.skip(2, "version");
  const uint64_t at = in.pos();
  const auto local_flags = in.read<uint16_t>("flags");
  const auto method = in.read<uint16_t>("method");
  in.skip(4, "time");
  const auto crc = in.read<uint32_t>("CRC");
  uint64_t packed = in.read<uint32_t>("packed size"), nbytes = in.read<uint32_t>("size");
  const auto name_bytes = in.read<uint16_t>("name length");
  const auto extra_bytes = in.read<uint16_t>("extra field length");
  const uint64_t name_at = in.pos();
  const std::string_view name = in.take(name_bytes, "name");
  if (name != m.name)
    in.fail(name_at, "name", quoted(m.name) + " as in the directory", quoted(name),
            kAdviseDownload);
  if (((local_flags ^ flags) & (kEncrypted | kDescriptor)) || method != (m.deflated ? 8 : 0))
    in.fail(at, "flags", "flags and method as in the directory", "others", kAdviseDownload);
  in.require(extra_bytes, "extra field");
  const uint64_t extra_end = in.pos() + extra_bytes;
  // With a descriptor behind the data the header need not say anything yet.
  if (!(flags & kDescriptor)) {
    widen(in, extra_end, {&nbytes, &packed});
    if (crc != m.crc || packed != m.packed || nbytes != m.nbytes)
      in.fail(at + 8, "sizes", "CRC and sizes as in the directory", "others", kAdviseDownload);
  }
  m.offset = extra_end;
  if (m.packed > members_end - m.offset)
    in.fail(at, "packed size", "data that end before the directory at " + grouped(members_end),
            grouped(m.offset) + " + " + grouped(m.packed) + " bytes", kAdviseDownload);
  if (m.deflated ? m.nbytes / kMaxDeflateRatio > m.packed : m.nbytes != m.packed)
    in.fail(at, "size",
            m.deflated ? "at most 1,032 times the packed " + grouped(m.packed) + " bytes"
                       : grouped(m.packed) + " bytes as stored",
            grouped(m.nbytes), kAdviseConvert);
}

}  // namespace

std::vector<ZipMember> read_zip(const MappedFile& file) {
  const Directory directory = read_end(file);
  Cursor in(Bytes{file.label(), file.data() + directory.offset, directory.size, directory.offset,
                  "directory"});
  std::vector<ZipMember> members;
  std::vector<uint64_t> headers;  // offsets of the local ones
  for (uint64_t i = 0; i < directory.count; ++i) {
    in.enter("zip directory", i, directory.count);
    uint16_t flags = 0;
    ZipMember m = read_line(in, flags);
    headers.push_back(m.offset);
    place(file, m, flags, directory.offset);
    members.push_back(std::move(m));
  }
  in.enter("zip directory", 0, 0);
  if (in.remaining() > 0)
    in.fail(in.pos(), "end", grouped(directory.count) + " members", "more bytes", kAdviseDownload);
  const auto name = [&](uint32_t i) -> std::string_view { return members[i].name; };
  each_twins(members.size(), name, [&](uint32_t, uint32_t b) {
    in.name(name(b));
    in.fail(0, "name", "each name once", "it twice", kAdviseConvert);
  });
  const std::vector<uint32_t> order =
      sorted_by(members.size(), [&](uint32_t i) { return headers[i]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const ZipMember& before = members[order[i - 1]];
    if (headers[order[i]] >= before.offset + before.packed) continue;
    in.name(members[order[i]].name);
    in.fail(0, "local header", "an offset after member " + quoted(before.name),
            "an offset inside that member, " + grouped(headers[order[i]]), kAdviseConvert);
  }
  return members;
}

}  // namespace pyflow
