// Binds tensors of a checkpoint to the blocks that use them: checks name, type and shape, then
// packs all matrices at once, in parallel.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/table.h"
#include "model/spec.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// Where tensors come from. `release` unmaps a tensor's pages after packing, `release_all` those of
// the whole file after the last tensor.
struct TensorSource {
  std::string path;
  std::function<const TensorRecord*(const std::string&)> find;  // nullptr: no such tensor
  std::function<void(const TensorRecord&)> release;
  std::function<void()> release_all;
};

// Tiles of a piece of work: a few pieces per thread, so that a delayed thread can be helped.
inline int64_t tile_grain(int64_t tiles, int n_threads) {
  return std::max<int64_t>(1, tiles / (8 * n_threads));
}

class Weights {
 public:
  // pack_as: what float matrices become while they are packed; none: they stay as they are.
  Weights(TensorSource source, std::optional<DType> pack_as, const KernelTable& kernels)
      : source_(std::move(source)), pack_as_(pack_as), kernels_(kernels) {}

  // A matrix of rows x cols; the same one when asked for again (tied embeddings). Not yet packed.
  // Loop::Continued: threads share its tiles in one loop with those of the matrix before. Throws
  // ShapeError when it is missing or of another shape, UnsupportedError when its type cannot be cut
  // as asked for.
  // Format::AsStored: also where float matrices become something else.
  enum class Loop { Own, Continued };
  enum class Format { Any, AsStored };
  const PackedTensor& matrix(const TensorRef& ref, int64_t rows, int64_t cols,
                             Loop loop = Loop::Own, Format format = Format::Any);
  // n such matrices, each a tensor or all of them one.
  std::vector<const PackedTensor*> matrices(const std::vector<TensorRef>& refs, int64_t n,
                                            int64_t rows, int64_t cols);
  // How many values a vector has.
  int64_t size(const TensorRef& ref);
  // A vector of n floats, widened to f32. Where there is none: ones; null.
  const float* vector(const TensorRef& ref, int64_t n);
  // Such a vector of several tensors, each of which has an equal part of it.
  const float* vector(const std::vector<TensorRef>& refs, int64_t n);
  const float* vector_or_ones(const std::optional<TensorRef>& ref, int64_t n);
  const float* vector_or_null(const std::optional<TensorRef>& ref, int64_t n) {
    return ref ? vector(*ref, n) : nullptr;
  }

  // Packs every matrix that was asked for, side by side in that order, each tile by one thread, and
  // releases the source pages; on the memory nodes and in the copies of the pool's placement.
  // `poll` is called between matrices, by the calling thread; it may throw to stop. Throws
  // UnsupportedError for weights that pack_as cannot hold.
  void pack(ThreadPool& pool, const std::function<void()>& poll);

  // f(ref, matrix) for each, as they were asked for.
  template <class F>
  void for_matrices(F&& f) const {
    for (const Matrix* m : in_order_) f(*m->ref, std::as_const(*m->packed));
  }

  // The packed matrices, but for some, and the vectors; of the vectors there is one copy.
  std::vector<std::span<const uint8_t>> parts(size_t copy,
                                              const std::set<const PackedTensor*>& without) const;
  size_t nbytes(size_t n_copies) const;  // what they take
  const std::set<std::string>& used() const { return used_; }

 private:
  struct Matrix {
    const TensorRef* ref;
    const TensorRecord* record;
    std::unique_ptr<PackedTensor> packed;
    Loop loop;

    // Where its rows begin in the file, if they lie there one after the other; else null.
    const uint8_t* in_place() const;
    size_t row_bytes() const;  // in the file
    bool encoded() const { return packed->dtype() != record->dtype; }
    void gather(int64_t tile, uint8_t* rows) const;  // its rows of a tile
  };
  void place(const Placement& placement);
  void bind_shares(const Placement& placement) const;
  void release(const Matrix& m, bool last) const;
  size_t scratch_bytes(const Matrix& m) const;  // that packing needs per thread
  void pack_tiles(const Matrix& m, int64_t begin, int64_t end, uint8_t* scratch) const;
  const TensorRecord& record(const TensorRef& ref, int64_t rows, int64_t cols);
  const TensorRecord& find(const TensorRef& ref, const std::string& needed_as);

  TensorSource source_;
  std::optional<DType> pack_as_;
  const KernelTable& kernels_;
  std::set<std::string> used_;
  std::map<TensorRef, Matrix> matrices_;
  std::vector<Matrix*> in_order_;  // as they were asked for, which is as a step reads them
  Buffer arena_;                   // one for all, so that huge pages fit in
  std::map<TensorRef, Buffer> vectors_;
  std::map<std::vector<TensorRef>, Buffer> joined_;
  std::map<int64_t, Buffer> ones_;
};

}  // namespace pyflow
