// Which of the 256 sequences a cell or a row belongs to.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace pyflow {

inline constexpr int kMaxSequences = 256;

class SequenceSet {
 public:
  constexpr SequenceSet() = default;
  constexpr SequenceSet(std::initializer_list<int> sequences) {
    for (int s : sequences) add(s);
  }

  constexpr void add(int s) { words_[word(s)] |= bit(s); }
  constexpr void remove(int s) { words_[word(s)] &= ~bit(s); }
  constexpr bool contains(int s) const { return (words_[word(s)] & bit(s)) != 0; }

  constexpr bool subset_of(const SequenceSet& other) const {
    uint64_t outside = 0;
    for (size_t i = 0; i < words_.size(); ++i) outside |= words_[i] & ~other.words_[i];
    return outside == 0;
  }
  constexpr bool intersects(const SequenceSet& other) const {
    uint64_t common = 0;
    for (size_t i = 0; i < words_.size(); ++i) common |= words_[i] & other.words_[i];
    return common != 0;
  }
  constexpr bool empty() const { return *this == SequenceSet(); }
  constexpr int size() const {
    int n = 0;
    for (uint64_t w : words_) n += std::popcount(w);
    return n;
  }
  constexpr SequenceSet& operator|=(const SequenceSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
    return *this;
  }
  constexpr bool operator==(const SequenceSet&) const = default;

  // The members in ascending order: for (int s : set).
  class Iterator {
   public:
    constexpr Iterator(const SequenceSet& set, int s) : set_(&set), s_(set.next(s)) {}
    constexpr int operator*() const { return s_; }
    constexpr Iterator& operator++() {
      s_ = set_->next(s_ + 1);
      return *this;
    }
    constexpr bool operator==(const Iterator& other) const { return s_ == other.s_; }

   private:
    const SequenceSet* set_;
    int s_;
  };
  constexpr Iterator begin() const { return {*this, 0}; }
  constexpr Iterator end() const { return {*this, kMaxSequences}; }
  // The lowest member; kMaxSequences when there is none.
  constexpr int first() const { return next(0); }

 private:
  static constexpr size_t word(int s) { return static_cast<size_t>(s) / 64; }
  static constexpr uint64_t bit(int s) { return uint64_t{1} << (s % 64); }
  // The lowest member that is at least s; kMaxSequences when there is none.
  constexpr int next(int s) const {
    for (size_t i = word(s); i < words_.size(); ++i) {
      const uint64_t from = i == word(s) ? ~uint64_t{0} << (s % 64) : ~uint64_t{0};
      if (const uint64_t w = words_[i] & from)
        return static_cast<int>(i) * 64 + std::countr_zero(w);
    }
    return kMaxSequences;
  }

  std::array<uint64_t, kMaxSequences / 64> words_{};
};

}  // namespace pyflow
