#include "link/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace pyflow {
namespace {

// A header and a piece of which the first bytes have been moved.
struct Parts {
  uint8_t* header;
  uint8_t* piece;
  size_t nbytes;  // of the piece
  size_t moved = 0;

  size_t left() const { return sizeof(RoundHeader) + nbytes - moved; }
  // What is left, as one or two parts.
  std::pair<std::array<iovec, 2>, size_t> rest() const {
    const size_t of_header = std::min(moved, sizeof(RoundHeader)), of_piece = moved - of_header;
    if (of_header == sizeof(RoundHeader)) return {{{{piece + of_piece, nbytes - of_piece}, {}}}, 1};
    return {{{{header + of_header, sizeof(RoundHeader) - of_header}, {piece, nbytes}}}, 2};
  }
};

// Moves what can be moved at once; 0: nothing could. The error, or -1 at the end of the stream.
ssize_t move(Parts& parts, int fd, bool out, int& error) {
  if (parts.left() == 0) return 0;
  auto [rest, n] = parts.rest();
  msghdr message{};
  message.msg_iov = rest.data();
  message.msg_iovlen = n;
  const ssize_t moved = out ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recvmsg(fd, &message, MSG_DONTWAIT);
  if (moved > 0) {
    parts.moved += static_cast<size_t>(moved);
    return moved;
  }
  if (moved == 0) return -1;
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  error = errno;
  return -1;
}

class SocketLink final : public Link {
 public:
  SocketLink(std::vector<int> fds, int64_t number)
      : Link(number, std::ssize(fds)), fds_(std::move(fds)), begun_(fds_.size()) {
    const int on = 1;
    for (size_t m = 0; m < fds_.size(); ++m)
      if (is_other(m))  // not TCP: nothing to switch off
        setsockopt(fds_[m], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  ~SocketLink() override {
    for (size_t m = 0; m < fds_.size(); ++m)
      if (is_other(m)) close(fds_[m]);
  }

 protected:
  void transfer(const RoundHeader& header, std::span<const uint8_t> own, Pieces in,
                Waiter& waiter) override {
    const size_t n = fds_.size();
    RoundHeader sent = header;
    std::vector<RoundHeader> headers(n);
    std::vector<Parts> out(n), back(n);
    // sendmsg does not write to what it sends.
    auto* piece = const_cast<uint8_t*>(own.data());
    for (size_t m = 0; m < n; ++m) {
      out[m] = {reinterpret_cast<uint8_t*>(&sent), piece, own.size(), std::exchange(begun_[m], 0)};
      back[m] = {reinterpret_cast<uint8_t*>(&headers[m]), in[m].data(), in[m].size()};
    }
    for (bool done = false; !done;) {
      done = true;
      bool moved = false;
      for (size_t m = 0; m < n; ++m) {
        if (!is_other(m)) continue;
        const bool had_header = back[m].moved >= sizeof(RoundHeader);
        moved |= some(m, out[m], true);
        moved |= some(m, back[m], false);
        if (!had_header && back[m].moved >= sizeof(RoundHeader))
          check(static_cast<int64_t>(m), headers[m], in[m].size());
        done &= out[m].left() == 0 && back[m].left() == 0;
      }
      if (moved)
        waiter.moved();
      else if (!done)
        waiter.pause([&] { sleep(out, back); });
    }
  }

  void send_first(const RoundHeader& header, std::span<const uint8_t> first) override {
    RoundHeader sent = header;
    for (size_t m = 0; m < fds_.size(); ++m) {
      if (!is_other(m)) continue;
      Parts parts = {reinterpret_cast<uint8_t*>(&sent), const_cast<uint8_t*>(first.data()),
                     first.size()};
      int error = 0;
      move(parts, fds_[m], true, error);  // what fails fails again in transfer()
      begun_[m] = parts.moved;
    }
  }

  // Where bytes are slow, as on gigabit Ethernet, calls into the kernel cost less than they save.
  void learn() override {
    const double small = best_s(kSmallRound), large = best_s(kLargeRound);
    const auto nbytes = static_cast<double>((size() - 1) * (kLargeRound - kSmallRound));
    set_sends_early(large - small > nbytes / kFastBytesPerS);
  }

  void leave() noexcept override {
    for (size_t m = 0; m < fds_.size(); ++m)
      if (is_other(m)) shutdown(fds_[m], SHUT_RDWR);
  }

 private:
  bool is_other(size_t m) const { return static_cast<int64_t>(m) != number(); }

  bool some(size_t m, Parts& parts, bool out) {
    int error = 0;
    const ssize_t n = move(parts, fds_[m], out, error);
    if (n < 0)
      lost(static_cast<int64_t>(m),
           error ? std::string("cannot be reached: ") + std::strerror(error) : "has ended");
    return n > 0;
  }

  void sleep(const std::vector<Parts>& out, const std::vector<Parts>& back) const {
    std::vector<pollfd> all;
    for (size_t m = 0; m < fds_.size(); ++m) {
      const auto events =
          static_cast<short>((out[m].left() ? POLLOUT : 0) | (back[m].left() ? POLLIN : 0));
      if (is_other(m) && events) all.push_back({fds_[m], events, 0});
    }
    poll(all.data(), all.size(), 1);
  }

  // Of some rounds.
  double best_s(int64_t nbytes) {
    return std::ranges::min(time_rounds(nbytes, kTimedRounds, 0, RoundKind::Meeting));
  }
  static constexpr int64_t kSmallRound = 64, kLargeRound = 64 << 10, kTimedRounds = 5;
  static constexpr double kFastBytesPerS = 400e6;

  std::vector<int> fds_;
  std::vector<size_t> begun_;  // bytes of the next round that have been sent
};

}  // namespace

std::unique_ptr<Link> socket_link(std::vector<int> fds, int64_t number) {
  return std::make_unique<SocketLink>(std::move(fds), number);
}

}  // namespace pyflow
