#include "model/weights.h"

#include <algorithm>
#include <vector>

#include "core/errors.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

std::string shape_text(int64_t rows, int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

// Copies start on the border of a huge page, so that none has pages of two nodes.
constexpr size_t kCopyAlign = size_t{2} << 20;
constexpr size_t kCopyPiece = size_t{64} << 10;

// Makes the other copies of a matrix from the first one, each for the most part by threads that are
// near it: they are numbered by node, as pieces are by copy.
void copy(PackedTensor& w, size_t n_copies, Team& team) {
  if (n_copies == 1) return;
  const size_t pieces = (w.nbytes() + kCopyPiece - 1) / kCopyPiece;
  team.for_each(static_cast<int64_t>(n_copies * pieces), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const size_t at = i % pieces * kCopyPiece, n = std::min(kCopyPiece, w.nbytes() - at);
      if (const size_t to = i / pieces) w.copy(to, at, n);
    }
  });
}

}  // namespace

const TensorRecord& Weights::record(const std::string& name, int64_t rows, int64_t cols) {
  const TensorRecord* r = source_.find(name);
  if (!r)
    throw ShapeError(source_.path + ": tensor " + name + " is missing: the model needs it as " +
                     shape_text(rows, cols));
  if (r->rows() != rows || r->cols() != cols)
    throw ShapeError(source_.path + ": tensor " + name + ": expected " + shape_text(rows, cols) +
                     ", found " + shape_text(r->rows(), r->cols()));
  used_.insert(name);
  return *r;
}

const PackedTensor& Weights::matrix(const std::string& name, int64_t rows, int64_t cols,
                                    Loop loop) {
  const TensorRecord& r = record(name, rows, cols);
  Matrix& m = matrices_[name];
  if (!m.packed) {
    m = {&r, std::make_unique<PackedTensor>(r.dtype, rows, cols), loop};
    in_order_.push_back(&m);
  }
  return *m.packed;
}

const float* Weights::vector(const std::string& name, int64_t n) {
  const TensorRecord& r = record(name, 1, n);
  Buffer& buffer = vectors_[name];
  if (!buffer.data()) {
    buffer = Buffer(static_cast<size_t>(n) * sizeof(float), name.c_str());
    dequantize(r.dtype, r.data, n, buffer.as<float>());
  }
  return buffer.as<float>();
}

void Weights::pack(ThreadPool& pool, const std::function<void()>& poll) {
  place(pool.placement());
  for (Matrix* m : in_order_) {
    poll();
    const int64_t tiles = m->packed->tiles();
    pool.run([&](Team& team) {
      team.for_each(tiles, tile_grain(tiles, team.size()), [&](int64_t begin, int64_t end) {
        m->packed->pack_tiles(m->record->data, begin, end);
      });
      copy(*m->packed, pool.placement().n_copies(), team);
    });
    source_.release(*m->record);
  }
}

void Weights::place(const Placement& placement) {
  size_t total = 0;
  for (const Matrix* m : in_order_) total += m->packed->nbytes();
  const size_t n_copies = placement.n_copies();
  const size_t stride = n_copies == 1 ? total : (total + kCopyAlign - 1) / kCopyAlign * kCopyAlign;
  arena_ = Buffer((n_copies - 1) * stride + total, "weights");
  size_t at = 0;
  for (Matrix* m : in_order_) {
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
  for (size_t begin = 0, end; begin < in_order_.size(); begin = end) {
    int64_t tiles = 0;
    for (end = begin; end < in_order_.size(); ++end) {
      if (end > begin && in_order_[end]->loop == Loop::Own) break;
      tiles += in_order_[end]->packed->tiles();
    }
    // Where tile t of the loop begins, or its last one ends.
    const auto offset_of = [&](int64_t t) {
      size_t i = begin;
      for (; i + 1 < end && t >= in_order_[i]->packed->tiles(); ++i)
        t -= in_order_[i]->packed->tiles();
      const PackedTensor& w = *in_order_[i]->packed;
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

std::vector<std::span<const uint8_t>> Weights::parts(size_t copy) const {
  std::vector<std::span<const uint8_t>> parts;
  for (const Matrix* m : in_order_) parts.emplace_back(m->packed->data(copy), m->packed->nbytes());
  for (const auto& [name, v] : vectors_) parts.emplace_back(v.data(), v.size());
  return parts;
}

size_t Weights::nbytes(size_t n_copies) const {
  size_t n = 0;
  for (const Matrix* m : in_order_) n += n_copies * m->packed->nbytes();
  for (const auto& [name, v] : vectors_) n += v.size();
  return n;
}

}  // namespace pyflow
