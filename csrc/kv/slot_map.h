// Which slots of a group are taken, and where the next cell goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pyflow::kv {

// Cells that a text gets to itself at least: those of a long answer. All that it gets is memory that
// may never have been touched: in halves of 65,536 cells each new text of a model of 30 layers cost
// 62 huge pages, 0.04 to 0.9 s.
inline constexpr int64_t kRoom = 1024;

class SlotMap {
 public:
  // room: what a text gets to itself, if there is as much.
  SlotMap(int64_t capacity, int64_t room);

  int64_t capacity() const { return capacity_; }
  int64_t room() const { return room_; }
  int64_t used() const { return used_; }
  int64_t free() const { return capacity_ - used_; }
  bool taken(int32_t slot) const { return test(taken_, slot); }
  // The next slot round the ring.
  int32_t after(int32_t slot) const { return slot + 1 < capacity_ ? slot + 1 : 0; }

  void take(int32_t slot);
  void release(int32_t slot, int32_t n = 1);

  // Takes a free slot (there must be one) for the cell at `position` whose predecessor in the
  // sequence lies at `previous`, -1 if it has none. The slot after the predecessor is best: views
  // become runs of consecutive slots, and a window's text goes round its capacity as in a ring.
  // Slots that place() itself has given out since settle() are skipped, so the branches of a tree
  // lie side by side. Otherwise the cell opens a new stretch in the largest gap.
  int32_t place(int32_t previous, int32_t position);
  void settle(std::span<const int32_t> placed);

 private:
  using Bits = std::vector<uint64_t>;
  static bool test(const Bits& bits, int32_t slot) {
    return (bits[static_cast<size_t>(slot) / 64] >> (slot % 64) & 1) != 0;
  }
  // The first slot at or after `slot` that is (not) taken; capacity if there is none.
  int64_t next(int64_t slot, bool taken) const;
  int32_t open_stretch(int32_t position) const;

  int64_t capacity_, room_;
  int64_t used_ = 0;
  Bits taken_, recent_;
};

}  // namespace pyflow::kv
