#include "files/shards.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/json.h"
#include "files/twins.h"

namespace pyflow {
namespace {

// The largest models have some hundred shards and some ten thousand tensors.
constexpr uint64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;

struct Index {
  std::vector<std::string> files;                            // each once, sorted
  std::vector<std::pair<std::string, std::string>> tensors;  // name, file
};

void check_file_name(Cursor& in, uint64_t at, const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != name.npos ||
      name.find('\\') != name.npos || name.find('\0') != name.npos)
    in.fail(at, "file", "the plain name of a file beside the index", quoted(name), kAdviseConvert);
}

Index read_index(const MappedFile& file) {
  Cursor in(file);
  in.enter("index", 0, 0);
  if (file.size() > kMaxIndexBytes)
    in.fail(0, "size", "at most " + grouped(kMaxIndexBytes) + " bytes", grouped(file.size()),
            kAdviseConvert);
  Index index;
  JsonReader json(in);
  bool found = false;
  json.object("JSON", [&](std::string_view key) {
    if (key != "weight_map") return json.skip("value");
    found = true;
    json.object("weight_map", [&](const std::string& name) {
      const uint64_t at = json.at();
      std::string part = json.string("file");
      check_file_name(in, at, part);
      index.files.push_back(part);
      index.tensors.emplace_back(name, std::move(part));
    });
  });
  json.end("JSON");
  if (!found) in.fail(0, "JSON", "a weight_map", "none", kAdviseConvert);
  std::sort(index.files.begin(), index.files.end());
  index.files.erase(std::unique(index.files.begin(), index.files.end()), index.files.end());
  if (index.files.empty() || index.files.size() > kMaxShards)
    in.fail(0, "weight_map", "1 to 4,096 files", grouped(index.files.size()), kAdviseConvert);
  return index;
}

constexpr std::string_view kNo = "split.no", kCount = "split.count",
                           kTensors = "split.tensors.count";

// The integer of a key; `otherwise` when there is no such key.
uint64_t integer(const GgufFile& file, std::string_view key, uint64_t otherwise) {
  for (const GgufEntry& e : file.entries()) {
    if (e.key != key) continue;
    return std::visit(
        [&](const auto& v) -> uint64_t {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
            if (v >= 0) return static_cast<uint64_t>(v);
          throw FormatError(file.label() + ": metadata " + quoted(key) +
                            ": expected an integer of 0 or more, found another value; " +
                            std::string(kAdviseConvert));
        },
        e.value);
  }
  return otherwise;
}

constexpr uint64_t kNothing = UINT64_MAX;

void expect(const GgufFile& file, std::string_view key, uint64_t expected, uint64_t found) {
  if (found != expected)
    throw FormatError(file.label() + ": metadata " + quoted(key) + ": expected " +
                      grouped(expected) + ", found " +
                      (found == kNothing ? "nothing" : grouped(found)) +
                      "; open the first of the files, and keep those of one model together");
}

// Later parts repeat metadata of the first or leave them out; what differs is of another model.
void expect_same(const GgufFile& first, const GgufFile& part) {
  std::unordered_map<std::string_view, std::span<const uint8_t>> values;
  for (const GgufEntry& e : first.entries()) values[e.key] = e.bytes;
  for (const GgufEntry& e : part.entries()) {
    const auto found = values.find(e.key);
    if (e.key == kNo || e.key == kCount || found == values.end()) continue;
    if (!std::ranges::equal(e.bytes, found->second))
      throw FormatError(part.label() + ": metadata " + quoted(e.key) + ": expected the value in " +
                        first.label() + ", found another; keep the files of one model together");
  }
}

std::string counted(uint64_t n, const std::string& noun) {
  return grouped(n) + ' ' + noun + (n == 1 ? "" : "s");
}

std::string five_digits(uint64_t n) {
  const std::string digits = std::to_string(n);
  return digits.size() < 5 ? std::string(5 - digits.size(), '0') + digits : digits;
}

}  // namespace

uint64_t split_count(const GgufFile& file) { return integer(file, kCount, 1); }

std::shared_ptr<ShardedCheckpoint> ShardedCheckpoint::open_split(
    std::shared_ptr<const GgufFile> first) {
  const uint64_t count = split_count(*first);
  expect(*first, kNo, 0, integer(*first, kNo, kNothing));
  if (count > kMaxShards)
    throw FormatError(first->label() + ": metadata 'split.count': expected at most 4,096, found " +
                      grouped(count) + "; " + std::string(kAdviseConvert));
  const std::string& path = first->file().path();
  std::string tail = "-of-" + five_digits(count);
  tail += ".gguf";
  std::string own = "-";
  own += five_digits(1) + tail;
  if (!path.ends_with(own))
    throw FormatError(first->label() + ": expected a file name that ends in " + own +
                      ", as metadata say that it is the first of " + grouped(count) +
                      " files; give the files their names back");
  const std::string stem = path.substr(0, path.size() - own.size());
  std::vector<std::shared_ptr<const Checkpoint>> parts = {first};
  for (uint64_t i = 1; i < count; ++i) {
    const auto part = GgufFile::open(stem + "-" + five_digits(i + 1) + tail);
    expect(*part, kNo, i, integer(*part, kNo, kNothing));
    expect(*part, kCount, count, split_count(*part));
    expect_same(*first, *part);
    parts.push_back(part);
  }
  auto all = std::make_shared<ShardedCheckpoint>(first->label(), std::move(parts));
  const uint64_t n = all->table().size();
  expect(*first, kTensors, n, integer(*first, kTensors, n));
  return all;
}

ShardedCheckpoint::ShardedCheckpoint(std::string label,
                                     std::vector<std::shared_ptr<const Checkpoint>> parts)
    : Checkpoint(std::move(label)), parts_(std::move(parts)) {
  std::vector<TensorRow> table = joined();
  uint64_t budget = nbytes();  // tensors that share bytes could otherwise be compared for hours
  std::vector<bool> twice(table.size());
  const TensorRow* example = nullptr;
  const auto name = [&](uint32_t i) -> std::string_view { return table[i].name; };
  each_twins(table.size(), name, [&](uint32_t a, uint32_t b) {
    if (!same(table[a], table[b], budget))
      throw FormatError(files()[table[b].file]->label() + ": tensor " + quoted(name(b)) +
                        " at byte " + grouped(table[b].offset) +
                        ": expected each name once, found another one in " +
                        files()[table[a].file]->label() + "; " + std::string(kAdviseConvert));
    twice[b] = true;
    example = &table[b];
  });
  if (example)
    notes_.push_back(counted(std::ranges::count(twice, true), "tensor") +
                     " in two shards, with the same values, such as " + quoted(example->name));
  std::vector<TensorRow> once;
  for (size_t i = 0; i < table.size(); ++i)
    if (!twice[i]) once.push_back(std::move(table[i]));
  set_table(std::move(once));
}

// The tables of all parts, one after the other.
std::vector<TensorRow> ShardedCheckpoint::joined() {
  std::vector<TensorRow> table;
  for (uint32_t p = 0; p < parts_.size(); ++p) {
    const auto first = static_cast<uint32_t>(files().size());
    for (const auto& file : parts_[p]->files()) {
      add_file(file);
      part_of_file_.push_back(p);
    }
    for (const TensorRow& t : parts_[p]->table()) {
      table.push_back(t);
      table.back().file += first;
    }
  }
  return table;
}

// Whether two tensors have the same type, shape and bytes. budget: bytes that may be read, reduced.
bool ShardedCheckpoint::same(const TensorRow& a, const TensorRow& b, uint64_t& budget) const {
  if (a.type_id != b.type_id || a.type_name != b.type_name || a.shape != b.shape ||
      a.strides != b.strides || a.span != b.span || a.block_bytes == 0 || a.span > budget)
    return false;
  budget -= a.span;
  const Contents one = contents(a), other = contents(b);
  return std::equal(one.data, one.data + one.nbytes, other.data, other.data + other.nbytes);
}

std::shared_ptr<ShardedCheckpoint> ShardedCheckpoint::open_index(const std::string& path,
                                                                 const OpenPart& open_part) {
  const MappedFile file(path);
  const Index index = read_index(file);
  const std::string folder = path.substr(0, path.rfind('/') + 1);  // "" when there is none
  std::vector<std::shared_ptr<const Checkpoint>> parts;
  for (const std::string& name : index.files) parts.push_back(open_part(folder + name));
  auto all = std::make_shared<ShardedCheckpoint>(file.label(), std::move(parts));
  all->compare_with(index.tensors, folder);
  return all;
}

// Notes what the index says differently. places: (tensor, file in the folder).
void ShardedCheckpoint::compare_with(const std::vector<std::pair<std::string, std::string>>& places,
                                     const std::string& folder) {
  std::vector<std::string> lost, moved;
  for (const auto& [name, part] : places) {
    const TensorRow* t = row_named(name);
    if (!t)
      lost.push_back(quoted(name));
    else if (files()[t->file]->path() != folder + part)
      moved.push_back(quoted(name) + ", found in " + files()[t->file]->label());
  }
  if (!lost.empty())
    notes_.push_back("weight_map: " + counted(lost.size(), "tensor") + " in no shard, such as " +
                     lost[0]);
  if (!moved.empty())
    notes_.push_back("weight_map: " + counted(moved.size(), "tensor") +
                     " in another shard, such as " + moved[0]);
}

const TensorRow& ShardedCheckpoint::own_line(const TensorRow& t) const {
  return *part_of(t).row_named(t.name);
}

Contents ShardedCheckpoint::contents(const TensorRow& t) const {
  return part_of(t).contents(own_line(t));
}

std::string ShardedCheckpoint::hindrance(const TensorRow& t) const {
  return part_of(t).hindrance(own_line(t));
}

}  // namespace pyflow
