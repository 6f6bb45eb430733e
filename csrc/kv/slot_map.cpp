#include "kv/slot_map.h"

#include <algorithm>
#include <bit>

namespace pyflow::kv {

SlotMap::SlotMap(int64_t capacity, int64_t room)
    : capacity_(capacity),
      room_(room),
      taken_(static_cast<size_t>((capacity + 63) / 64)),
      recent_(taken_.size()) {}

void SlotMap::take(int32_t slot) {
  taken_[static_cast<size_t>(slot) / 64] |= uint64_t{1} << (slot % 64);
  ++used_;
}

void SlotMap::release(int32_t slot, int32_t n) {
  for (int32_t i = slot; i < slot + n; ++i)
    taken_[static_cast<size_t>(i) / 64] &= ~(uint64_t{1} << (i % 64));
  used_ -= n;
}

int64_t SlotMap::next(int64_t slot, bool taken) const {
  while (slot < capacity_) {
    const uint64_t word = taken_[static_cast<size_t>(slot) / 64];
    const uint64_t wanted = (taken ? word : ~word) >> (slot % 64);
    if (wanted != 0) return std::min(capacity_, slot + std::countr_zero(wanted));
    slot = (slot / 64 + 1) * 64;
  }
  return capacity_;
}

int32_t SlotMap::open_stretch(int32_t position) const {
  int64_t first = 0, last = 0;
  for (int64_t a = next(0, false); a < capacity_;) {
    const int64_t b = next(a, true);
    if (b - a > last - first) first = a, last = b;
    a = next(b, false);
  }
  // Whoever lies before the gap, round the ring, may still grow into it: leave him half, or room.
  const bool neighbour = first > 0 || taken(static_cast<int32_t>(capacity_ - 1));
  int64_t slot = neighbour ? first + std::min((last - first) / 2, room_) : first;
  // Sixteen cells share a block of keys: let blocks begin where sixteens of positions do.
  const int64_t aligned = slot + (((position - slot) % 16) + 16) % 16;
  if (aligned < last) slot = aligned;
  return static_cast<int32_t>(slot);
}

int32_t SlotMap::place(int32_t previous, int32_t position) {
  int32_t slot = -1;
  if (previous >= 0) {
    slot = after(previous);
    while (test(recent_, slot) && slot != previous) slot = after(slot);
  }
  if (slot < 0 || taken(slot)) slot = open_stretch(position);
  take(slot);
  recent_[static_cast<size_t>(slot) / 64] |= uint64_t{1} << (slot % 64);
  return slot;
}

void SlotMap::settle(std::span<const int32_t> placed) {
  for (int32_t slot : placed)
    recent_[static_cast<size_t>(slot) / 64] &= ~(uint64_t{1} << (slot % 64));
}

}  // namespace pyflow::kv
