// How members that share a stage exchange bytes. It does no arithmetic on them, so that nothing
// depends on the order in which they arrive.
//
// All members make the same rounds in the same order. In a round each one gives a piece to all
// others and takes theirs, whose sizes all members know; a header before each piece says which
// round it is of, so that members that have fallen out of step end with an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"

namespace pyflow {

// Another member of a group does not answer, has ended, or does something else. The link between
// them is of no use then.
struct LinkError : Error {
  using Error::Error;
};

// What a round is for. The number of Meeting changes with what gathers bring, so that members of
// another version do not begin: 4 had f32 alone.
enum class RoundKind : uint32_t { Gather = 1, Word = 2, Text = 3, Meeting = 5 };

// Before each piece, little-endian as all that we run on.
struct RoundHeader {
  uint64_t number;  // rounds of the link before this one
  uint64_t nbytes;  // of the piece
  uint32_t kind;
  uint32_t flag;  // member 0's is everybody's
};

class Link {
 public:
  Link(int64_t number, int64_t size) : number_(number), size_(size) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Which member this is, of so many.
  int64_t number() const { return number_; }
  int64_t size() const { return size_; }

  // A round: `own` goes to all others, member m's piece to in[m]; in[number()] is not used. Returns
  // member 0's flag. Throws LinkError, at once if an earlier round has.
  using Pieces = std::span<const std::span<uint8_t>>;
  bool exchange(RoundKind kind, bool flag, std::span<const uint8_t> own, Pieces in);

  // Before a round of Gather: `first` are the first bytes of `nbytes` that this member will give. They
  // are on their way while it computes the rest, where that helps (sends_early).
  void begin(bool flag, uint64_t nbytes, std::span<const uint8_t> first);
  // Whether it does: bytes take longer on their way than a call into the kernel takes.
  bool sends_early() const { return sends_early_; }
  void set_sends_early(bool early) { sends_early_ = early; }

  // What member 0 says to all others, who wait for it without a deadline.
  void say(std::span<const uint8_t> text);
  std::vector<uint8_t> hear();
  // Member 0's answer, which all others get.
  bool agree(bool answer);
  // The first round, without a deadline: LinkError unless all members bring the same bytes.
  void meet(std::span<const uint8_t> plan);

  // Rounds of Gather so far, and the bytes that others have sent in them.
  uint64_t n_gathers() const { return n_gathers_; }
  uint64_t n_gathered() const { return n_gathered_; }
  // Seconds of each of n rounds, nbytes of each member, after so long a time of work.
  std::vector<double> time_rounds(int64_t nbytes, int64_t n, double pause_s,
                                  RoundKind kind = RoundKind::Gather);

  // How long others may be late.
  void set_deadline_ms(int64_t ms) { deadline_ms_ = ms; }
  // Ends the round in progress, if any, and all later ones, by LinkError; the other members' too.
  // From any thread.
  void abort() noexcept {
    aborted_.store(true, std::memory_order_relaxed);
    leave();
  }

 protected:
  static constexpr int64_t kForever = -1;

  // Pauses of a wait: first none, since others are mostly late by microseconds; then other threads
  // may run; then sleep. Throws LinkError if the link was aborted or the deadline has passed.
  class Waiter {
   public:
    explicit Waiter(const Link& link) : link_(link) {}
    // Something has moved: waiting begins anew.
    void moved() { n_ = 0; }
    // sleep(): waits for up to a millisecond.
    template <class Sleep>
    void pause(Sleep&& sleep) {
      if (++n_ <= kSpins) return relax();
      if (look()) sleep();
    }

   private:
    static constexpr int64_t kSpins = 1000;         // some 30 us
    static constexpr int64_t kAwakeNs = 2'000'000;  // then it sleeps
    static void relax();
    bool look();  // whether to sleep; gives the core away otherwise
    const Link& link_;
    int64_t n_ = 0, began_ns_ = 0;
  };

  // Sends header and own to all others, and receives theirs. check(m, header) before a piece is
  // used. `waiter` pauses.
  virtual void transfer(const RoundHeader& header, std::span<const uint8_t> own, Pieces in,
                        Waiter& waiter) = 0;
  // Sends what can be sent at once of a header and the first bytes of a piece, of which transfer()
  // then sends the rest.
  virtual void send_first(const RoundHeader&, std::span<const uint8_t>) {}
  // At the end of a meeting; all members make the same rounds.
  virtual void learn() {}
  // Lets the others know that this member makes no more rounds. From any thread.
  virtual void leave() noexcept = 0;
  void check(int64_t from, const RoundHeader& found, uint64_t nbytes);
  [[noreturn]] void lost(int64_t member, const std::string& why) const;
  bool leaders_flag_ = false;  // of the round in progress, set by check()
  bool sends_early_ = false;

 private:
  bool exchange_within(int64_t deadline_ms, RoundKind kind, bool flag, std::span<const uint8_t> own,
                       Pieces in);
  int64_t number_, size_;
  RoundHeader expected_{};
  int64_t deadline_ms_ = 60'000, round_deadline_ms_ = kForever;
  uint64_t n_gathers_ = 0, n_gathered_ = 0;
  std::atomic<bool> aborted_{false};
  std::string broken_;  // why an earlier round has failed
};

}  // namespace pyflow
