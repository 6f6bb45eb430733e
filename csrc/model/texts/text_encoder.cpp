#include "model/texts/text_encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

namespace pyflow {
namespace {

std::string str(int64_t n) { return std::to_string(n); }

int64_t whole_keys(int64_t n) { return (n + kTextKeys - 1) / kTextKeys * kTextKeys; }

// The widest row that a readout may hold: all pools of the widest state, or a layer's.
constexpr int64_t kMostPools = 6;

int64_t widest(const Stage& stage, const std::vector<std::shared_ptr<const DenseFile>>& files) {
  int64_t n = kMostPools * stage.spec().n_embd;
  const auto take = [&n](const Dense& layer) { n = std::max({n, layer.n_in(), layer.n_out()}); };
  for (const auto& [_, layers] : stage.chains()) std::ranges::for_each(layers, take);
  for (const auto& file : files) std::ranges::for_each(file->layers(), take);
  return padded(n);
}

ScratchNeeds needs_of(const std::vector<std::shared_ptr<const DenseFile>>& files) {
  ScratchNeeds all;
  for (const auto& file : files)
    for (const Dense& layer : file->layers()) all.at_least(layer.needs());
  return all;
}

// The weight of row i of n that are pooled.
float share(Pool pool, int64_t i, int64_t n) {
  const auto rows = static_cast<float>(n);
  if (pool == Pool::Weighted) return static_cast<float>(i + 1) / (rows * (rows + 1) / 2);
  return pool == Pool::RootMean ? 1 / std::sqrt(rows) : 1 / rows;
}

void pool_rows(const KernelTable& kernels, Pool pool, const float* x, int64_t stride, int64_t n,
               int64_t n_embd, float* to) {
  std::copy_n(pool == Pool::Last ? x + (n - 1) * stride : x, n_embd, to);
  if (pool == Pool::First || pool == Pool::Last) return;
  if (pool == Pool::Weighted) kernels.scale(to, share(pool, 0, n), n_embd);
  for (int64_t r = 1; r < n; ++r) {
    const float* row = x + r * stride;
    if (pool == Pool::Max)
      for (int64_t i = 0; i < n_embd; ++i) to[i] = row[i] > to[i] ? row[i] : to[i];
    else if (pool == Pool::Weighted)
      kernels.add_scaled(to, row, share(pool, r, n), n_embd);
    else
      kernels.add(to, row, n_embd);
  }
  if (pool == Pool::Mean || pool == Pool::RootMean) kernels.scale(to, share(pool, 0, n), n_embd);
}

// In double, so that the order of lanes does not matter. A zero vector stays.
void normalize(float* x, int64_t n) {
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const double length = std::max(std::sqrt(square), 1e-12);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(static_cast<double>(x[i]) / length);
}

}  // namespace

Pool pool_named(const std::string& name) {
  if (name == "first") return Pool::First;
  if (name == "mean") return Pool::Mean;
  if (name == "max") return Pool::Max;
  if (name == "last") return Pool::Last;
  if (name == "weighted") return Pool::Weighted;
  if (name == "mean_sqrt") return Pool::RootMean;
  throw UnsupportedError("pool '" + name +
                         "': expected first, mean, max, last, weighted or mean_sqrt");
}

TextEncoder::TextEncoder(std::shared_ptr<const Stage> stage, int64_t n_batch,
                         std::vector<std::shared_ptr<const DenseFile>> files,
                         std::shared_ptr<const Stage> tables, std::shared_ptr<Link> link)
    : stage_(std::move(stage)),
      tables_(tables ? std::move(tables) : stage_),
      files_(std::move(files)),
      n_batch_([&] {
        if (n_batch < 1 || n_batch > (int64_t{1} << 24))
          throw ShapeError("n_batch: expected 1 to " + str(int64_t{1} << 24) + ", found " +
                           str(n_batch));
        return whole_keys(n_batch);
      }()),
      group_(link ? std::make_unique<Group>(link) : nullptr),
      scratch_(*stage_, n_batch_, 1, CacheType::F16, needs_of(files_)) {
  if (!tables_->first() || stage_->last() || !stage_->kv_layers().empty())
    throw UnsupportedError("encoder: expected a stage of all layers that see the whole text");
  if (tables_->spec().n_embd != stage_->spec().n_embd)
    throw ShapeError("encoder: expected an embedding of " + str(stage_->spec().n_embd) +
                     " values, found " + str(tables_->spec().n_embd));
  const Membership& member = stage_->spec().member;
  if (const std::pair at =
          link ? std::pair(link->number(), link->size()) : std::pair<int64_t, int64_t>(0, 1);
      at != std::pair(member.number, member.of))
    throw ShapeError("encoder: expected a link of member " + str(member.number) + " of " +
                     str(member.of) + ", found one of " + str(at.first) + " of " + str(at.second));
  for (Buffer& rows : rows_)
    rows = Buffer(static_cast<size_t>(kHeadRows * widest(*stage_, files_)) * sizeof(float),
                  "readouts", "batch");
}

size_t TextEncoder::nbytes(const Stage& stage, int64_t n_batch) {
  const ScratchLayout layout(stage, whole_keys(n_batch), 1, CacheType::F16);
  return layout.nbytes + 2 * static_cast<size_t>(kHeadRows * widest(stage, {})) * sizeof(float);
}

int64_t TextEncoder::n_out(const Readout& readout) const {
  if (!readout.layers.empty()) return readout.layers.back()->n_out();
  return std::max<int64_t>(1, std::ssize(readout.pools)) * stage_->spec().n_embd;
}

void TextEncoder::check(const Texts& texts, const Readout& readout) const {
  const int64_t n = std::ssize(texts.tokens), n_vocab = tables_->spec().n_vocab;
  int64_t begin = 0;
  for (const int64_t end : texts.ends) {
    const int64_t length = end - begin, most = std::min(stage_->n_positions(), n_batch_);
    if (length < 1 || length > most || end > n)
      throw ShapeError("text: expected 1 to " + str(most) + " tokens, found " + str(length));
    if (!readout.pools.empty() && readout.first_pooled >= length)
      throw ShapeError("text: expected tokens after the " + str(readout.first_pooled) +
                       " of the prompt, found " + str(length));
    begin = end;
  }
  if (begin != n) throw ShapeError("texts: expected " + str(n) + " tokens, found " + str(begin));
  for (const int32_t token : texts.tokens)
    if (token < 0 || token >= n_vocab)
      throw ShapeError("token " + str(token) + ": expected 0 to " + str(n_vocab - 1));
  if (!texts.types.empty() && std::ssize(texts.types) != n)
    throw ShapeError("types: expected " + str(n) + ", found " + str(std::ssize(texts.types)));
  for (const int32_t type : texts.types)
    if (type < 0 || type >= stage_->n_types())
      throw ShapeError("token type " + str(type) + ": expected 0 to " + str(stage_->n_types() - 1));
  int64_t width = std::max<int64_t>(1, std::ssize(readout.pools)) * stage_->spec().n_embd;
  if (std::ssize(readout.pools) > kMostPools || readout.first_pooled < 0)
    throw ShapeError("pools: expected up to " + str(kMostPools) + ", found " +
                     str(std::ssize(readout.pools)));
  for (const Dense* layer : readout.layers) {
    if (layer->n_in() != width)
      throw ShapeError("dense: expected " + str(width) +
                       " values in, as come out before it, found " + str(layer->n_in()));
    width = layer->n_out();
  }
  for (size_t i = 0; i < readout.rows.size(); ++i)
    if (readout.rows[i] < (i ? readout.rows[i - 1] + 1 : 0) || readout.rows[i] >= n)
      throw ShapeError("wanted rows: expected ascending numbers below " + str(n));
}

TextEncoder::Batch TextEncoder::next(const Texts& texts, size_t text,
                                     const Readout& readout) const {
  Batch batch;
  batch.first = text ? texts.ends[text - 1] : 0;
  for (int64_t begin = batch.first; text < texts.ends.size(); ++text) {
    const int64_t n = texts.ends[text] - begin;
    if (batch.n_keys + whole_keys(n) > n_batch_) break;
    batch.texts.push_back({begin - batch.first, n, batch.n_keys / kTextKeys});
    for (int64_t i = 0; i < n; ++i) batch.rows.push_back({static_cast<int32_t>(i), {}});
    batch.n_keys += whole_keys(n);
    begin += n;
  }
  const int64_t end = batch.first + std::ssize(batch.rows);
  if (readout.pools.empty())
    for (auto row = std::ranges::lower_bound(readout.rows, batch.first);
         row != readout.rows.end() && *row < end; ++row)
      batch.wanted.push_back(*row - batch.first);
  return batch;
}

void TextEncoder::run(const Texts& texts, const Readout& readout, float* out,
                      const std::function<void()>& poll) {
  check(texts, readout);
  for (size_t text = 0; text < texts.ends.size();) {
    poll();
    const Batch batch = next(texts, text, readout);
    const auto first = static_cast<size_t>(batch.first), n = batch.rows.size();
    const StepRows rows = {
        .n_rows = std::ssize(batch.rows),
        .n_prefill = stage_->has_prefill() ? std::ssize(batch.rows) : 0,
        .first_row = 0,
        .tokens = texts.tokens.subspan(first, n),
        .rows = batch.rows,
        .types = texts.types.empty() ? texts.types : texts.types.subspan(first, n),
        .texts = batch.texts,
        .n_keys = batch.n_keys};
    if (group_) group_->begin();
    stage_->pool().run([&](Team& team) {
      Step s = step(team, rows);
      start(s, team);
      for (const auto& layer : stage_->layers())
        for (const PlacedBlock& at : layer) at.block->forward(s, team);
      read(s, team, batch, readout, out);
    });
    if (group_) group_->check();
    text += batch.texts.size();
    const int64_t n_values = batch.n_items(readout) * n_out(readout);
    if (!std::all_of(out, out + n_values, [](float x) { return std::isfinite(x); }))
      throw Error("encoder: expected numbers, found values that are none (NaN or infinite)");
    out += n_values;
  }
}

Step TextEncoder::step(const Team& team, const StepRows& rows) const {
  Step s{rows, scratch_.step(team, rows), stage_->kernels(), team.copy(), nullptr, nullptr, {}};
  float* angles = s.angles;
  for (const RopeSpec& r : stage_->spec().ropes) {
    s.ropes.push_back({angles, static_cast<int64_t>(r.pairs()), r.interleaved});
    angles += n_batch_ * 2 * static_cast<int64_t>(r.pairs());
  }
  s.group = group_.get();
  return s;
}

void TextEncoder::start(Step& s, Team& team) const {
  for (size_t i = 0; i < s.ropes.size(); ++i) {
    const RopeSpec& rope = stage_->spec().ropes[i];
    team.for_each(n_pieces(s.texts, kTextKeys), 1, [&](int64_t begin, int64_t end) {
      for_pieces(s.texts, kTextKeys, begin, end,
                 [&](const TextRows& text, int64_t first, int64_t last) {
                   for (int64_t r = first; r < last; ++r)
                     rope.angles(static_cast<int32_t>(r), text.n, rope.magnitude_at(text.n),
                                 s.ropes[i].row(text.first + r));
                 });
    });
  }
  tables_->embed(s, team);
}

void TextEncoder::gather(const Step& s, const Batch& batch, const Readout& readout, int64_t item,
                         float* to) const {
  const int64_t n_embd = stage_->spec().n_embd;
  const float* x = s.registers[0];
  if (readout.pools.empty()) {
    std::copy_n(x + batch.wanted[static_cast<size_t>(item)] * s.stride, n_embd, to);
    return;
  }
  const TextRows& text = batch.texts[static_cast<size_t>(item)];
  const int64_t first = text.first + readout.first_pooled, n = text.n - readout.first_pooled;
  for (const Pool pool : readout.pools) {
    pool_rows(s.kernels, pool, x + first * s.stride, s.stride, n, n_embd, to);
    to += n_embd;
  }
}

void TextEncoder::read(Step& s, Team& team, const Batch& batch, const Readout& readout,
                       float* out) const {
  const int64_t n = batch.n_items(readout), stride = widest(*stage_, files_),
                width = n_out(readout);
  for (int64_t i = 0; i < n; i += kHeadRows) {
    const int64_t rows = std::min(kHeadRows, n - i);
    float *from = rows_[0].as<float>(), *to = rows_[1].as<float>();
    team.for_each(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) gather(s, batch, readout, i + r, from + r * stride);
    });
    for (const Dense* layer : readout.layers) {
      layer->forward(s, team, from, stride, rows, to, stride);
      std::swap(from, to);
    }
    team.for_each(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (readout.normalize) normalize(from + r * stride, width);
        std::copy_n(from + r * stride, width, out + (i + r) * width);
      }
    });
  }
}

}  // namespace pyflow
