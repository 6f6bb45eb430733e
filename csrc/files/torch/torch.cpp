#include "files/torch/torch.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/torch/crc32.h"
#include "files/torch/zip.h"
#include "files/twins.h"

namespace pyflow {
namespace {

// A deflated pickle is unpacked when the file is opened, so it must be one that is worth it.
constexpr uint64_t kMaxUnpackedPickle = 64 << 20;

[[noreturn]] void refuse_member(const MappedFile& file, const ZipMember& m, std::string_view field,
                                std::string_view expected, const std::string& found) {
  Cursor in(file);
  in.enter("zip member", 0, 0);
  in.name(m.name);
  in.fail(m.offset, field, expected, found, kAdviseDownload);
}

// The folder in which everything lies: that of the only data.pkl.
std::string prefix_of(const MappedFile& file, const std::vector<ZipMember>& members) {
  constexpr std::string_view kPickle = "data.pkl";
  const ZipMember* found = nullptr;
  for (const ZipMember& m : members) {
    const bool in_folder =
        m.name.ends_with("/data.pkl") && std::count(m.name.begin(), m.name.end(), '/') == 1;
    if (!in_folder && m.name != kPickle) continue;
    if (found) refuse_member(file, m, "name", "one data.pkl", "a second data.pkl");
    found = &m;
  }
  if (!found)
    throw FormatError(file.label() + ": zip directory: expected <name>/data.pkl, found " +
                      grouped(members.size()) +
                      " members and none of that name; this archive is no checkpoint of PyTorch, "
                      "perhaps one of several: unpack it and look inside");
  return found->name.substr(0, found->name.size() - kPickle.size());
}

}  // namespace

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, Inflate inflate)
    : Checkpoint(file->label()), inflate_(std::move(inflate)) {
  add_file(std::move(file));
}

std::shared_ptr<TorchFile> TorchFile::open(const std::string& path, const Inflate& inflate) try {
  std::shared_ptr<TorchFile> f(new TorchFile(std::make_shared<const MappedFile>(path), inflate));
  std::vector<PickleGlobal> globals;
  f->read(globals);
  f->globals_ = std::move(globals);
  return f;
} catch (const std::bad_alloc&) {
  throw ResourceError(printable(path, 4096) +
                      ": not enough memory for its pickle; close other programs");
}

TorchFile::Inspection TorchFile::inspect(const std::string& path, const Inflate& inflate) {
  TorchFile f(std::make_shared<const MappedFile>(path), inflate);
  Inspection out;
  try {
    f.read(out.globals);
  } catch (const Error& e) {
    out.error = e.what();
  }
  return out;
}

void TorchFile::read(std::vector<PickleGlobal>& globals) {
  const MappedFile& file = *files()[0];
  zipped_ = file.size() >= 4 && load<uint32_t>(file.data()) == 0x04034b50;
  if (zipped_)
    read_zip_archive(globals);
  else
    read_stream(globals);
}

static void require_little_endian(const MappedFile& file, const ZipMember& member,
                                  std::string_view found) {
  if (found == "little") return;
  throw UnsupportedError(file.label() + ": zip member " + quoted(member.name) +
                         ": expected 'little', found " + quoted(found) +
                         "; save the model again on a little-endian machine");
}

// Refuses unknown globals by name, and TorchScript whose globals are all known.
static void refuse_programs(const Pickle& pickle, bool is_script, const Cursor& in,
                            const MappedFile& file) {
  const auto runs_code = [](const PickleGlobal& g) { return g.runs_code; };
  if (!is_script || std::any_of(pickle.globals.begin(), pickle.globals.end(), runs_code))
    return pickle.refuse_unknown(in);
  throw UnsupportedError(file.label() +
                         ": expected weights, found TorchScript, a program with its weights; "
                         "nothing was run here: have its owner save the state_dict alone, best "
                         "as safetensors");
}

void TorchFile::read_zip_archive(std::vector<PickleGlobal>& globals) {
  const MappedFile& file = *files()[0];
  const std::vector<ZipMember> members = read_zip(file);
  const std::string prefix = prefix_of(file, members);
  const std::vector<uint32_t> order =
      sorted_by(members.size(), [&](uint32_t i) -> std::string_view { return members[i].name; });
  const auto find = [&](const std::string& name) -> const ZipMember* {
    const auto it =
        std::lower_bound(order.begin(), order.end(), name,
                         [&](uint32_t i, const std::string& n) { return members[i].name < n; });
    return it == order.end() || members[*it].name != name ? nullptr : &members[*it];
  };
  const auto bytes_of = [&](const ZipMember& m) {
    std::shared_ptr<const uint8_t> data(files()[0], file.data() + m.offset);
    if (m.nbytes > kMaxUnpackedPickle)
      refuse_member(file, m, "size", "at most 67,108,864 bytes", grouped(m.nbytes));
    if (m.deflated) data = unpacked({m.offset, m.nbytes, m.packed, true, true, m.crc});
    if (crc32(data.get(), m.nbytes) != m.crc)
      refuse_member(file, m, "CRC", grouped(m.crc), grouped(crc32(data.get(), m.nbytes)));
    return data;
  };
  if (const ZipMember* order_of_bytes = find(prefix + "byteorder")) {
    const auto data = bytes_of(*order_of_bytes);
    require_little_endian(
        file, *order_of_bytes,
        {reinterpret_cast<const char*>(data.get()), static_cast<size_t>(order_of_bytes->nbytes)});
  }
  const ZipMember& m = *find(prefix + "data.pkl");
  const auto data = bytes_of(m);
  // Offsets in a deflated member are counted from its start.
  Cursor in(Bytes{file.label(), data.get(), m.nbytes, m.deflated ? 0 : m.offset, "pickle"});
  in.enter("data.pkl", 0, 0);
  Pickle pickle;
  const auto keep_globals = [&] {
    globals.insert(globals.end(), pickle.globals.begin(), pickle.globals.end());
  };
  const bool is_script = find(prefix + "constants.pkl") != nullptr;
  try {
    pickle.run(in);
  } catch (const Error&) {
    keep_globals();
    refuse_programs(pickle, is_script, in, file);
    throw;
  }
  keep_globals();
  refuse_programs(pickle, is_script, in, file);
  if (in.remaining() > 0)
    in.fail(in.pos(), "end", "the end of the pickle", grouped(in.remaining()) + " bytes more",
            kAdviseConvert);
  std::vector<uint32_t> numbers;
  std::vector<uint32_t> number_of(members.size(), UINT32_MAX);
  for (const PickleStorage& s : pickle.storages) {
    const std::string name = prefix + "data/" + std::string(s.key);
    const ZipMember* storage = find(name);
    const uint64_t nbytes = s.n_elements * s.type.block_bytes;
    if (!storage || storage->nbytes < nbytes)
      in.fail(s.offset - in.in_file(0), "storage",
              grouped(nbytes) + " bytes as member " + quoted(name),
              storage ? grouped(storage->nbytes) + " bytes" : std::string("no such member"),
              kAdviseDownload);
    uint32_t& number = number_of[static_cast<size_t>(storage - members.data())];
    if (number == UINT32_MAX) {
      number = static_cast<uint32_t>(storages_.size());
      storages_.push_back({storage->offset, storage->nbytes, storage->packed, storage->deflated,
                           true, storage->crc});
    }
    numbers.push_back(number);
  }
  build(pickle, in, numbers);
}

void TorchFile::build(const Pickle& pickle, const Cursor& in,
                      const std::vector<uint32_t>& numbers) {
  Cursor names = in;
  TorchContents contents = collect(pickle, names);
  metadata_ = std::move(contents.entries);
  cache_.resize(storages_.size());
  checked_.resize(storages_.size());
  std::vector<TensorRow> table;
  for (auto& [name, number] : contents.tensors) {
    const PickleTensor& p = pickle.tensors[number];
    if (!p.lazy.empty())
      throw UnsupportedError(label() + ": tensor " + quoted(name) +
                             ": expected plain values, found values to be " +
                             std::string(p.lazy == "conj" ? "conjugated (conj)" : "negated (neg)") +
                             "; save the model again with resolve_conj() and resolve_neg() of it");
    const uint32_t storage = numbers[p.storage];
    TensorRow& t = table.emplace_back();
    t.name = std::move(name);
    t.set_type(p.type);
    t.shape = p.shape;
    uint64_t n = 0;
    count_elements(t.shape, n);
    t.nbytes = n * t.block_bytes;
    t.span = t.nbytes;
    // Dimensions of one element go nowhere, whatever their stride.
    bool contiguous = true;
    uint64_t step = 1, last = 0;
    for (size_t d = t.shape.size(); d-- > 0;) {
      const auto stride = static_cast<uint64_t>(p.strides[d]);
      contiguous = contiguous && (t.shape[d] == 1 || stride == step);
      step *= static_cast<uint64_t>(t.shape[d]);
      last += static_cast<uint64_t>(t.shape[d] - 1) * stride;
    }
    if (n > 0 && !contiguous) {
      t.strides = p.strides;
      t.span = (last + 1) * t.block_bytes;
    }
    // Of a deflated storage: where its packed bytes start, for there is no better place.
    const TorchStorage& s = storages_[storage];
    t.offset = s.offset + (s.deflated || n == 0 ? 0 : p.first_byte);
    storage_of_.push_back(storage);
    first_byte_.push_back(p.first_byte);
  }
  set_table(std::move(table));
}

std::string TorchFile::hindrance(const TensorRow& t) const {
  const size_t line = static_cast<size_t>(&t - table().data());
  if (storages_[storage_of_[line]].deflated) return "deflated bytes in a zip archive";
  return Checkpoint::hindrance(t);
}

std::shared_ptr<const uint8_t> TorchFile::unpacked(const TorchStorage& s) const {
  const MappedFile& file = *files()[0];
  if (!inflate_)
    throw UnsupportedError(file.label() + ": zip member at byte " + grouped(s.offset) +
                           ": expected a stored member, found a deflated one; pack the archive "
                           "again without compression");
  auto data = inflate_(file.data() + s.offset, s.packed, s.nbytes);
  if (!data)
    throw FormatError(file.label() + ": zip member: deflated bytes at byte " + grouped(s.offset) +
                      ": expected " + grouped(s.nbytes) + " bytes once unpacked, found others; " +
                      std::string(kAdviseDownload));
  return data;
}

void TorchFile::check_crc(uint32_t number, const uint8_t* data) const {
  const TorchStorage& s = storages_[number];
  if (!s.has_crc || checked_[number]) return;
  if (const uint32_t found = crc32(data, s.nbytes); found != s.crc)
    throw FormatError(label() + ": storage at byte " + grouped(s.offset) + ": expected CRC " +
                      grouped(s.crc) + ", found " + grouped(found) + "; " +
                      std::string(kAdviseDownload));
  checked_[number] = 1;
}

Contents TorchFile::contents(const TensorRow& t) const {
  const size_t line = static_cast<size_t>(&t - table().data());
  const uint32_t number = storage_of_[line];
  const TorchStorage& s = storages_[number];
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const uint8_t> data;
  if (s.deflated) {
    data = cache_[number].lock();
    if (!data) cache_[number] = data = unpacked(s);
  }
  const uint8_t* begin = s.deflated ? data.get() : files()[0]->data() + s.offset;
  check_crc(number, begin);
  return {begin + (t.span > 0 ? first_byte_[line] : 0), t.span, std::move(data)};
}

}  // namespace pyflow
