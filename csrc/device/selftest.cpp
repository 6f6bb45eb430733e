#include "device/selftest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>

#include "core/buffer.h"
#include "device/selftest_values.h"
#include "kernels/dispatch.h"
#include "quant/half.h"
#include "quant/packed_tensor.h"

namespace pyflow::device {
namespace {

class SelfTest {
 public:
  SelfTest(Ops& ops, std::span<const DType> formats)
      : ops_(ops),
        formats_(formats),
        queue_(ops.device().make_queue()),
        law_(kernel_table("scalar")) {}

  std::string run() {
    const std::function<std::string()> checks[] = {
        [&] { return arithmetic(); },
        [&] { return single_values(); },
        [&] { return norms(); },
        [&] { return turns(); },
        [&] { return quantized(false); },
        [&] { return quantized(true); },
        [&] { return attention(CacheType::F16, 64); },
        [&] { return attention(CacheType::F16, 16); },  // fewer than the items of a group
        [&] { return attention(CacheType::Q8_0, 96); },
        [&] { return choice_fault(ops_); },
    };
    for (const auto& check : checks)
      if (std::string fault = check(); !fault.empty()) return fault;
    return products({1, 3});
  }
  // As many rows as matrix units take.
  std::string run_units() { return products({37}); }

 private:
  using Held = std::unique_ptr<DeviceBuffer>;

  template <class T>
  Held upload(const std::vector<T>& from) {
    Held held = ops_.device().allocate(from.size() * sizeof(T), "self-test");
    queue_->upload(from.data(), *held, 0, from.size() * sizeof(T));
    queue_->finish();  // `from` may be gone after this
    return held;
  }
  template <class T>
  std::vector<T> fetch(const DeviceBuffer& from) {
    std::vector<T> to(from.nbytes() / sizeof(T));
    queue_->download(from, 0, to.data(), from.nbytes());
    queue_->finish();
    return to;
  }
  // What an operation on n_rows rows makes of x in place.
  template <class Run>
  Floats after(const Floats& x, int64_t n_rows, Run run) {
    const Held held = upload(x);
    run(FloatRows{held.get(), 0, static_cast<int64_t>(x.size()) / n_rows});
    return fetch<float>(*held);
  }

  std::string arithmetic() {
    const int64_t n = 4000;
    Floats x = random_.patterns(3 * n);
    for (size_t i = 0; i < n; i += 3)  // cancels all but what a product loses by rounding
      x[2 * n + i] = -(x[i] * x[n + i]);
    const Held input = upload(x), y = upload(Floats(5 * n)), halves = upload(Floats(n));
    ops_.arithmetic(*queue_, *input, *y, *halves, n);
    const Floats found = fetch<float>(*y);
    Floats expected(5 * n);
    for (size_t i = 0; i < n; ++i) {
      const float a = x[i], b = x[n + i], c = x[2 * n + i], product = a * b;
      expected[i] = product + c;
      expected[n + i] = std::fma(a, b, c);
      expected[2 * n + i] = a / b;
      expected[3 * n + i] = std::sqrt(a);
      expected[4 * n + i] = std::isnan(b) ? b : quant::from_half(quant::to_half(b));
    }
    constexpr std::array kNames = {"a * b + c", "fma(a, b, c)", "a / b", "sqrt(a)", "f16(b)"};
    for (size_t op = 0; op < kNames.size(); ++op)
      for (size_t i = 0; i < n; ++i)
        if (!same(expected[op * n + i], found[op * n + i]))
          return std::string(kNames[op]) + " of " + shown(x[i]) + ", " + shown(x[n + i]) + ", " +
                 shown(x[2 * n + i]) + ": expected " + shown(expected[op * n + i]) + ", found " +
                 shown(found[op * n + i]);
    return "";
  }

  std::string single_values() {
    const int64_t n = 1000, rows = 3;
    const Floats x = random_.patterns(n * rows), y = random_.patterns(n * rows);
    const Held other = upload(y);
    const FloatRows ys = {other.get(), 0, n};
    const auto check = [&](const std::string& op, auto law, auto run) {
      Floats expected = x;
      law(expected.data());
      return differing(op, x, expected, after(x, rows, run));
    };
    std::string fault;
    const auto first = [&](std::string found) {
      if (fault.empty()) fault = std::move(found);
    };
    constexpr std::array kNames = {"silu", "gelu", "gelu_tanh", "relu"};
    for (size_t i = 0; i < kNames.size(); ++i) {
      const auto activation = static_cast<Activation>(i);
      first(check(
          kNames[i], [&](float* a) { law_.gate(activation, a, y.data(), n * rows); },
          [&](FloatRows a) { ops_.gate(*queue_, activation, a, ys, rows, n); }));
      first(check(
          kNames[i], [&](float* a) { law_.activate(activation, a, n * rows); },
          [&](FloatRows a) { ops_.activate(*queue_, activation, a, rows, n); }));
    }
    for (float cap : {30.0f, 1.7f})
      first(check(
          "softcap", [&](float* a) { law_.softcap(a, cap, n * rows); },
          [&](FloatRows a) { ops_.softcap(*queue_, a, cap, rows, n); }));
    first(check(
        "add", [&](float* a) { law_.add(a, y.data(), n * rows); },
        [&](FloatRows a) { ops_.add(*queue_, a, ys, rows, n); }));
    first(check(
        "add_scaled", [&](float* a) { law_.add_scaled(a, y.data(), 0.37f, n * rows); },
        [&](FloatRows a) { ops_.add_scaled(*queue_, a, ys, 0.37f, rows, n); }));
    first(check(
        "scale", [&](float* a) { law_.scale(a, 0.37f, n * rows); },
        [&](FloatRows a) { ops_.scale(*queue_, a, 0.37f, rows, n); }));
    first(chosen_rows(x, y));
    return fault;
  }

  // What experts need: rows of y that three rows of x choose, two each, and their weighted sums.
  std::string chosen_rows(const Floats& x, const Floats& y) {
    const size_t n = x.size() / 3;
    const auto width = static_cast<int64_t>(n);
    const std::vector<int32_t> chosen = {2, 0, 1, 1, 0, 2};
    const Floats w = random_.numbers(9, 2.0f);
    const Held ys = upload(y), rows = upload(chosen), weights = upload(w);
    Floats taken = x, summed = x;
    for (size_t r = 0; r < 3; ++r) {
      const auto row = [&](size_t i) { return y.data() + static_cast<size_t>(chosen[i]) * n; };
      float* sum = std::copy_n(row(2 * r), n, summed.data() + r * n) - n;
      std::copy_n(row(r), n, taken.data() + r * n);
      law_.scale(sum, w[2 * r], width);
      law_.add_scaled(sum, row(2 * r + 1), w[2 * r + 1], width);
      law_.add_scaled(sum, y.data() + r * n, w[6 + r], width);
    }
    const FloatRows all = {ys.get(), 0, width}, places = {rows.get(), 0, 0};
    const Ops::Weighted of = {all, places, {weights.get(), 0, 0}, 2, all, {weights.get(), 6, 0}};
    const auto take = [&](FloatRows a) { ops_.take_rows(*queue_, all, places, a, 3, width); };
    const auto add_up = [&](FloatRows a) { ops_.weighted_rows(*queue_, a, of, 3, width); };
    auto fault = differing("take_rows", x, taken, after(x, 3, take));
    return fault.empty() ? differing("weighted_rows", x, summed, after(x, 3, add_up)) : fault;
  }

  std::string norms() {
    for (int64_t n : {1, 100, 896}) {
      const int64_t rows = 33;
      Floats x = random_.numbers(n * rows, 20.0f);
      const Floats weight = random_.numbers(n, 2.0f);
      for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] *= 1e-20f;  // squares are subnormal
      const Held weights = upload(weight);
      for (const bool rms : {true, false}) {
        Floats expected(x.size());
        for (int64_t r = 0; r < rows; ++r)
          (rms ? law_.rms_norm : law_.layer_norm)(x.data() + r * n, weight.data(), 1e-12f, n,
                                                  expected.data() + r * n);
        const Floats found = after(x, rows, [&](FloatRows a) {
          if (rms)
            ops_.rms_norm(*queue_, a, *weights, 1e-12f, rows, n, a);
          else
            ops_.layer_norm(*queue_, a, *weights, 1e-12f, rows, n, a);
        });
        if (auto fault = differing(rms ? "rms_norm" : "layer_norm", x, expected, found);
            !fault.empty())
          return fault;
      }
    }
    return "";
  }

  std::string turns() {
    const int64_t heads = 3, dim = 80, pairs = 37, rows = 5;
    const Floats x = random_.numbers(rows * heads * dim, 3.0f);
    const Floats angles = random_.numbers(rows * 2 * pairs, 1.0f);
    const Held held = upload(angles);
    for (const bool interleaved : {false, true}) {
      Floats expected = x;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
          law_.rope(expected.data() + (r * heads + h) * dim, angles.data() + r * 2 * pairs, pairs,
                    interleaved);
      const Floats found = after(x, rows, [&](FloatRows a) {
        ops_.rope(*queue_, a, {held.get(), 0, 2 * pairs}, {heads, dim, pairs, interleaved}, rows);
      });
      if (auto fault = differing("rope", x, expected, found); !fault.empty()) return fault;
    }
    return "";
  }

  // Rows as blocks by the law, row by row; with pairs also what is left of them.
  std::vector<ActBlock> quantized_by_law(const Floats& x, int64_t rows, int64_t k, bool pairs) {
    const int64_t n_kb = (k + kActBlock - 1) / kActBlock;
    std::vector<ActBlock> blocks(static_cast<size_t>(Ops::act_blocks(rows, k, pairs)));
    for (int64_t r = 0; r < rows; ++r) {
      ActBlock* coarse = blocks.data() + (pairs ? 2 * r : r) * n_kb;
      law_.quantize(x.data() + r * k, k, coarse, 1);
      if (!pairs) continue;
      Floats rest(static_cast<size_t>(k));
      for (int64_t i = 0; i < k; ++i) {
        const ActBlock& block = coarse[i / kActBlock];
        const int64_t at = i % kActBlock;
        const float product = block.scale[at / 32] * static_cast<float>(block.q[at]);
        rest[static_cast<size_t>(i)] = x[static_cast<size_t>(r * k + i)] - product;
      }
      law_.quantize(rest.data(), k, coarse + n_kb, 1);
    }
    return blocks;
  }

  std::string quantized(bool pairs) {
    const int64_t k = 200, rows = 40;
    Floats x = random_.numbers(rows * k, 5.0f);
    const Floats wild = random_.patterns(4 * k);
    std::copy(wild.begin(), wild.end(), x.begin());
    std::fill_n(x.begin() + 5 * k, k, 0.0f);
    const auto expected = quantized_by_law(x, rows, k, pairs);
    const Held held = upload(x),
               acts = ops_.device().allocate(expected.size() * sizeof(ActBlock), "self-test");
    ops_.quantize(*queue_, {held.get(), 0, k}, rows, k, *acts, pairs);
    const auto found = fetch<ActBlock>(*acts);
    for (size_t i = 0; i < expected.size(); ++i) {
      const ActBlock &a = expected[i], &b = found[i];
      const Floats scales = {a.scale[0], a.scale[1]}, others = {b.scale[0], b.scale[1]};
      if (auto fault = differing("quantize", {}, scales, others); !fault.empty()) return fault;
      ActBlock same = b;
      std::memcpy(same.scale, a.scale, sizeof a.scale);
      if (std::memcmp(&same, &a, sizeof a) != 0)
        return "quantize: block " + std::to_string(i) + " has other integers";
    }
    return "";
  }

  std::string products(std::initializer_list<int64_t> all_rows) {
    for (DType dtype : formats_)
      for (int64_t n_rows : all_rows)
        if (std::string fault = product(dtype, n_rows); !fault.empty()) return fault;
    return "";
  }

  std::string product(DType dtype, int64_t n_rows) {
    const bool pairs = fine_inputs(dtype), plain = float_inputs(dtype);
    const int64_t rows = 20, block = info(dtype).block,
                  k = block == 1     ? 100
                      : block >= 128 ? 2 * block
                                     : 192;
    const PackedTensor w =
        PackedTensor::pack(blocks_of(random_, dtype, rows, k).data(), rows, k, dtype);
    const int64_t width = w.tiles() * kTileRows, n_kb = (k + kActBlock - 1) / kActBlock;
    const Floats x = random_.numbers(n_rows * k, 3.0f);
    const auto acts = quantized_by_law(x, n_rows, k, pairs);
    // By the law one row at a time, which gives the bits of any number of rows.
    Floats expected(static_cast<size_t>(n_rows * width));
    for (int64_t r = 0; r < n_rows; ++r) {
      Floats halves(static_cast<size_t>(2 * width));
      for (int64_t half = 0; half < (pairs ? 2 : 1); ++half) {
        Buffer row(static_cast<size_t>(n_kb) * sizeof(ActBlock), "self-test");
        std::memcpy(row.data(), acts.data() + ((pairs ? 2 * r : r) + half) * n_kb, row.size());
        law_.matmul[static_cast<size_t>(dtype)](
            {w.data(), k, row.as<ActBlock>(), x.data() + r * k, k, 1, halves.data() + half * width,
             width, Prefetch::kNone},
            0, w.tiles());
      }
      for (int64_t i = 0; i < width; ++i)
        expected[static_cast<size_t>(r * width + i)] =
            pairs ? halves[static_cast<size_t>(i)] + halves[static_cast<size_t>(width + i)]
                  : halves[static_cast<size_t>(i)];
    }
    const Held tiles = upload(Bytes(w.data(), w.data() + w.nbytes())), input = upload(x),
               y = upload(Floats(expected.size(), NAN));
    const DeviceMatrix matrix = {tiles.get(), dtype, rows, k};
    if (plain) {
      ops_.matmul(*queue_, matrix, {input.get(), 0, k}, n_rows, {y.get(), 0, width});
    } else {
      const Held blocks = upload(acts);
      ops_.matmul(*queue_, matrix, *blocks, n_rows, {y.get(), 0, width});
      queue_->finish();  // before the blocks are freed
    }
    return differing("product with " + std::string(info(dtype).name), {}, expected,
                     fetch<float>(*y));
  }

  // Rows that see cells with gaps, other rows' cells and none, in both blocks of two spans.
  std::string attention(CacheType type, int64_t dim) {
    const int64_t heads = 4, kv_heads = 2, slots = 96;
    const size_t cell = static_cast<size_t>(type == CacheType::F16 ? dim * 2 : dim / 32 * 34);
    Buffer k(slots * kv_heads * cell, "self-test"), v(k.size(), "self-test");
    const KvView kv = {k.data(), v.data(), type, kv_heads, dim, dim};
    const Floats keys = random_.numbers(slots * kv_heads * dim, 1.0f),
                 values = random_.numbers(slots * kv_heads * dim, 1.0f);
    std::vector<int32_t> order;
    for (int32_t i = 0; i < slots; ++i) order.push_back((i * 35 + 7) % static_cast<int32_t>(slots));
    for (int64_t i = 0; i < slots; ++i)
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t at = (i * kv_heads + h) * dim;
        law_.store_kv(kv, order[static_cast<size_t>(i)], h, keys.data() + at, values.data() + at);
      }
    const Bytes empty(k.size(), 0);
    const Held device_k = upload(empty), device_v = upload(empty), places = upload(order),
               k_rows = upload(keys), v_rows = upload(values);
    const DeviceCells cells = {device_k.get(), device_v.get(), type, kv_heads, dim, dim};
    ops_.store_cells(*queue_, cells, *places, slots, {k_rows.get(), 0, kv_heads * dim},
                     {v_rows.get(), 0, kv_heads * dim});
    const std::string name =
        (type == CacheType::F16 ? "f16" : "q8_0") + (" of " + std::to_string(dim));
    for (const auto& [host, held] : {std::pair(&k, &device_k), std::pair(&v, &device_v)})
      if (auto fault =
              differing("cells of " + name, Bytes(host->data(), host->data() + host->size()),
                        fetch<uint8_t>(**held));
          !fault.empty())
        return fault;
    return attention_over(kv, cells, heads, name);
  }

  std::string attention_over(const KvView& kv, const DeviceCells& cells, int64_t heads,
                             const std::string& name) {
    std::vector<int32_t> near, far_slots, far;  // positions without gaps; every third, over spans
    for (int32_t i = 0; i < 96; ++i) near.push_back(i);
    for (int32_t i = 0; i < 80; ++i) far_slots.push_back(95 - i), far.push_back(400 + 3 * i);
    const std::vector<RowView> views = {{near.data(), near.data(), 96},
                                        {near.data(), near.data(), 1},
                                        {near.data(), near.data(), 0},
                                        {far_slots.data(), far.data(), 80},
                                        {far_slots.data() + 30, far.data() + 30, 49}};
    const auto rows = static_cast<int64_t>(views.size());
    const int64_t width = heads * kv.key_dim;
    const Floats q = random_.numbers(rows * width, 2.0f), slopes = random_.numbers(heads, 0.1f);
    const ViewTable table = view_table(views);
    const Held queries = upload(q), device_slopes = upload(slopes), seen = upload(table.views),
               runs = upload(table.runs);
    for (const bool plain : {true, false}) {
      Floats expected(q.size());
      AttendArgs law = {
          kv,           q.data(), width,  expected.data(),     width,
          views.data(), heads,    0.125f, plain ? 0.0f : 5.0f, plain ? nullptr : slopes.data()};
      for (int64_t h = 0; h < kv.n_kv_heads; ++h) law_.attend(law, 0, rows, h);
      for (const Parts parts : {Parts::Blocks, Parts::Spans}) {
        const Held out = upload(Floats(q.size(), NAN));
        DeviceAttention args = {.cells = cells,
                                .q = {queries.get(), 0, width},
                                .out = {out.get(), 0, width},
                                .views = seen.get(),
                                .runs = runs.get(),
                                .most_blocks = table.most_blocks,
                                .most_spans = table.most_spans,
                                .n_rows = rows,
                                .n_heads = heads,
                                .scale = law.scale,
                                .softcap = law.softcap,
                                .slopes = plain ? nullptr : device_slopes.get(),
                                .scratch = nullptr,
                                .parts = parts};
        const Held scratch = ops_.device().allocate(2 * Ops::scratch_nbytes(args), "self-test");
        args.scratch = scratch.get();
        ops_.attend(*queue_, args);
        if (auto fault = differing("attention over " + name, {}, expected, fetch<float>(*out));
            !fault.empty())
          return fault;
      }
    }
    return "";
  }

  Ops& ops_;
  std::span<const DType> formats_;
  std::unique_ptr<Queue> queue_;
  const KernelTable& law_;
  Random random_;
};

}  // namespace

std::string first_fault(Ops& ops, std::span<const DType> formats) {
  return SelfTest(ops, formats).run();
}
std::string first_fault_of_units(Ops& ops, std::span<const DType> formats) {
  return SelfTest(ops, formats).run_units();
}

}  // namespace pyflow::device
