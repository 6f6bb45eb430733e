// The keys and values of source texts, which decoders see besides their own.
//
// A sequence of a context has a source or none. The cells of a source lie in a cache of their own, at
// positions 0 .. n - 1 of the sequence of the same number there, so sequences share a source as they
// share any cells: dst comes to hold src's, and they are free once no sequence holds them. A row sees
// all cells of its sequence's source, whatever its own position. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/table.h"
#include "kv/kv_cache.h"

namespace pyflow {

class Sources {
 public:
  // config: layers are those that see sources, n_ctx the cells of all sources together. The table
  // must outlive it. Throws as KvCache does.
  Sources(KvConfig config, const KernelTable& table);
  static size_t nbytes(const KvConfig& config) { return KvCache::nbytes(config); }

  // Reserves the next n cells of a sequence's source; the layers store keys and values at slots(),
  // then commit(), or drop() the source. Throws ShapeError, ResourceError as KvCache::begin does.
  void begin(int seq, int64_t n);
  void commit();
  std::span<const int32_t> slots(size_t layer) const { return cells_.slots(layer); }
  const KvView& view(size_t layer) const { return cells_.view(layer); }

  // dst gets the source that src has; ShapeError if it has one.
  void share(int src, int dst);
  // The sequence has no source from now on; idempotent.
  void drop(int seq);
  void clear();

  int64_t size(int seq) const { return cells_.seq_pos_max(seq) + 1; }
  // Cells that are free.
  int64_t n_free() const;
  // The cells of a sequence's source, which must have some; valid until it changes.
  RowView seen(int seq) const;

 private:
  // Slots of a source by position, and the positions.
  struct List {
    std::vector<int32_t> slots, positions;
  };
  void list(int seq);

  KvCache cells_;
  std::vector<List> lists_;  // by sequence
  int seq_ = 0;              // whose cells are pending
};

}  // namespace pyflow
