#include "kv/runs.h"

#include <string>

#include "core/errors.h"

namespace pyflow::kv {

size_t Runs::find(int64_t p) const {
  // Most questions are about the end of the text.
  if (!runs_.empty() && runs_.back().position <= p)
    return runs_.back().end() > p ? runs_.size() - 1 : runs_.size();
  const auto it =
      std::partition_point(runs_.begin(), runs_.end(), [p](const Run& r) { return r.end() <= p; });
  return static_cast<size_t>(it - runs_.begin());
}

bool Runs::contains(int64_t p) const {
  const size_t i = find(p);
  return i < runs_.size() && runs_[i].position <= p;
}

int32_t Runs::slot_before(int64_t p) const {
  size_t i = find(p);
  if (i < runs_.size() && runs_[i].position < p) ++i;
  while (i > 0) {
    const Run& r = runs_[--i];
    if (r.held()) return r.slot_at(static_cast<int32_t>(std::min(p, r.end()) - 1));
  }
  return -1;
}

int64_t Runs::next_evicted(int64_t p) const {
  for (size_t i = find(p); i < runs_.size(); ++i)
    if (!runs_[i].held()) return std::max<int64_t>(p, runs_[i].position);
  return -1;
}

const Run* Runs::evicted_before(int64_t p) const {
  for (size_t i = runs_.size(); i-- > 0;)
    if (!runs_[i].held() && runs_[i].position < p) return &runs_[i];
  return nullptr;
}

int64_t Runs::first_held() const {
  for (const Run& r : runs_)
    if (r.held()) return r.position;
  return -1;
}

int64_t Runs::last_held() const {
  for (size_t i = runs_.size(); i-- > 0;)
    if (runs_[i].held()) return runs_[i].end() - 1;
  return -1;
}

void Runs::insert(Run run) {
  const size_t i = find(run.position);
  const auto at = runs_.begin() + static_cast<ptrdiff_t>(i);
  const bool before = i > 0 && runs_[i - 1].joins(run);
  const bool after = i < runs_.size() && run.joins(runs_[i]);
  if (before) {
    runs_[i - 1].n += run.n;
    if (after) {
      runs_[i - 1].n += runs_[i].n;
      runs_.erase(at);
    }
  } else if (after) {
    runs_[i] = {run.position, run.slot, run.n + runs_[i].n};
  } else {
    runs_.insert(at, run);
  }
}

void Runs::erase(int64_t p0, int64_t p1) {
  if (p0 >= p1) return;
  size_t i = find(p0);
  if (i == runs_.size() || runs_[i].position >= p1) return;
  if (runs_[i].position < p0) {  // keep what lies below p0
    const Run whole = runs_[i];
    runs_[i] = whole.clip(whole.position, p0);
    ++i;
    if (whole.end() > p1) {
      runs_.insert(runs_.begin() + static_cast<ptrdiff_t>(i), whole.clip(p1, whole.end()));
      return;
    }
  }
  size_t last = i;
  while (last < runs_.size() && runs_[last].end() <= p1) ++last;
  if (last < runs_.size() && runs_[last].position < p1)
    runs_[last] = runs_[last].clip(p1, runs_[last].end());
  runs_.erase(runs_.begin() + static_cast<ptrdiff_t>(i),
              runs_.begin() + static_cast<ptrdiff_t>(last));
}

void Runs::evict(int64_t p0, int64_t p1) {
  erase(p0, p1);
  insert({static_cast<int32_t>(p0), kEvicted, static_cast<int32_t>(p1 - p0)});
}

void Runs::check(int64_t n_slots) const {
  for (size_t i = 0; i < runs_.size(); ++i) {
    const Run& r = runs_[i];
    const bool in_place = r.position >= 0 && r.n > 0 &&
                          (!r.held() || (r.slot >= 0 && int64_t{r.slot} + r.n <= n_slots));
    if (!in_place)
      throw Error("a run lies outside the cache: position " + std::to_string(r.position) +
                  ", slot " + std::to_string(r.slot) + ", " + std::to_string(r.n) + " cells");
    if (i > 0 && (runs_[i - 1].end() > r.position || runs_[i - 1].joins(r)))
      throw Error("runs overlap or should be one at position " + std::to_string(r.position));
  }
}

void subtract(std::vector<Run>& runs, const Run& taken) {
  for (size_t i = 0; i < runs.size();) {
    const Run r = runs[i];
    if (r.end() <= taken.position || r.position >= taken.end()) {
      ++i;
      continue;
    }
    const auto at = runs.erase(runs.begin() + static_cast<ptrdiff_t>(i));
    size_t kept = 0;
    if (r.end() > taken.end()) {
      runs.insert(at, r.clip(taken.end(), r.end()));
      ++kept;
    }
    if (r.position < taken.position) {
      runs.insert(runs.begin() + static_cast<ptrdiff_t>(i), r.clip(r.position, taken.position));
      ++kept;
    }
    i += kept;
  }
}

void intersect(std::vector<Run>& runs, const Runs& others, std::vector<Run>& scratch) {
  scratch.clear();
  for (const Run& r : runs)
    others.each(r.position, r.end(), [&](const Run& o) {
      if (o.held() && o.slot == r.slot_at(o.position)) scratch.push_back(o);
    });
  runs.swap(scratch);
}

}  // namespace pyflow::kv
