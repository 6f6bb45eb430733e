#include "files/llama2c/llama2c.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"

namespace pyflow {
namespace {

constexpr uint32_t kMagic = 0x616b3432;
constexpr uint64_t kHeader0 = 28, kHeader1 = 256;
// No model of this format comes near; with them no size below overflows 64 bits: the largest
// product is n_layers * dim * hidden_dim * 4 < 2^9 * 2^17 * 2^18 * 2^2.
constexpr int32_t kMaxDim = 1 << 17, kMaxHidden = 1 << 18, kMaxLayers = 512, kMaxCount = 1 << 20;

struct Dims {
  int32_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
  bool shared;

  bool plausible() const {
    const auto within = [](int32_t v, int32_t most) { return v >= 1 && v <= most; };
    return within(dim, kMaxDim) && within(hidden_dim, kMaxHidden) && within(n_layers, kMaxLayers) &&
           within(n_heads, dim) && within(n_kv_heads, n_heads) && within(vocab_size, kMaxCount) &&
           within(seq_len, kMaxCount) && dim % n_heads == 0 && n_heads % n_kv_heads == 0;
  }
};

Dims read_dims(const uint8_t* p, int version) {
  int32_t v[7];
  for (int i = 0; i < 7; ++i) v[i] = load<int32_t>(p + 4 * i);
  const bool own = version == 0 && v[5] < 0;
  if (own) v[5] = v[5] == INT32_MIN ? 0 : -v[5];
  const bool shared = version == 0 ? !own : p[28] != 0;
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], shared};
}

// Lists tensors one behind the other.
class Table {
 public:
  explicit Table(uint64_t offset) : offset_(offset) {}

  void add(std::string name, std::vector<int64_t> shape) {
    TensorRow& t = entries.emplace_back();
    uint64_t n = 0;
    count_elements(shape, n);
    t.name = std::move(name);
    t.set_type(tensor_type(DType::F32));
    t.shape = std::move(shape);
    t.nbytes = t.span = n * sizeof(float);
    t.offset = offset_;
    offset_ += t.nbytes;
  }
  void per_layer(const Dims& d, std::string_view name, const std::vector<int64_t>& shape) {
    for (int32_t i = 0; i < d.n_layers; ++i) {
      std::string full = "layers." + std::to_string(i);
      add(full.append(".").append(name).append(".weight"), shape);
    }
  }
  uint64_t end() const { return offset_; }

  std::vector<TensorRow> entries;

 private:
  uint64_t offset_;
};

Table list(const Dims& d, int version) {
  const int64_t dim = d.dim, kv = dim / d.n_heads * d.n_kv_heads, hidden = d.hidden_dim;
  Table t(version == 0 ? kHeader0 : kHeader1);
  const auto embedding = [&] { t.add("tok_embeddings.weight", {d.vocab_size, dim}); };
  const auto attention_norm = [&] { t.per_layer(d, "attention_norm", {dim}); };
  const auto attention = [&] {
    t.per_layer(d, "attention.wq", {dim, dim});
    t.per_layer(d, "attention.wk", {kv, dim});
    t.per_layer(d, "attention.wv", {kv, dim});
    t.per_layer(d, "attention.wo", {dim, dim});
  };
  const auto ffn_norm = [&] { t.per_layer(d, "ffn_norm", {dim}); };
  const auto ffn = [&] {
    t.per_layer(d, "feed_forward.w1", {hidden, dim});
    t.per_layer(d, "feed_forward.w2", {dim, hidden});
    t.per_layer(d, "feed_forward.w3", {hidden, dim});
  };
  const auto norm = [&] { t.add("norm.weight", {dim}); };
  if (version == 0) {
    embedding(), attention_norm(), attention(), ffn_norm(), ffn(), norm();
    t.add("freqs_cos", {d.seq_len, dim / d.n_heads / 2});
    t.add("freqs_sin", {d.seq_len, dim / d.n_heads / 2});
  } else {
    attention_norm(), ffn_norm(), norm(), embedding(), attention(), ffn();
  }
  if (!d.shared) t.add("output.weight", {d.vocab_size, dim});
  return t;
}

}  // namespace

bool Llama2cFile::matches(std::string_view head) {
  if (head.size() < 40) return false;
  const auto* p = reinterpret_cast<const uint8_t*>(head.data());
  return load<uint32_t>(p) == kMagic || read_dims(p, 0).plausible();
}

Llama2cFile::Llama2cFile(std::shared_ptr<const MappedFile> file) : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::shared_ptr<Llama2cFile> Llama2cFile::open(const std::string& path) {
  std::shared_ptr<Llama2cFile> f(new Llama2cFile(std::make_shared<const MappedFile>(path)));
  const MappedFile& file = *f->files()[0];
  Cursor in(file);
  in.enter("header", 0, 0);
  in.require(kHeader0, "dims");
  int version = 0;
  if (load<uint32_t>(in.data()) == kMagic) {
    in.require(kHeader1, "header");
    in.skip(4, "magic");
    version = in.read<int32_t>("version");
    if (version != 1)
      throw UnsupportedError(in.describe(4, "version", "1", std::to_string(version),
                                         "export the model again with --version 1"));
  }
  const uint64_t dims_at = in.pos();
  const Dims d = read_dims(in.data(), version);
  if (!d.plausible())
    in.fail(dims_at, "dims", "positive values, with dim a multiple of n_heads",
            "dim " + std::to_string(d.dim) + ", n_heads " + std::to_string(d.n_heads) + ", ...",
            kAdviseConvert);
  Table table = list(d, version);
  if (table.end() != file.size())
    in.fail(dims_at, "dims", "dims for a file of " + grouped(file.size()) + " bytes",
            "dims that need " + grouped(table.end()), kAdviseDownload);
  const auto add = [&](const char* key, int64_t value) {
    f->metadata_.push_back({key, MetadataScalar(value)});
  };
  add("version", version), add("dim", d.dim), add("hidden_dim", d.hidden_dim);
  add("n_layers", d.n_layers), add("n_heads", d.n_heads), add("n_kv_heads", d.n_kv_heads);
  add("vocab_size", d.vocab_size), add("seq_len", d.seq_len);
  f->set_table(std::move(table.entries));
  return f;
}

}  // namespace pyflow
