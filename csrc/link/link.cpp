#include "link/link.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace pyflow {
namespace {

constexpr uint64_t kMostText = uint64_t{1} << 30;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

std::string text_of(const RoundHeader& header) {
  return "round " + std::to_string(header.number) + " of kind " + std::to_string(header.kind) +
         " with " + std::to_string(header.nbytes) + " bytes";
}

}  // namespace

void Link::Waiter::relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

bool Link::Waiter::look() {
  if (link_.aborted_.load(std::memory_order_relaxed)) throw LinkError("group: the link was closed");
  const int64_t now = now_ns();
  if (n_ == kSpins + 1) began_ns_ = now;
  const int64_t waited = now - began_ns_;
  if (link_.round_deadline_ms_ != kForever && waited > link_.round_deadline_ms_ * 1'000'000)
    throw LinkError("group: a member has not answered for " +
                    std::to_string(link_.round_deadline_ms_) + " ms");
  if (waited > kAwakeNs) return true;
  sched_yield();
  return false;
}

bool Link::exchange(RoundKind kind, bool flag, std::span<const uint8_t> own, Pieces in) {
  return exchange_within(deadline_ms_, kind, flag, own, in);
}

void Link::begin(bool flag, uint64_t nbytes, std::span<const uint8_t> first) {
  if (!sends_early_ || !broken_.empty()) return;
  expected_.kind = static_cast<uint32_t>(RoundKind::Gather);
  expected_.flag = flag;
  expected_.nbytes = nbytes;
  send_first(expected_, first);
}

bool Link::exchange_within(int64_t deadline_ms, RoundKind kind, bool flag,
                           std::span<const uint8_t> own, Pieces in) {
  if (!broken_.empty()) throw LinkError(broken_);
  round_deadline_ms_ = deadline_ms;
  expected_.kind = static_cast<uint32_t>(kind);
  expected_.flag = flag;
  expected_.nbytes = own.size();
  leaders_flag_ = flag;
  try {
    Waiter waiter(*this);
    transfer(expected_, own, in, waiter);
  } catch (const LinkError& error) {
    broken_ = error.what();
    leave();
    throw;
  }
  ++expected_.number;
  if (kind == RoundKind::Gather) {
    ++n_gathers_;
    for (int64_t m = 0; m < size_; ++m)
      if (m != number_) n_gathered_ += in[static_cast<size_t>(m)].size();
  }
  return leaders_flag_;
}

std::vector<double> Link::time_rounds(int64_t nbytes, int64_t n, double pause_s, RoundKind kind) {
  std::vector<uint8_t> all(static_cast<size_t>(nbytes * size_));
  std::vector<std::span<uint8_t>> in;
  for (int64_t m = 0; m < size_; ++m)
    in.push_back(
        std::span(all).subspan(static_cast<size_t>(m * nbytes), static_cast<size_t>(nbytes)));
  const auto pause_ns = static_cast<int64_t>(1e9 * std::clamp(pause_s, 0.0, 1.0));
  std::vector<double> found;
  for (int64_t i = 0; i < n; ++i) {
    for (const int64_t until = now_ns() + pause_ns; now_ns() < until;) {
    }
    const int64_t begun = now_ns();
    exchange(kind, false, in[static_cast<size_t>(number_)], in);
    found.push_back(1e-9 * static_cast<double>(now_ns() - begun));
  }
  return found;
}

void Link::check(int64_t from, const RoundHeader& found, uint64_t nbytes) {
  RoundHeader expected = expected_;
  expected.nbytes = nbytes;
  if (found.number != expected.number || found.kind != expected.kind || found.nbytes != nbytes)
    throw LinkError("group: member " + std::to_string(from) + ": expected " + text_of(expected) +
                    ", found " + text_of(found) + "; run the same pyflow on all ranks");
  if (from == 0) leaders_flag_ = found.flag != 0;
}

void Link::lost(int64_t member, const std::string& why) const {
  throw LinkError("group: member " + std::to_string(member) + " " + why);
}

void Link::say(std::span<const uint8_t> text) {
  const std::vector<std::span<uint8_t>> nothing(static_cast<size_t>(size_));
  const uint64_t n = text.size();
  uint8_t bytes[sizeof n];
  std::memcpy(bytes, &n, sizeof n);
  exchange(RoundKind::Word, false, bytes, nothing);
  exchange(RoundKind::Text, false, text, nothing);
}

std::vector<uint8_t> Link::hear() {
  std::vector<std::span<uint8_t>> in(static_cast<size_t>(size_));
  uint64_t n = 0;
  uint8_t bytes[sizeof n];
  in[0] = bytes;
  exchange_within(kForever, RoundKind::Word, false, {}, in);
  std::memcpy(&n, bytes, sizeof n);
  if (n > kMostText) lost(0, "says " + std::to_string(n) + " bytes");
  std::vector<uint8_t> text(n);
  in[0] = text;
  exchange(RoundKind::Text, false, {}, in);
  return text;
}

bool Link::agree(bool answer) {
  const std::vector<std::span<uint8_t>> nothing(static_cast<size_t>(size_));
  return exchange(RoundKind::Word, answer, {}, nothing);
}

void Link::meet(std::span<const uint8_t> plan) {
  std::vector<std::vector<uint8_t>> others(static_cast<size_t>(size_),
                                           std::vector<uint8_t>(plan.size()));
  std::vector<std::span<uint8_t>> in(others.begin(), others.end());
  exchange_within(kForever, RoundKind::Meeting, false, plan, in);
  for (int64_t m = 0; m < size_; ++m)
    if (m != number_ && !std::ranges::equal(others[static_cast<size_t>(m)], plan)) {
      broken_ = "group: member " + std::to_string(m) +
                " has another plan; give all ranks the same options";
      throw LinkError(broken_);
    }
  learn();
}

}  // namespace pyflow
