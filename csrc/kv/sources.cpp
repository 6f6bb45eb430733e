#include "kv/sources.h"

#include <utility>

namespace pyflow {

Sources::Sources(KvConfig config, const KernelTable& table)
    : cells_(config, table), lists_(static_cast<size_t>(config.n_seq_max)) {}

void Sources::begin(int seq, int64_t n) {
  std::vector<KvRow> rows(static_cast<size_t>(n));
  auto position = static_cast<int32_t>(size(seq));
  for (KvRow& row : rows) row = {position++, {seq}};
  cells_.begin(rows);
  seq_ = seq;
}

void Sources::commit() {
  cells_.commit();
  list(seq_);
}

void Sources::share(int src, int dst) {
  cells_.seq_cp(src, dst, 0, -1);
  list(dst);
}

void Sources::drop(int seq) {
  if (!cells_.pending().empty()) cells_.abort();
  cells_.seq_rm(seq, 0, -1);
  list(seq);
}

void Sources::clear() {
  cells_.clear();
  for (List& each : lists_) each = {};
}

int64_t Sources::n_free() const {
  const KvGroup group = cells_.groups().front();
  return group.capacity - group.used;
}

RowView Sources::seen(int seq) const {
  const List& of = lists_[static_cast<size_t>(seq)];
  return {of.slots.data(), of.positions.data(), std::ssize(of.slots)};
}

void Sources::list(int seq) {
  List& of = lists_[static_cast<size_t>(seq)];
  of = {};
  for (const auto& [position, slot] : cells_.cells(0, seq)) {
    of.positions.push_back(position);
    of.slots.push_back(slot);
  }
}

}  // namespace pyflow
