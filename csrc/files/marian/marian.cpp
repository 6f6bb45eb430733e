#include "files/marian/marian.h"

#include <array>
#include <cstdio>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/divisors.h"
#include "files/twins.h"

namespace pyflow {
namespace {

constexpr uint64_t kMaxTensors = 1 << 16, kMaxName = 256, kMaxRank = 8, kRecordBytes = 32;
constexpr uint64_t kF32 = 0x404, kF16 = 0x402, kBytes = 0x101, kCodes = 0x4101;
constexpr std::string_view kEmbedding = "Wemb";  // and encoder_Wemb, decoder_Wemb

struct Record {
  uint64_t at;  // of the record in the file
  uint64_t name_bytes, type, rank, nbytes;
};

std::vector<Record> read_records(Cursor& in) {
  in.enter("header", 0, 0);
  in.skip(sizeof(uint64_t), "version");
  const uint64_t count_at = in.pos();
  const uint64_t count = in.read_count(kRecordBytes, "number of tensors");
  if (count > kMaxTensors)
    in.fail(count_at, "number of tensors", "at most 65,536", grouped(count), kAdviseConvert);
  std::vector<Record> records;
  for (uint64_t i = 0; i < count; ++i) {
    in.enter("record", i, count);
    Record r{in.pos(), 0, 0, 0, 0};
    r.name_bytes = in.read<uint64_t>("bytes of the name");
    r.type = in.read<uint64_t>("type");
    r.rank = in.read<uint64_t>("rank");
    r.nbytes = in.read<uint64_t>("bytes of data");
    if (r.name_bytes < 2 || r.name_bytes > kMaxName)
      in.fail(r.at, "bytes of the name", "2 to 256", grouped(r.name_bytes), kAdviseConvert);
    if (r.rank > kMaxRank) in.fail(r.at + 16, "rank", "at most 8", grouped(r.rank), kAdviseConvert);
    records.push_back(r);
  }
  return records;
}

std::string read_name(Cursor& in, const Record& r) {
  const uint64_t at = in.pos();
  const std::string_view name = in.take(r.name_bytes, "name");
  if (name.find('\0') != name.size() - 1 || !is_utf8(name))
    in.fail(at, "name", "UTF-8 with one zero, at its end", quoted(name), kAdviseConvert);
  return std::string(name.substr(0, name.size() - 1));
}

void set_type(TensorRow& t, uint64_t type) {
  switch (type) {
    case kF32:
      return t.set_type(tensor_type(DType::F32));
    case kF16:
      return t.set_type(tensor_type(DType::F16));
    case kBytes:
    case kCodes:
      return t.set_type(*tensor_type("I8"));
    default:
      break;
  }
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "Marian's type %#llx",
                static_cast<unsigned long long>(type));
  t.type_name = name.data();
  t.type_id = kNoGgufId;
}

// Places the data of a tensor, whose shape is known.
void place(Cursor& in, const Record& r, TensorRow& t) {
  in.name(t.name);
  set_type(t, r.type);
  t.offset = in.pos();
  const uint8_t* file = in.data() - in.pos();
  in.skip(r.nbytes, "data");
  uint64_t n = 0;
  if (!count_elements(t.shape, n) || n > r.nbytes)
    in.fail(r.at + 24, "bytes of data", "enough for its shape", grouped(r.nbytes), kAdviseConvert);
  if (t.block_bytes == 0) return;
  t.nbytes = t.span = n * t.block_bytes;
  const uint64_t needed = t.nbytes + (r.type == kCodes ? sizeof(float) : 0);
  if (needed > r.nbytes)
    in.fail(r.at + 24, "bytes of data", grouped(needed) + " or more", grouped(r.nbytes),
            kAdviseConvert);
  if (r.type != kCodes || t.shape.size() != 2) return;
  set_divisors(in, file, t, t.offset + t.nbytes, 1);
  if (!t.name.ends_with(kEmbedding)) std::swap(t.shape[0], t.shape[1]);
}

}  // namespace

bool MarianFile::matches(std::string_view head) {
  if (head.size() < 48) return false;
  const auto* p = reinterpret_cast<const uint8_t*>(head.data());
  const auto at = [&](size_t i) { return load<uint64_t>(p + 8 * i); };
  return at(0) == 1 && at(1) >= 1 && at(1) <= kMaxTensors && at(2) >= 2 && at(2) <= kMaxName;
}

MarianFile::MarianFile(std::shared_ptr<const MappedFile> file) : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::shared_ptr<MarianFile> MarianFile::open(const std::string& path) {
  std::shared_ptr<MarianFile> f(new MarianFile(std::make_shared<const MappedFile>(path)));
  const MappedFile& file = *f->files()[0];
  Cursor in(file);
  const std::vector<Record> records = read_records(in);
  std::vector<TensorRow> all(records.size());
  in.enter("names", 0, 0);
  for (size_t i = 0; i < all.size(); ++i) all[i].name = read_name(in, records[i]);
  in.enter("shapes", 0, 0);
  for (size_t i = 0; i < all.size(); ++i) {
    in.name(all[i].name);
    for (uint64_t d = 0; d < records[i].rank; ++d) {
      const uint64_t at = in.pos();
      const auto dim = in.read<int32_t>("dim");
      if (dim < 0) in.fail(at, "dim", "0 or more", std::to_string(dim), kAdviseConvert);
      all[i].shape.push_back(dim);
    }
  }
  in.enter("data", 0, 0);
  in.skip(in.read<uint64_t>("bytes of padding"), "padding");
  std::vector<TensorRow> table;
  for (size_t i = 0; i < all.size(); ++i) {
    TensorRow& t = all[i];
    in.enter("tensor", i, all.size());
    place(in, records[i], t);
    if (t.name == kConfig && records[i].type == kBytes) {
      const auto* text = reinterpret_cast<const char*>(file.data() + t.offset);
      f->metadata_.push_back({t.name, MetadataScalar(std::string(text, t.nbytes))});
    } else {
      table.push_back(std::move(t));
    }
  }
  in.enter("names", 0, 0);
  each_twins(
      table.size(), [&](uint32_t i) -> std::string_view { return table[i].name; },
      [&](uint32_t, uint32_t b) {
        in.fail(table[b].offset, "name", "each name once", quoted(table[b].name) + " again",
                kAdviseConvert);
      });
  f->set_table(std::move(table));
  return f;
}

}  // namespace pyflow
