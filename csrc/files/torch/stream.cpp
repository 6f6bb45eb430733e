// The format before zip archives; torch.h has its picture.
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/torch/torch.h"
#include "files/twins.h"

namespace pyflow {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kVersion = 1001;

class Stream {
 public:
  Stream(Cursor& in, std::vector<PickleGlobal>& globals) : in_(in), globals_(globals) {}

  // The next pickle of the file, refused when it asks for what is not known.
  Pickle next(std::string_view section) {
    in_.enter(section, 0, 0);
    Pickle p;
    try {
      p.run(in_);
    } catch (const Error&) {
      keep(p);
      p.refuse_unknown(in_);
      throw;
    }
    keep(p);
    p.refuse_unknown(in_);
    return p;
  }

 private:
  void keep(const Pickle& p) {
    globals_.insert(globals_.end(), p.globals.begin(), p.globals.end());
  }

  Cursor& in_;
  std::vector<PickleGlobal>& globals_;
};

void read_machine(const MappedFile& file, const Pickle& machine) {
  if (machine.root.kind != Kind::Dict) return;
  const auto& items = machine.items_of(machine.root);
  for (size_t i = 0; i + 1 < items.size(); i += 2)
    if (items[i].kind == Kind::Text && items[i].text() == "little_endian" &&
        items[i + 1].kind == Kind::Bool && !items[i + 1].truth)
      throw UnsupportedError(file.label() +
                             ": system: expected a little-endian file, found a big-endian one; "
                             "save the model again on a little-endian machine");
}

std::vector<std::string_view> read_keys(Cursor& in, uint64_t at, const Pickle& keys) {
  std::vector<std::string_view> out;
  if (keys.root.kind != Kind::List)
    in.fail(at, "keys", "a list", "a " + std::string(kind_name(keys.root.kind)), kAdviseConvert);
  for (const PickleValue& key : keys.items_of(keys.root)) {
    if (key.kind != Kind::Text && key.kind != Kind::Bytes)
      in.fail(at, "keys", "strings", "a " + std::string(kind_name(key.kind)), kAdviseConvert);
    out.push_back(key.text());
  }
  each_twins(
      out.size(), [&](uint32_t i) { return out[i]; },
      [&](uint32_t, uint32_t b) {
        in.fail(at, "keys", "each key once", quoted(out[b]) + " twice", kAdviseConvert);
      });
  return out;
}

}  // namespace

void TorchFile::read_stream(std::vector<PickleGlobal>& globals) {
  const MappedFile& file = *files()[0];
  Cursor in(file);
  Stream stream(in, globals);
  const Pickle magic = stream.next("magic");
  if (magic.root.kind != Kind::BigInt || magic.root.text() != kMagic)
    in.fail(0, "pickle", "the magic number of torch.save", "another pickle",
            "if it holds weights, save them with torch.save or as safetensors");
  uint64_t at = in.pos();
  const Pickle version = stream.next("version");
  if (version.root.kind != Kind::Int || version.root.number != kVersion)
    in.fail(at, "pickle", "protocol version 1001", "another version", kAdviseConvert);
  read_machine(file, stream.next("system"));
  const Pickle pickle = stream.next("contents");
  at = in.pos();
  const Pickle list = stream.next("storages");
  const std::vector<std::string_view> keys = read_keys(in, at, list);
  const auto key_of = [&](uint32_t i) { return pickle.storages[i].key; };
  const std::vector<uint32_t> used = sorted_by(pickle.storages.size(), key_of);
  std::vector<uint32_t> numbers(pickle.storages.size(), UINT32_MAX);
  for (size_t i = 0; i < keys.size(); ++i) {
    in.enter("storage", i, keys.size());
    const auto [first, last] =
        std::equal_range(used.begin(), used.end(), UINT32_MAX, [&](uint32_t x, uint32_t y) {
          return (x == UINT32_MAX ? keys[i] : key_of(x)) < (y == UINT32_MAX ? keys[i] : key_of(y));
        });
    if (first == last)
      in.fail(at, "key", "a storage that the contents use", quoted(keys[i]), kAdviseConvert);
    const uint64_t size_at = in.pos();
    const auto n = in.read<uint64_t>("number of elements");
    uint64_t nbytes = 0;
    for (auto s = first; s != last; ++s) {
      const PickleStorage& p = pickle.storages[*s];
      if (p.n_elements != n || p.type.block_bytes != pickle.storages[*first].type.block_bytes)
        in.fail(size_at, "number of elements", grouped(p.n_elements) + " as in the contents",
                grouped(n), kAdviseConvert);
      nbytes = n * p.type.block_bytes;
      numbers[*s] = static_cast<uint32_t>(storages_.size());
    }
    storages_.push_back({in.pos(), nbytes, nbytes, false, false, 0});
    in.skip(nbytes, "data");
  }
  in.enter("contents", 0, 0);
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] == UINT32_MAX)
      in.fail(pickle.storages[i].offset, "storage", "a key in the list of storages",
              quoted(pickle.storages[i].key), kAdviseConvert);
  if (in.remaining() > 0)
    in.fail(in.pos(), "end", "the end of the file", grouped(in.remaining()) + " bytes more",
            kAdviseConvert);
  build(pickle, in, numbers);
}

}  // namespace pyflow
