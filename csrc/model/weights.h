// Binds tensors of a checkpoint to the blocks that use them: checks name, type and shape, then
// packs all matrices at once, in parallel.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
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
#include "model/device/home.h"
#include "model/spec.h"
#include "quant/packed_tensor.h"
#include "quant/rows/stored_rows.h"

namespace pyflow {

// Where tensors come from. `release` unmaps a tensor's pages after packing, `release_all` those of
// the whole file after the last tensor.
struct TensorSource {
  std::string path;
  std::function<const TensorRecord*(const std::string&)> find;  // nullptr: no such tensor
  std::function<void(const TensorRecord&)> release;
  std::function<void()> release_all;
};

// Tiles per piece of work: several pieces per thread, so that others can help a delayed thread.
inline int64_t tile_grain(int64_t tiles, int n_threads) {
  return std::max<int64_t>(1, tiles / (8 * n_threads));
}

class Weights {
 public:
  // pack_as: the format that float matrices are packed as; nullopt: as stored.
  Weights(TensorSource source, std::optional<DType> pack_as, const KernelTable& kernels)
      : source_(std::move(source)), pack_as_(pack_as), kernels_(kernels) {}

  // A matrix of rows x cols, not yet packed; asking again for the same one (tied embeddings)
  // returns it again. Loop::Continued: threads share its tiles in one loop with those of the matrix
  // before. Format::AsStored: float matrices too are packed as stored. Throws ShapeError if the
  // matrix is missing or has another shape, UnsupportedError if its type cannot be cut as asked
  // for.
  // It has a home: the host's memory, or that of a group of devices.
  enum class Loop { Own, Continued };
  // Format::Unordered: its products take inputs in the columns' own order alone.
  enum class Format { Any, AsStored, Unordered };
  const PackedTensor& matrix(const TensorRef& ref, int64_t rows, int64_t cols,
                             Loop loop = Loop::Own, Format format = Format::Any);
  // Some rows of a matrix of rows x cols, perhaps none: what a member of a group has of it.
  const PackedTensor& rows_of(const TensorRef& ref, int64_t rows, int64_t cols, const Share& own,
                              Loop loop = Loop::Own, Format format = Format::Any);
  const PackedTensor& rows_of(const TensorRef& ref, int64_t rows, int64_t cols, const Share& own,
                              Format format) {
    return rows_of(ref, rows, cols, own, Loop::Own, format);
  }
  // Where the matrices that are asked for from now on are to lie.
  void set_home(Home home) { home_ = home; }
  // n such matrices, each a tensor, or all of them in one; of each some rows.
  std::vector<const PackedTensor*> matrices(const std::vector<TensorRef>& refs, int64_t n,
                                            int64_t rows, int64_t cols, const Share& own);
  // The number of values of a vector.
  int64_t size(const TensorRef& ref);
  // n values as f32. vector_or_ones / vector_or_null return 1.0s / nullptr if the tensor is absent.
  const float* vector(const TensorRef& ref, int64_t n);
  // The same from several tensors, equal parts of each, one after the other.
  const float* vector(const std::vector<TensorRef>& refs, int64_t n);
  const float* vector_or_ones(const std::optional<TensorRef>& ref, int64_t n);
  const float* vector_or_null(const std::optional<TensorRef>& ref, int64_t n) {
    return ref ? vector(*ref, n) : nullptr;
  }

  // Packs all matrices, side by side in the order of matrix(), each tile by one thread, and
  // releases the source pages; on the memory nodes and in the copies of the pool's placement.
  // `poll` is called between matrices, by the calling thread; it may throw to stop. A matrix of the
  // device is packed into memory that it has for a moment, then given to `send`. Throws
  // UnsupportedError for weights that pack_as, or F32 for those in F64, cannot hold.
  using Send = std::function<void(Home home, const PackedTensor& matrix, const uint8_t* tiles)>;
  void pack(ThreadPool& pool, const std::function<void()>& poll, const Send& send);
  // Unmaps the source's pages: vectors are copies, and a stage that is only planned needs no more.
  void release_source() const { source_.release_all(); }

  // Calls f(ref, matrix) for each, in the order of matrix().
  template <class F>
  void for_matrices(F&& f) const {
    for (const Matrix* m : in_order_) f(*m->ref, std::as_const(*m->packed));
  }
  // f(name of its tensor, matrix) for those of a home.
  template <class F>
  void for_matrices_at(Home home, F&& f) const {
    for (const Matrix* m : at(home)) f(m->ref->name, std::as_const(*m->packed));
  }

  // The packed matrices of the host, except some, and the vectors, of which there is one copy.
  std::vector<std::span<const uint8_t>> parts(size_t copy,
                                              const std::set<const PackedTensor*>& without) const;
  size_t nbytes(size_t n_copies) const;  // in the host's memory
  const std::set<std::string>& used() const { return used_; }

 private:
  struct Matrix {
    const TensorRef* ref;
    const TensorRecord* record;
    std::unique_ptr<PackedTensor> packed;
    Loop loop;
    Home home;
    // What is packed in place of the record (CompactRows), with the factors of all rows of tiles.
    std::unique_ptr<TensorRecord> compact = nullptr;
    Buffer factors = {};

    const TensorRecord& source() const { return compact ? *compact : *record; }
    // The place of its rows in the file, if they are contiguous; else null.
    const uint8_t* in_place() const;
    size_t row_bytes() const {  // in the file
      const auto n = static_cast<size_t>(packed->cols());
      return n / info(source().dtype).block * source().block_bytes();
    }
    // Whether its rows are columns of blocks, which then become F32: one of several matrices of a
    // transposed tensor.
    bool across() const {
      return ref->transposed && (info(source().dtype).block > 1 || source().made);
    }
    // Whether its values are not packed as they are stored.
    bool converted() const {
      const TensorRecord& r = source();
      return packed->dtype() != r.dtype || r.is_double || r.divisors;
    }
    StoredRows stored() const {
      return {source(), ref->rows, ref->transposed, ref->step, ref->inputs.first};
    }
  };
  std::vector<Matrix*> at(Home home) const {
    std::vector<Matrix*> all;
    std::ranges::copy_if(in_order_, std::back_inserter(all),
                         [&](const Matrix* m) { return m->home == home; });
    return all;
  }
  // What a matrix is packed as: encoded, from compact rows, or neither.
  struct Packing {
    DType dtype;
    bool encode;
    const CompactRows* compact;
  };
  Packing packing_of(const TensorRef& ref, const TensorRecord& r, Format format) const;
  const CompactRows* compact_of(const TensorRef& ref, const TensorRecord& r, Format format) const;
  const std::vector<int32_t>* order_of(const CompactRows& compact);
  void take(const CompactRows& compact, Matrix& m);
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
  Home home_ = kHost;
  std::map<std::pair<TensorRef, Home>, Matrix> matrices_;
  std::set<std::vector<int32_t>> orders_;             // of columns: equal ones are one
  std::vector<std::unique_ptr<PackedTensor>> empty_;  // of members that have no row
  std::vector<Matrix*> in_order_;  // of matrix(), which is the order in which a step reads them
  Buffer arena_;                   // one for all, to fit huge pages
  std::map<TensorRef, Buffer> vectors_;
  std::map<std::vector<TensorRef>, Buffer> joined_;
  std::map<int64_t, Buffer> ones_;
};

}  // namespace pyflow
