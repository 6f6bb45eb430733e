#include "files/safetensors/safetensors.h"

#include <algorithm>
#include <new>
#include <optional>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/json.h"
#include "files/twins.h"

namespace pyflow {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's limit
constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kMaxDims = 32;  // what other libraries can hold; real tensors have up to 5
// All types of the format, which says nothing of those that only GGUF or PyTorch have.
constexpr std::string_view kTypes[] = {
    "BOOL",    "F4",          "F6_E2M3",     "F6_E3M2", "U8",  "I8",  "F8_E5M2", "F8_E4M3",
    "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",     "U16", "F16", "BF16",    "I32",
    "U32",     "F32",         "C64",         "F64",     "I64", "U64"};

// What tells the types of blocks.
constexpr std::string_view kOwn = "pyflow.", kVersionKey = "pyflow.version",
                           kTensorsKey = "pyflow.tensors", kVersion = "1";

// Where the parts of one tensor stand in the header, for errors.
struct Places {
  uint64_t dtype = 0, shape = 0, offsets = 0;
};

struct Line {
  TensorRow tensor;
  uint64_t begin = 0, end = 0;  // from the start of the data
  Places at;
};

TensorType read_type(Cursor& in, JsonReader& json) {
  const uint64_t at = json.at();
  const std::string name = json.string("dtype");
  for (const std::string_view known : kTypes)
    if (known == name) return *tensor_type(known);
  in.fail(at, "dtype", "a type of the format, such as F32, BF16 or F8_E4M3", quoted(name),
          kAdviseConvert);
}

void read_shape(Cursor& in, JsonReader& json, std::vector<int64_t>& shape) {
  const uint64_t at = json.at();
  json.array("shape", [&] {
    if (shape.size() == kMaxDims)
      in.fail(at, "shape", "at most 32 dimensions", "more", kAdviseConvert);
    shape.push_back(json.integer("shape"));
  });
}

void read_offsets(Cursor& in, JsonReader& json, Line& line) {
  std::vector<uint64_t> found;
  json.array("data_offsets", [&] {
    if (found.size() == 2)
      in.fail(line.at.offsets, "data_offsets", "two numbers", "more", kAdviseConvert);
    found.push_back(static_cast<uint64_t>(json.integer("data_offsets")));
  });
  if (found.size() != 2)
    in.fail(line.at.offsets, "data_offsets", "two numbers", grouped(found.size()), kAdviseConvert);
  line.begin = found[0];
  line.end = found[1];
}

// Size by type and shape, held against that by the offsets.
void check_size(Cursor& in, Line& line, const TensorType& type) {
  TensorRow& t = line.tensor;
  uint64_t n = 0;
  if (!count_elements(t.shape, n))
    in.fail(line.at.shape, "shape", "fewer than 2^63 values", "more", kAdviseConvert);
  if (n % type.block != 0)
    in.fail(line.at.shape, "shape",
            "a multiple of " + grouped(type.block) + " values of " + t.type_name, grouped(n),
            kAdviseConvert);
  if (__builtin_mul_overflow(n / type.block, type.block_bytes, &t.nbytes))
    in.fail(line.at.shape, "shape", "fewer than 2^64 bytes", grouped(n) + " of " + t.type_name,
            kAdviseConvert);
  t.span = t.nbytes;
  const std::string found = grouped(line.begin) + " to " + grouped(line.end);
  if (line.end < line.begin || line.end - line.begin != t.nbytes)
    in.fail(line.at.offsets, "data_offsets",
            "the " + grouped(t.nbytes) + " bytes of " + grouped(n) + " values of " + t.type_name,
            found, kAdviseConvert);
}

Line read_tensor(Cursor& in, JsonReader& json, const std::string& name) {
  Line line;
  line.tensor.name = name;
  std::optional<TensorType> type;
  const uint64_t begin = json.at();
  bool shape = false, offsets = false;
  json.object("tensor", [&](std::string_view key) {
    if (key == "dtype") {
      line.at.dtype = json.at();
      type = read_type(in, json);
      line.tensor.set_type(*type);
    } else if (key == "shape") {
      line.at.shape = json.at();
      read_shape(in, json, line.tensor.shape);
      shape = true;
    } else if (key == "data_offsets") {
      line.at.offsets = json.at();
      read_offsets(in, json, line);
      offsets = true;
    } else {
      in.fail(json.at(), "key", "dtype, shape or data_offsets", quoted(key), kAdviseConvert);
    }
  });
  if (!type || !shape || !offsets)
    in.fail(begin, "tensor", "dtype, shape and data_offsets", "fewer", kAdviseConvert);
  check_size(in, line, *type);
  return line;
}

using Metadata = std::vector<std::pair<std::string, std::string>>;

// The text that tells types of blocks, or null.
const std::string* find_blocks(Cursor& in, const Metadata& metadata) {
  const std::string *version = nullptr, *tensors = nullptr, *other = nullptr;
  for (const auto& [key, value] : metadata) {
    if (key == kVersionKey)
      version = &value;
    else if (key == kTensorsKey)
      tensors = &value;
    else if (key.starts_with(kOwn))
      other = &key;
  }
  if (version && *version != kVersion)
    throw UnsupportedError(in.describe(0, kVersionKey, "1", quoted(*version), "update pyflow"));
  if (other || !version != !tensors)
    in.fail(0, "metadata", "both pyflow.version and pyflow.tensors, or neither",
            other ? quoted(*other) : "one of them", kAdviseConvert);
  return tensors;
}

DTypeInfo read_block_type(Cursor& in, JsonReader& json) {
  const uint64_t at = json.at();
  const std::string name = json.string("dtype");
  for (const DTypeInfo& type : kDTypes)
    if (type.name == name && type.block > 1) return type;
  throw UnsupportedError(in.describe(at, "dtype",
                                     "a type of blocks that this build can read, such as Q4_K",
                                     quoted(name), "update pyflow, or quantize the model again"));
}

// Turns bytes into rows of blocks. `in` reads the text, for errors.
void set_blocks(Cursor& in, uint64_t at, TensorRow& t, const DTypeInfo& type,
                std::vector<int64_t> shape) {
  const auto fail = [&](const std::string& expected, const std::string& found) {
    in.fail(at, "shape", expected, found, kAdviseConvert);
  };
  if (t.type_name != "U8")  // such as one that has been told already
    in.fail(at, "tensor", "type U8", t.type_name, kAdviseConvert);
  if (shape.empty() || shape.size() != t.shape.size())
    fail("the " + grouped(t.shape.size()) + " dimensions of the bytes, one at least",
         grouped(shape.size()));
  for (size_t d = 0; d + 1 < shape.size(); ++d)
    if (shape[d] != t.shape[d])
      fail("dimension " + grouped(d) + " as of the bytes, " +
               grouped(static_cast<uint64_t>(t.shape[d])),
           grouped(static_cast<uint64_t>(shape[d])));
  const auto cols = static_cast<uint64_t>(shape.back());
  if (cols % type.block)
    fail("rows of a multiple of " + grouped(type.block) + " weights for " + std::string(type.name),
         grouped(cols));
  uint64_t row = 0, n = 0;
  if (__builtin_mul_overflow(cols / type.block, type.block_bytes, &row) ||
      row != static_cast<uint64_t>(t.shape.back()))
    fail("weights for rows of " + grouped(static_cast<uint64_t>(t.shape.back())) + " bytes",
         grouped(cols) + " of " + std::string(type.name));
  if (!count_elements(shape, n)) fail("fewer than 2^63 weights", "more");
  t.set_type(tensor_type(type.dtype));
  t.shape = std::move(shape);
}

// Gives tensors the types of blocks that the metadata tell.
void read_blocks(Cursor& header, const Metadata& metadata, std::vector<Line>& lines) {
  const std::string* text = find_blocks(header, metadata);
  if (!text) return;
  const std::vector<uint32_t> order =
      sorted_by(lines.size(), [&](uint32_t i) { return std::string_view(lines[i].tensor.name); });
  Cursor in(Bytes{header.label(), reinterpret_cast<const uint8_t*>(text->data()), text->size(), 0,
                  kTensorsKey});
  in.enter(kTensorsKey, 0, 0);
  JsonReader json(in);
  json.object("JSON", [&](const std::string& name) {
    in.name(name);
    const uint64_t begin = json.at();
    const auto found = std::lower_bound(
        order.begin(), order.end(), name,
        [&](uint32_t i, const std::string& n) { return lines[i].tensor.name < n; });
    if (found == order.end() || lines[*found].tensor.name != name)
      in.fail(begin, "tensor", "a name of the header", "none", kAdviseConvert);
    std::optional<DTypeInfo> type;
    std::optional<std::vector<int64_t>> shape;
    uint64_t shape_at = begin;
    json.object("tensor", [&](std::string_view key) {
      if (key == "dtype") {
        type = read_block_type(in, json);
      } else if (key == "shape") {
        shape_at = json.at();
        read_shape(in, json, shape.emplace());
      } else {
        in.fail(json.at(), "key", "dtype or shape", quoted(key), kAdviseConvert);
      }
    });
    if (!type || !shape) in.fail(begin, "tensor", "dtype and shape", "fewer", kAdviseConvert);
    set_blocks(in, shape_at, lines[*found].tensor, *type, std::move(*shape));
    in.enter(kTensorsKey, 0, 0);
  });
  json.end("JSON");
}

// The data must be covered, each byte once.
void place(Cursor& in, std::vector<Line>& lines, uint64_t data_offset, uint64_t file_size) {
  const uint64_t data = file_size - data_offset;
  uint64_t covered = 0;
  const auto span = [&](uint32_t i) { return std::pair(lines[i].begin, lines[i].end); };
  for (const uint32_t i : sorted_by(lines.size(), span)) {
    Line& line = lines[i];
    in.name(line.tensor.name);
    const std::string found = grouped(line.begin) + " to " + grouped(line.end);
    if (line.end > data)
      in.fail(line.at.offsets, "data_offsets",
              "an end within the " + grouped(data) + " bytes of data", found, kAdviseDownload);
    if (line.begin != covered)
      in.fail(line.at.offsets, "data_offsets",
              "data without gap or overlap: " + grouped(covered) + " first", found, kAdviseConvert);
    covered = line.end;
    line.tensor.offset = data_offset + line.begin;
  }
  in.enter("header", 0, 0);
  if (covered != data)
    in.fail(in.size(), "data", "tensors that cover all " + grouped(data) + " bytes",
            grouped(covered) + " bytes", kAdviseConvert);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::shared_ptr<const MappedFile> file)
    : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::vector<MetadataEntry> SafetensorsFile::metadata() const {
  std::vector<MetadataEntry> out;
  for (const auto& [key, value] : metadata_) out.push_back({key, MetadataScalar(value)});
  return out;
}

std::shared_ptr<SafetensorsFile> SafetensorsFile::open(const std::string& path) try {
  std::shared_ptr<SafetensorsFile> f(new SafetensorsFile(std::make_shared<const MappedFile>(path)));
  const MappedFile& file = *f->files()[0];
  Cursor length(file);
  length.enter("header", 0, 0);
  const auto n = length.read<uint64_t>("length");
  if (n > kMaxHeaderBytes)
    length.fail(0, "length", "at most 100,000,000", grouped(n), kAdviseConvert);
  if (n > length.remaining())
    length.fail(0, "length", "at most " + grouped(length.remaining()) + " (the rest of the file)",
                grouped(n), kAdviseDownload);
  Cursor in(Bytes{file.label(), length.data(), n, length.pos(), "header"});
  in.enter("header", 0, 0);
  JsonReader json(in);
  std::vector<Line> lines;
  json.object("JSON", [&](const std::string& key) {
    in.name(key);
    if (key == kMetadata)
      json.object("value", [&](const std::string& k) {
        std::string value = json.string("value");
        f->metadata_.emplace_back(k, std::move(value));
      });
    else
      lines.push_back(read_tensor(in, json, key));
    in.enter("header", 0, 0);
  });
  json.end("JSON");
  read_blocks(in, f->metadata_, lines);
  place(in, lines, 8 + n, file.size());
  std::vector<TensorRow> table;
  table.reserve(lines.size());
  for (Line& line : lines) table.push_back(std::move(line.tensor));
  f->set_table(std::move(table));
  return f;
} catch (const std::bad_alloc&) {
  throw ResourceError(printable(path, 4096) +
                      ": not enough memory for its header; close other programs");
}

}  // namespace pyflow
