// Runs every kernel of every table that this CPU has on the same data, prints a digest of what each
// kernel wrote, and exits with 1 unless all tables wrote the same bits as the scalar one. The data
// come from integer arithmetic, so that the digests of two machines can be compared too.
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "driver_data.h"
#include "encode_driver.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

static_assert(
    sizeof(KernelTable) ==
        (1 + 2 * kDTypeCount + 24) * sizeof(void*) + sizeof(KernelTable::scratch_nbytes),
    "run() has to know every kernel but dot_peak, which only takes time, and tiles_agree, "
    "prefill_matmul, panel_row and prefill_attend, which have an arithmetic of their own");

// Random blocks, those drawn again whose values a random f16 scale made very small or large.
std::vector<uint8_t> random_weights(Random& random, DType dtype, int64_t rows, int64_t cols) {
  const DTypeInfo& format = info(dtype);
  std::vector<uint8_t> weights;
  std::vector<uint8_t> block(format.block_bytes);
  std::vector<float> values(format.block);
  for (int64_t i = 0; i < rows * cols / format.block; ++i) {
    for (bool good = false; !good;) {
      for (uint8_t& b : block) b = static_cast<uint8_t>(random.bits());
      dequantize(dtype, block.data(), format.block, values.data());
      float top = 0.0f;
      for (const float v : values) top = std::fabs(v) <= top ? top : std::fabs(v);
      good = 0x1p-8f < top && top < 4.0f;
    }
    weights.insert(weights.end(), block.begin(), block.end());
  }
  return weights;
}

std::vector<ActBlock> quantize_rows(const KernelTable& t, const std::vector<float>& x, int64_t k,
                                    int64_t n_rows) {
  const int64_t n_kb = (k + kActBlock - 1) / kActBlock;
  std::vector<ActBlock> acts(static_cast<size_t>(n_rows * n_kb));
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t first = act_index(r, 0, n_rows, n_kb);
    const int64_t stride = n_kb > 1 ? act_index(r, 1, n_rows, n_kb) - first : 1;
    t.quantize(x.data() + r * k, k, acts.data() + first, stride);
  }
  return acts;
}

void run_quantize(const KernelTable& t, Random& random, Record& out) {
  for (const int64_t k : {1, 32, 64, 70, 576})
    for (const bool odd : {false, true})
      for (const ActBlock& a :
           quantize_rows(t, odd ? random.odd_reals(3 * k) : random.reals(3 * k), k, 3)) {
        out.add("quantize", {reinterpret_cast<const uint8_t*>(a.q), sizeof a.q});
        out.add("quantize", std::vector<float>{a.scale[0], a.scale[1], a.fsum32[0], a.fsum32[1]});
        out.add("quantize", std::vector<int32_t>{a.sum32[0], a.sum32[1], a.sum16[0], a.sum16[1],
                                                 a.sum16[2], a.sum16[3]});
      }
}

void run_matmul(const KernelTable& t, Random& random, Record& out) {
  constexpr int64_t kRows = 72, kTiles = 5;
  constexpr size_t kLine = 64;
  std::vector<uint8_t> memory(static_cast<size_t>(t.scratch_nbytes) + kLine);
  uint8_t* const scratch =
      memory.data() + (kLine - reinterpret_cast<uintptr_t>(memory.data()) % kLine) % kLine;
  for (const DTypeInfo& format : kDTypes)
    for (const int64_t blocks : {1, 3, 7}) {
      const int64_t k = format.block == 1 ? 11 * blocks : blocks * format.block;
      const PackedTensor w = PackedTensor::pack(
          random_weights(random, format.dtype, kRows, k).data(), kRows, k, format.dtype);
      for (const int64_t n_rows : {1, 2, 3, 8, 17}) {
        const std::vector<float> x = random.reals(n_rows * k);
        const std::vector<ActBlock> acts = quantize_rows(t, x, k, n_rows);
        std::vector<float> y = poisoned(n_rows * kTiles * kTileRows);
        const auto prefetch = static_cast<Prefetch>(n_rows % 3);
        MatmulArgs args = {w.data(), k,        acts.data(),        x.data(), k,
                           n_rows,   y.data(), kTiles * kTileRows, prefetch};
        args.scratch = scratch;
        const auto multiply = t.matmul[static_cast<size_t>(format.dtype)];
        multiply(args, 3, 4);
        out.add("matmul " + std::string(format.name), y);
        multiply(args, 0, kTiles);
        out.add("matmul " + std::string(format.name), y);
      }
    }
}

void run_elementwise(const KernelTable& t, Random& random, Record& out) {
  // Calls f on fresh copies of n values, plain and odd, and records what it made of them.
  const auto each = [&](const std::string& kernel, auto f) {
    for (const int64_t n : {1, 15, 16, 17, 64, 100, 576})
      for (const bool odd : {false, true}) {
        std::vector<float> x = odd ? random.odd_reals(n) : random.reals(n);
        f(x, random.reals(n), n);
        out.add(kernel, x);
      }
  };
  using V = std::vector<float>;
  each("rms_norm", [&](V& x, const V& y, int64_t n) {
    const V in = x;
    t.rms_norm(in.data(), y.data(), 1e-5f, n, x.data());
  });
  each("layer_norm", [&](V& x, const V& y, int64_t n) {
    const V in = x;
    t.layer_norm(in.data(), y.data(), 1e-5f, n, x.data());
  });
  each("add", [&](V& x, const V& y, int64_t n) { t.add(x.data(), y.data(), n); });
  each("add_scaled",
       [&](V& x, const V& y, int64_t n) { t.add_scaled(x.data(), y.data(), 0.3f, n); });
  each("scale", [&](V& x, const V&, int64_t n) { t.scale(x.data(), 0.3f, n); });
  each("softcap", [&](V& x, const V&, int64_t n) { t.softcap(x.data(), 1.7f, n); });
  for (const auto& [name, activation] :
       {std::pair("silu", Activation::Silu), std::pair("gelu", Activation::Gelu),
        std::pair("gelu_tanh", Activation::GeluTanh), std::pair("relu", Activation::Relu),
        std::pair("swiglu_clamped", Activation::SwigluClamped)}) {
    const std::string of = std::string(" ") + name;
    each("gate" + of,
         [&](V& x, const V& y, int64_t n) { t.gate(activation, x.data(), y.data(), n); });
    each("activate" + of, [&](V& x, const V&, int64_t n) { t.activate(activation, x.data(), n); });
  }
  for (const bool interleaved : {false, true})
    each(interleaved ? "rope interleaved" : "rope half", [&](V& x, const V&, int64_t n) {
      const V cos_sin = random.reals(n / 2 * 2);
      t.rope(x.data(), cos_sin.data(), n / 2, interleaved);
    });
  for (const int64_t n : {1, 15, 16, 17, 64, 100, 576}) {
    const V ninf(static_cast<size_t>(n), -std::numeric_limits<float>::infinity());
    for (const V& x : {random.reals(n), random.odd_reals(n), ninf})
      out.add("log_sum_exp", std::vector<double>{t.log_sum_exp(x.data(), n)});
  }
  for (const int64_t n : {64, 512, 576, 4160}) {
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random.bits());
    out.add("read_bytes", std::vector<uint64_t>{t.read_bytes(bytes.data(), n, n < 576)});
  }
}

struct View {
  std::vector<int32_t> slots, positions;
  RowView row() const {
    return {slots.data(), positions.data(), static_cast<int64_t>(slots.size())};
  }
};

void run_cache(const KernelTable& t, Random& random, Record& out, CacheType type, int64_t key_dim,
               int64_t value_dim) {
  constexpr int64_t kSlots = 1040, kHeads = 2, kQueryHeads = 14, kRows = 7;
  const std::string name = type == CacheType::F16 ? " F16" : " Q8_0";
  const auto nbytes = [type](int64_t dim) {
    const int64_t n = kSlots * kHeads * dim;
    return static_cast<size_t>(type == CacheType::F16 ? n * 2 : n / 32 * 34);
  };
  std::vector<uint8_t> keys(nbytes(key_dim)), values(nbytes(value_dim));
  const KvView kv = {keys.data(), values.data(), type, kHeads, key_dim, value_dim};

  for (int64_t slot = 0; slot < kSlots; ++slot)
    for (int64_t head = 0; head < kHeads; ++head) {
      // Slot 3 is poisoned, and some rows see it.
      const auto k = slot == 3 ? random.odd_reals(key_dim) : random.reals(key_dim);
      const auto v = slot == 3 ? random.odd_reals(value_dim) : random.reals(value_dim);
      t.store_kv(kv, slot, head, k.data(), v.data());
    }
  out.add("store_kv" + name, keys);
  out.add("store_kv" + name, values);
  for (const int64_t slot : {0, 3, 517}) {
    std::vector<float> k = poisoned(kHeads * key_dim);
    t.load_k(kv, slot, k.data());
    out.add("load_k" + name, k);
  }
  for (const int64_t slot : {5, 700}) t.store_k(kv, slot, random.reals(kHeads * key_dim).data());
  out.add("store_k" + name, keys);

  // In a row from the start; the same and one more; in a row from inside a block; with gaps and in
  // any order; far apart; one cell; none.
  std::vector<View> views(kRows);
  for (int32_t i = 0; i < 700; ++i) {
    const auto put = [&](size_t view, int32_t slot, int32_t position) {
      views[view].slots.push_back(slot);
      views[view].positions.push_back(position);
    };
    if (i < 699) put(0, 10 + i, i);
    put(1, 10 + i, i);
    if (i < 200) put(2, 5 + i, 37 + i);
    if (random.below(3)) put(3, static_cast<int32_t>(i * 577 % kSlots), i);
    if (i < 40) put(4, static_cast<int32_t>(random.below(kSlots)), i * 100);
    if (i == 0) put(5, 3, 1000);
  }
  std::vector<RowView> rows;
  for (const View& v : views) rows.push_back(v.row());

  const std::vector<float> q = random.reals(kRows * kQueryHeads * key_dim);
  const std::vector<float> slopes = random.reals(kQueryHeads);
  for (const float softcap : {0.0f, 20.0f}) {
    const int64_t q_stride = kQueryHeads * key_dim, stride = kQueryHeads * value_dim;
    std::vector<float> y = poisoned(kRows * stride);
    const AttendArgs args = {
        kv,          q.data(),    q_stride, y.data(), stride,
        rows.data(), kQueryHeads, 0.11f,    softcap,  softcap > 0 ? slopes.data() : nullptr};
    for (int64_t head = 0; head < kHeads; ++head) t.attend(args, 0, kRows, head);
    out.add("attend" + name, y);

    y.assign(y.size(), kPoison);
    constexpr int64_t kSpans = 4, kGroup = kQueryHeads / kHeads;
    const int64_t size = kGroup * (value_dim + 2);
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<float> partials = poisoned(kSpans * size);
      for (int64_t span = 0; span < kSpans; ++span)
        t.attend_span(args, r, 1, span, partials.data() + span * size);
      out.add("attend_span" + name, partials);
      t.attend_merge(args, r, 1, partials.data(), kSpans);
    }
    out.add("attend_merge" + name, y);
  }
}

void run_text(const KernelTable& t, Random& random, Record& out, int64_t key_dim,
              int64_t value_dim) {
  constexpr int64_t kRows = 37, kKvHeads = 2, kQueryHeads = 4, kReach = 9;
  const int64_t k_dim = kKvHeads * key_dim, v_dim = kKvHeads * value_dim;
  const std::vector<float> k = random.reals(kRows * k_dim);
  std::vector<float> keys = poisoned((kRows + kTextKeys - 1) / kTextKeys * kTextKeys * k_dim);
  for (int64_t r = 0; r < kRows; r += kTextKeys)
    t.store_text_keys(k.data() + r * k_dim, k_dim, std::min(kTextKeys, kRows - r), k_dim,
                      keys.data() + r * k_dim);
  out.add("store_text_keys", keys);

  const std::vector<float> q = random.reals(kRows * kQueryHeads * key_dim);
  const std::vector<float> v = random.reals(kRows * v_dim + kTextKeys);
  const std::vector<float> slopes = random.reals(kQueryHeads);
  const std::vector<float> bias = random.reals(kQueryHeads * (2 * kReach + 1));
  for (const int64_t window : {0, 5})
    for (const bool biased : {false, true}) {
      std::vector<float> y = poisoned(kRows * kQueryHeads * value_dim);
      const TextArgs args = {.q = q.data(),
                             .q_stride = kQueryHeads * key_dim,
                             .k = keys.data(),
                             .v = v.data(),
                             .v_stride = v_dim,
                             .out = y.data(),
                             .out_stride = kQueryHeads * value_dim,
                             .n = kRows,
                             .n_heads = kQueryHeads,
                             .n_kv_heads = kKvHeads,
                             .key_dim = key_dim,
                             .value_dim = value_dim,
                             .scale = 0.11f,
                             .softcap = window > 0 ? 20.0f : 0.0f,
                             .window = window,
                             .slopes = biased ? slopes.data() : nullptr,
                             .bias = biased ? bias.data() : nullptr,
                             .bias_reach = kReach};
      for (int64_t head = 0; head < kQueryHeads; ++head) {
        t.attend_text(args, 0, 20, head);
        t.attend_text(args, 20, kRows, head);
      }
      out.add("attend_text", y);
    }
}

Record run(const KernelTable& t) {
  Random random;
  Record out;
  run_quantize(t, random, out);
  run_matmul(t, random, out);
  run_elementwise(t, random, out);
  run_encode(encode_table(t), random, out);
  for (const auto& [key_dim, value_dim] : {std::pair(32, 32), std::pair(96, 64)}) {
    run_cache(t, random, out, CacheType::F16, key_dim, value_dim);
    run_cache(t, random, out, CacheType::Q8_0, key_dim, value_dim);
    run_text(t, random, out, key_dim, value_dim);
  }
  return out;
}

uint64_t digest(const std::vector<uint8_t>& bytes) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325;
  for (const uint8_t b : bytes) h = (h ^ b) * 0x100000001b3;
  return h;
}

}  // namespace
}  // namespace pyflow

int main() {
  using namespace pyflow;
  const std::vector<const KernelTable*> tables = runnable_tables();
  const Record expected = run(*tables.front());
  bool same = true;
  std::printf("tables:");
  for (const KernelTable* t : tables) std::printf(" %s", t->name);
  std::printf("\n");
  for (const auto& [kernel, bytes] : expected.written())
    std::printf("%016llx %zu %s\n", static_cast<unsigned long long>(digest(bytes)), bytes.size(),
                kernel.c_str());
  for (const KernelTable* t : std::span(tables).subspan(1)) {
    const Record found = run(*t);
    for (size_t i = 0; i < expected.written().size(); ++i) {
      const auto& [kernel, bytes] = expected.written()[i];
      if (found.written()[i].second == bytes) continue;
      std::printf("%s: %s differs from the scalar table's\n", t->name, kernel.c_str());
      same = false;
    }
  }
  return same ? 0 : 1;
}
