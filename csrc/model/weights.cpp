#include "model/weights.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "encode/encoder.h"
#include "kernels/table.h"
#include "quant/packed_tensor.h"
#include "quant/rows/stored_rows.h"

namespace pyflow {
namespace {

std::string shape_text(int64_t rows, int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

// Copies start at a huge page, so that no page belongs to two nodes.
constexpr size_t kCopyAlign = size_t{2} << 20;

}  // namespace

const TensorRecord& Weights::find(const TensorRef& ref, const std::string& needed_as) {
  const TensorRecord* r = source_.find(ref.name);
  if (!r)
    throw ShapeError(source_.path + ": tensor " + ref.name + " is missing: the model needs it as " +
                     needed_as);
  used_.insert(ref.name);
  return *r;
}

const TensorRecord& Weights::record(const TensorRef& ref, int64_t rows, int64_t cols) {
  const TensorRecord& r = find(ref, shape_text(rows, cols));
  const std::string where = source_.path + ": tensor " + ref.name + ": ";
  const bool is_part = ref.inputs.second > 0 && !r.divisors;
  if (ref.transposed && (info(r.dtype).block != 1 || r.made) && !is_part)
    throw UnsupportedError(where + "stored transposed, and its type " +
                           std::string(info(r.dtype).name) +
                           " has blocks along the wrong side; use a file in F32, F16 or BF16");
  if (ref.add != 0) throw ShapeError(where + "values are added to those of vectors only");
  if (r.divisors && r.cols() % info(r.dtype).block)
    throw UnsupportedError(where + "int8 rows of " + std::to_string(r.cols()) +
                           " weights, expected a multiple of " +
                           std::to_string(info(r.dtype).block) + "; convert the model to float16");
  int64_t have = r.rows(), of = r.cols();
  if (ref.transposed) std::swap(have, of);
  if (const auto [start, count] = ref.inputs; count > 0) {
    if (!ref.transposed || start > of || count > of - start)
      throw ShapeError(where + "inputs " + std::to_string(start) + " to " +
                       std::to_string(start + count) + " of " + std::to_string(of));
    of = count;
  }
  const int64_t needed = ref.rows.empty() ? rows : have;
  if (have != needed || of != cols)
    throw ShapeError(where + "expected " +
                     (ref.transposed ? shape_text(cols, needed) : shape_text(needed, cols)) +
                     ", found " + shape_text(r.rows(), r.cols()));
  ref.check_rows(where, have, rows);
  return r;
}

const PackedTensor& Weights::matrix(const TensorRef& ref, int64_t rows, int64_t cols, Loop loop,
                                    Format format) {
  const TensorRecord& r = record(ref, rows, cols);
  if (rows < 1) throw ShapeError(source_.path + ": tensor " + ref.name + " has no rows");
  const auto at = matrices_.try_emplace({ref, home_}).first;
  Matrix& m = at->second;
  if (!m.packed) {
    const auto [dtype, encode, compact] = packing_of(ref, r, format);
    if (encode && cols % info(dtype).block)
      throw UnsupportedError(source_.path + ": tensor " + ref.name + ": rows of " +
                             std::to_string(cols) + " weights are no whole blocks of " +
                             std::string(info(dtype).name) + ", which has " +
                             std::to_string(info(dtype).block) + "; choose another format or none");
    m = {&at->first.first, &r, std::make_unique<PackedTensor>(dtype, rows, cols), loop, home_};
    if (compact) take(*compact, m);
    in_order_.push_back(&m);
  }
  return *m.packed;
}

Weights::Packing Weights::packing_of(const TensorRef& ref, const TensorRecord& r,
                                     Format format) const {
  const bool plain = info(r.dtype).block == 1, across = ref.transposed && (!plain || r.made);
  if (pack_as_ && format != Format::AsStored && plain && !across) return {*pack_as_, true, nullptr};
  const CompactRows* compact = compact_of(ref, r, format);
  return {across ? DType::F32 : compact ? compact->dtype() : r.dtype, false, compact};
}

// Only the host's products take factors and orders.
const CompactRows* Weights::compact_of(const TensorRef& ref, const TensorRecord& r,
                                       Format format) const {
  const CompactRows* compact = r.made ? r.made->compact() : nullptr;
  if (!compact || format == Format::AsStored || ref.transposed || home_ != kHost) return nullptr;
  return format == Format::Unordered && !compact->order().empty() ? nullptr : compact;
}

// Has the matrix packed from compact rows.
void Weights::take(const CompactRows& compact, Matrix& m) {
  m.compact = std::make_unique<TensorRecord>(*m.record);
  m.compact->dtype = compact.dtype();
  m.compact->made = &compact;
  if (compact.has_factors()) {
    const int64_t n = m.packed->tiles() * kTileRows;
    m.factors = Buffer(static_cast<size_t>(n) * sizeof(float), "factors of rows", "model");
    std::fill_n(m.factors.as<float>(), n, 1.0f);
    try {
      m.stored().factors(compact, m.packed->rows(), m.factors.as<float>());
    } catch (const UnsupportedError& e) {
      throw UnsupportedError(source_.path + ": tensor " + m.ref->name + ": " + e.what());
    }
  }
  m.packed->take_for(m.factors.as<float>(), order_of(compact));
}

const std::vector<int32_t>* Weights::order_of(const CompactRows& compact) {
  const std::span<const int32_t> order = compact.order();
  return order.empty() ? nullptr : &*orders_.emplace(order.begin(), order.end()).first;
}

const PackedTensor& Weights::rows_of(const TensorRef& ref, int64_t rows, int64_t cols,
                                     const Share& own, Loop loop, Format format) {
  if (own.size() == rows) return matrix(ref, rows, cols, loop, format);
  const TensorRecord& r = record(ref, rows, cols);
  if (own.size() > 0)
    return matrix(ref.slice(own.begin, own.size()), own.size(), cols, loop, format);
  const Packing as = packing_of(ref, r, format);  // as the members that have some
  empty_.push_back(std::make_unique<PackedTensor>(as.dtype, 0, cols));
  if (as.compact) empty_.back()->take_for(nullptr, order_of(*as.compact));
  return *empty_.back();
}

std::vector<const PackedTensor*> Weights::matrices(const std::vector<TensorRef>& refs, int64_t n,
                                                   int64_t rows, int64_t cols, const Share& own) {
  std::vector<const PackedTensor*> all;
  if (refs.size() == 1) {
    record(refs[0], n * rows, cols);
    for (int64_t i = 0; i < n; ++i)
      all.push_back(&rows_of(refs[0].slice(i * rows, rows), rows, cols, own, Format::Unordered));
  } else {
    for (const TensorRef& ref : refs)
      all.push_back(&rows_of(ref, rows, cols, own, Format::Unordered));
  }
  if (static_cast<int64_t>(all.size()) != n)
    throw ShapeError(source_.path + ": tensor " + refs[0].name + " and its like: expected " +
                     std::to_string(n) + ", found " + std::to_string(all.size()));
  return all;
}

int64_t Weights::size(const TensorRef& ref) {
  const TensorRecord& r = find(ref, "a vector");
  int64_t n = 0;
  for (const auto& [start, count] : ref.rows) n += count;
  return ref.rows.empty() ? r.rows() * r.cols() : n;
}

const float* Weights::vector(const TensorRef& ref, int64_t n) {
  const TensorRecord& r = find(ref, shape_text(1, n));
  const std::string where = source_.path + ": tensor " + ref.name + ": ";
  const int64_t have = r.rows() * r.cols(), block = info(r.dtype).block;
  if (ref.transposed) throw ShapeError(where + "a vector cannot be transposed");
  if (r.divisors) throw UnsupportedError(where + "a vector in int8; convert the model to float16");
  if (r.made) throw UnsupportedError(where + "a vector that other tensors make up");
  if (ref.rows.empty() && have != n)
    throw ShapeError(where + "expected " + shape_text(1, n) + ", found " +
                     shape_text(r.rows(), r.cols()));
  ref.check_rows(where, have, n);
  Buffer& buffer = vectors_[ref];
  if (buffer.data()) return buffer.as<float>();
  Buffer values(static_cast<size_t>(n) * sizeof(float), ref.name.c_str(), "model");
  float* to = values.as<float>();
  const auto take = [&](int64_t start, int64_t count) {
    if (start < 0) {
      to = std::fill_n(to, count, 0.0f);
      return;
    }
    if (start % block || count % block || (ref.step > 1 && block > 1))
      throw UnsupportedError(where + "cut within a block of its type " +
                             std::string(info(r.dtype).name));
    const int64_t at_once = ref.step > 1 ? 1 : count;
    for (int64_t i = 0; i < count; i += at_once, to += at_once)
      read_values(where, r, r.data + (start + i * ref.step) / block * r.block_bytes(), at_once, to);
  };
  if (ref.rows.empty()) take(0, n);
  for (const auto& [start, count] : ref.rows) take(start, count);
  if (ref.add != 0)
    for (float* v = values.as<float>(); v < to; ++v) *v += static_cast<float>(ref.add);
  buffer = std::move(values);
  return buffer.as<float>();
}

const float* Weights::vector(const std::vector<TensorRef>& refs, int64_t n) {
  if (refs.size() == 1) return vector(refs[0], n);
  const int64_t each = n / std::ssize(refs);
  if (each * std::ssize(refs) != n)
    throw ShapeError(source_.path + ": tensor " + refs[0].name + " and its like: expected " +
                     std::to_string(n) + " values in equal parts, found " +
                     std::to_string(refs.size()) + " tensors");
  Buffer& buffer = joined_[refs];
  if (buffer.data()) return buffer.as<float>();
  Buffer values(static_cast<size_t>(n) * sizeof(float), refs[0].name.c_str(), "model");
  float* to = values.as<float>();
  for (const TensorRef& ref : refs) to = std::copy_n(vector(ref, each), each, to);
  buffer = std::move(values);
  return buffer.as<float>();
}

const float* Weights::vector_or_ones(const std::optional<TensorRef>& ref, int64_t n) {
  if (ref) return vector(*ref, n);
  Buffer& ones = ones_[n];
  if (!ones.data()) {
    ones = Buffer(static_cast<size_t>(n) * sizeof(float), "ones", "model");
    std::fill_n(ones.as<float>(), n, 1.0f);
  }
  return ones.as<float>();
}

const uint8_t* Weights::Matrix::in_place() const {
  if (ref->transposed || ref->rows.size() > 1 || ref->step > 1 || record->made) return nullptr;
  if (!ref->rows.empty() && ref->rows[0].first < 0) return nullptr;
  const auto start = static_cast<size_t>(ref->rows.empty() ? 0 : ref->rows[0].first);
  return record->data + start * row_bytes();
}

size_t Weights::scratch_bytes(const Matrix& m) const {
  if (!m.converted()) return m.in_place() ? 0 : kTileRows * m.row_bytes();
  const auto cols = static_cast<size_t>(m.packed->cols());
  return kTileRows *
         (m.row_bytes() + cols * sizeof(float) + row_bytes(m.packed->dtype(), m.packed->cols()));
}

void Weights::pack_tiles(const Matrix& m, int64_t begin, int64_t end, uint8_t* scratch) const {
  const uint8_t* src = m.in_place();
  if (src && !m.converted()) return m.packed->pack_tiles(src, begin, end);
  // Buffers for rows as stored, as floats, as blocks.
  const int64_t cols = m.packed->cols();
  uint8_t* rows = scratch;
  auto* floats = reinterpret_cast<float*>(rows + kTileRows * m.row_bytes());
  auto* blocks = reinterpret_cast<uint8_t*>(floats + kTileRows * cols);
  const StoredRows stored = m.stored();
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * kTileRows, n = std::min(kTileRows, m.packed->rows() - first);
    if (m.across()) {
      stored.decode(first, n, cols, floats);
      m.packed->pack_tile(reinterpret_cast<const uint8_t*>(floats), tile);
      continue;
    }
    stored.copy(first, n, cols, rows);
    if (!m.converted()) {
      m.packed->pack_tile(rows, tile);
      continue;
    }
    if (m.source().divisors) {
      stored.to_blocks(rows, first, n, blocks);
      m.packed->pack_tile(blocks, tile);
      continue;
    }
    read_values("", m.source(), rows, n * cols, floats);
    if (m.packed->dtype() == m.source().dtype) {
      m.packed->pack_tile(reinterpret_cast<const uint8_t*>(floats), tile);
      continue;
    }
    Encoder(m.packed->dtype(), cols, nullptr, encode_table(kernels_))
        .encode(floats, n, first, blocks);
    m.packed->pack_tile(blocks, tile);
  }
}

void Weights::pack(ThreadPool& pool, const std::function<void()>& poll, const Send& send) {
  place(pool.placement());
  std::map<const TensorRecord*, size_t> uses;
  size_t per_thread = 0, widest = 0;
  for (const Matrix* m : in_order_) {
    if (m->home != kHost) widest = std::max(widest, m->packed->nbytes());
    ++uses[m->record];
    per_thread = std::max(per_thread, (scratch_bytes(*m) + 63) / 64 * 64);
  }
  const Buffer scratch(per_thread * static_cast<size_t>(pool.size()), "weights", "model");
  const Buffer outgoing(widest, "weights", "model");  // of devices, a matrix at a time
  for (Matrix* m : in_order_) {
    poll();
    if (m->home != kHost) m->packed->place(outgoing.data());
    const int64_t tiles = m->packed->tiles();
    std::mutex lock;
    std::string failure;  // because workers must not throw
    pool.run([&](Team& team) {
      uint8_t* mine = scratch.data() + per_thread * static_cast<size_t>(team.rank());
      team.for_each(tiles, tile_grain(tiles, team.size()), [&](int64_t begin, int64_t end) {
        try {
          pack_tiles(*m, begin, end, mine);
        } catch (const UnsupportedError& e) {
          const std::lock_guard guard(lock);
          failure = e.what();
        }
      });
      if (m->home == kHost) m->packed->copy_all(pool.placement().n_copies(), team);
    });
    if (!failure.empty())
      throw UnsupportedError(source_.path + ": tensor " + m->ref->name + ": " + failure);
    if (m->home != kHost) {
      send(m->home, *m->packed, outgoing.data());
      m->packed->place(nullptr);
    }
    release(*m, --uses[m->record] == 0);
  }
  release_source();
}

void Weights::release(const Matrix& m, bool last) const {
  if (last) return source_.release(*m.record);
  const uint8_t* src = m.in_place();
  if (!src) return;
  TensorRecord part = *m.record;  // other matrices still need the rest
  part.data = src;
  part.nbytes = static_cast<uint64_t>(m.packed->rows()) * m.row_bytes();
  source_.release(part);
}

void Weights::place(const Placement& placement) {
  size_t total = 0;
  const std::vector<Matrix*> here = at(kHost);
  for (const Matrix* m : here) total += m->packed->nbytes();
  const size_t n_copies = placement.n_copies();
  const size_t stride = n_copies == 1 ? total : (total + kCopyAlign - 1) / kCopyAlign * kCopyAlign;
  arena_ = Buffer((n_copies - 1) * stride + total, "weights", "model");
  size_t at = 0;
  for (Matrix* m : here) {
    m->packed->place(arena_.data() + at, stride);
    at += m->packed->nbytes();
  }
  if (placement.mode() == Numa::Interleave) placement.spread(arena_);
  if (placement.mode() == Numa::Local) bind_shares(placement);
  if (placement.mode() == Numa::Mirror)
    for (size_t copy = 0; copy < n_copies; ++copy)
      placement.bind(arena_, copy * stride, std::min((copy + 1) * stride, arena_.size()), copy);
}

void Weights::bind_shares(const Placement& placement) const {
  const int n_threads = placement.n_threads();
  const std::vector<Matrix*> here = at(kHost);
  for (size_t begin = 0, end; begin < here.size(); begin = end) {
    int64_t tiles = 0;
    for (end = begin; end < here.size(); ++end) {
      if (end > begin && here[end]->loop == Loop::Own) break;
      tiles += here[end]->packed->tiles();
    }
    // Offset of tile t of the loop; of its end for t = tiles.
    const auto offset_of = [&](int64_t t) {
      size_t i = begin;
      for (; i + 1 < end && t >= here[i]->packed->tiles(); ++i) t -= here[i]->packed->tiles();
      const PackedTensor& w = *here[i]->packed;
      const size_t tile_bytes = w.nbytes() / static_cast<size_t>(w.tiles());
      return static_cast<size_t>(w.data() - arena_.data()) + static_cast<size_t>(t) * tile_bytes;
    };
    const int64_t grain = tile_grain(tiles, n_threads), pieces = (tiles + grain - 1) / grain;
    const auto share = [&](int rank) {
      return offset_of(std::min(tiles, share_begin(pieces, rank, n_threads) * grain));
    };
    int rank = 0;
    for (size_t node = 0; node < placement.nodes().size(); ++node) {
      const int next = rank + placement.nodes()[node].n_threads;
      if (!placement.bind(arena_, share(rank), share(next), node)) return;
      rank = next;
    }
  }
}

std::vector<std::span<const uint8_t>> Weights::parts(
    size_t copy, const std::set<const PackedTensor*>& without) const {
  std::vector<std::span<const uint8_t>> parts;
  for (const Matrix* m : at(kHost))
    if (!without.contains(m->packed.get()))
      parts.emplace_back(m->packed->data(copy), m->packed->nbytes());
  for (const Matrix* m : at(kHost))
    if (m->factors.size() > 0) parts.emplace_back(m->factors.data(), m->factors.size());
  for (const auto& [ref, v] : vectors_) parts.emplace_back(v.data(), v.size());
  for (const auto& [refs, v] : joined_) parts.emplace_back(v.data(), v.size());
  return parts;
}

size_t Weights::nbytes(size_t n_copies) const {
  size_t n = 0;
  for (const Matrix* m : at(kHost)) n += n_copies * m->packed->nbytes() + m->factors.size();
  for (const auto& [ref, v] : vectors_) n += v.size();
  for (const auto& [refs, v] : joined_) n += v.size();
  for (const auto& [size, v] : ones_) n += v.size();
  return n;
}

}  // namespace pyflow
