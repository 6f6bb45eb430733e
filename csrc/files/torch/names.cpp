#include <utility>

#include "core/message.h"
#include "files/torch/torch.h"
#include "files/twins.h"

namespace pyflow {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNames = 1 << 20;
// Of all paths together: a container that is reached on many ways is named on each.
constexpr uint64_t kMaxNameBytes = 16 << 20;
constexpr size_t kMaxName = 4096;
// What models are saved under, beside optimizers and the like.
constexpr std::string_view kModels[] = {"state_dict", "model"};
constexpr int kMaxModels = 4;  // of such names, one in the other

bool is_container(Kind k) {
  return k == Kind::Dict || k == Kind::List || k == Kind::Tuple || k == Kind::Set;
}

bool is_text(const PickleValue& v) { return v.kind == Kind::Text || v.kind == Kind::Bytes; }

MetadataScalar scalar(const Pickle& p, const PickleValue& v) {
  switch (v.kind) {
    case Kind::Bool:
      return v.truth;
    case Kind::Int:
      return v.number;
    case Kind::Float:
      return v.real;
    case Kind::Text:
    case Kind::Bytes:
      return std::string(v.text());
    case Kind::BigInt:
      return BigInt{std::string(v.text())};
    case Kind::Type:
      return std::string(p.types[v.index].name);
    case Kind::Global:
      return p.globals[v.index].full();
    default:
      return std::monostate{};
  }
}

class Collector {
 public:
  Collector(const Pickle& pickle, Cursor& in) : pickle_(pickle), in_(in) {}

  TorchContents run() {
    find_models();
    pending_.push_back({&pickle_.root, "", 0});
    while (!pending_.empty()) {
      const Item item = std::move(pending_.back());
      pending_.pop_back();
      visit(item);
    }
    const auto name = [&](uint32_t i) -> std::string_view { return out_.tensors[i].first; };
    each_twins(out_.tensors.size(), name, [&](uint32_t, uint32_t b) {
      in_.name(name(b));
      in_.fail(pickle_.tensors[out_.tensors[b].second].offset - in_.in_file(0), "name",
               "each name once", "it twice",
               "entries of its dicts get the same name here, as 'a.b' and a 'b' in 'a' do: have "
               "their owner save the state_dict alone");
    });
    return std::move(out_);
  }

 private:
  struct Item {
    const PickleValue* value;
    std::string path;
    size_t depth;
  };

  // Lists the containers around the model's own dict, which give no part of a name.
  void find_models() {
    const PickleValue* at = &pickle_.root;
    for (int i = 0; i < kMaxModels; ++i) {
      const PickleValue* next = nullptr;
      for (const std::string_view key : kModels)
        if (!next) next = member(*at, key);
      if (!next) return;
      models_.push_back(next);
      at = next;
    }
  }

  const PickleValue* member(const PickleValue& dict, std::string_view key) const {
    if (dict.kind != Kind::Dict) return nullptr;
    const auto& items = pickle_.items_of(dict);
    for (size_t i = 0; i + 1 < items.size(); i += 2)
      if (is_text(items[i]) && items[i].text() == key && items[i + 1].kind == Kind::Dict)
        return &items[i + 1];
    return nullptr;
  }

  bool is_model(const PickleValue* v) const {
    for (const PickleValue* m : models_)
      if (m == v) return true;
    return false;
  }

  [[noreturn]] void fail(std::string_view field, std::string_view expected) {
    in_.fail(0, field, expected, "more", kAdviseConvert);
  }

  void count(const std::string& name) {
    name_bytes_ += name.size();
    if (++n_names_ > kMaxNames) fail("contents", "at most 1,048,576 values");
    if (name_bytes_ > kMaxNameBytes) fail("contents", "names of at most 16,777,216 bytes in all");
  }

  void visit(const Item& item) {
    const PickleValue& v = *item.value;
    count(item.path);
    if (v.kind == Kind::Tensor) {
      out_.tensors.emplace_back(item.path.empty() ? "tensor" : item.path, v.index);
    } else if (!is_container(v.kind)) {
      out_.entries.push_back({item.path, scalar(pickle_, v)});
    } else if (v.kind != Kind::Dict && !holds_containers(v)) {
      std::vector<MetadataScalar> list;
      for (const PickleValue& i : pickle_.items_of(v)) list.push_back(scalar(pickle_, i));
      n_names_ += list.size();
      out_.entries.push_back({item.path, std::move(list)});
    } else {
      descend(item);
    }
  }

  bool holds_containers(const PickleValue& v) const {
    for (const PickleValue& i : pickle_.items_of(v))
      if (is_container(i.kind) || i.kind == Kind::Tensor) return true;
    return false;
  }

  // Puts the members on the pile, the first on top.
  void descend(const Item& item) {
    if (item.depth == kMaxDepth) fail("contents", "at most 64 containers in each other");
    const PickleValue& v = *item.value;
    const auto& items = pickle_.items_of(v);
    const bool dict = v.kind == Kind::Dict;
    const size_t n = dict ? items.size() / 2 : items.size();
    if (n + pending_.size() > kMaxNames) fail("contents", "at most 1,048,576 values");
    for (size_t i = n; i-- > 0;) {
      const PickleValue* child = &items[dict ? 2 * i + 1 : i];
      std::string path = is_model(child)
                             ? item.path
                             : join(item.path, dict ? key(items[2 * i], i) : std::to_string(i));
      // Of what waits on the pile too.
      name_bytes_ += path.size();
      if (name_bytes_ > kMaxNameBytes) fail("contents", "names of at most 16,777,216 bytes in all");
      pending_.push_back({child, std::move(path), item.depth + 1});
    }
  }

  // Keys of other kinds than text and integers go by their position.
  std::string key(const PickleValue& v, size_t position) {
    if (v.kind == Kind::Int) return std::to_string(v.number);
    if (!is_text(v)) {
      std::string place = "[";
      place += std::to_string(position);
      return place + ']';
    }
    if (v.size > kMaxName || !is_utf8(v.text()))
      in_.fail(0, "key", "at most 4,096 bytes of UTF-8", quoted(v.text()), kAdviseConvert);
    return std::string(v.text());
  }

  std::string join(const std::string& path, const std::string& key) {
    std::string joined = path;
    if (!path.empty()) joined += '.';
    joined += key;
    if (joined.size() > kMaxName) fail("contents", "names of at most 4,096 bytes");
    return joined;
  }

  const Pickle& pickle_;
  Cursor& in_;
  TorchContents out_;
  std::vector<Item> pending_;
  std::vector<const PickleValue*> models_;
  size_t n_names_ = 0;
  uint64_t name_bytes_ = 0;
};

}  // namespace

TorchContents collect(const Pickle& pickle, Cursor& in) { return Collector(pickle, in).run(); }

}  // namespace pyflow
