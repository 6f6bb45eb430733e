#include "link/board.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace pyflow {
namespace {

constexpr size_t kHalf = size_t{64} << 10;
constexpr size_t kLine = 64;

void nap() {
  const timespec t{0, 100'000};
  nanosleep(&t, nullptr);
}

}  // namespace

// What others see of a member.
struct BoardLink::Place {
  alignas(kLine) std::atomic<uint64_t> turn;  // that it has written
  std::atomic<uint32_t> gone;
  RoundHeader headers[2];
  alignas(kLine) uint8_t halves[2][kHalf];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // processes share it

namespace {
// Not more than 2^20 members.
constexpr size_t kPlace = 2 * kHalf + 2 * kLine + 64;
}  // namespace

size_t board_nbytes(int64_t size) { return static_cast<size_t>(size) * kPlace; }

BoardLink::BoardLink(std::shared_ptr<uint8_t> board, int64_t number, int64_t size)
    : Link(number, size), board_(std::move(board)) {
  static_assert(sizeof(Place) <= kPlace && kPlace % kLine == 0);
}

BoardLink::~BoardLink() { BoardLink::leave(); }

void BoardLink::leave() noexcept { place(number()).gone.store(1, std::memory_order_release); }

BoardLink::Place& BoardLink::place(int64_t member) const {
  return *reinterpret_cast<Place*>(board_.get() + static_cast<size_t>(member) * kPlace);
}

void BoardLink::transfer(const RoundHeader& header, std::span<const uint8_t> own, Pieces in,
                         Waiter& waiter) {
  size_t most = own.size();
  for (int64_t m = 0; m < size(); ++m)
    if (m != number()) most = std::max(most, in[static_cast<size_t>(m)].size());
  Place& mine = place(number());
  size_t at = 0;
  do {
    const uint64_t turn = ++turn_;
    const size_t half = turn & 1;
    const auto part = [at](size_t n) { return std::min(kHalf, n - std::min(n, at)); };
    mine.headers[half] = header;
    if (part(own.size())) std::memcpy(mine.halves[half], own.data() + at, part(own.size()));
    mine.turn.store(turn, std::memory_order_release);
    for (int64_t m = 0; m < size(); ++m) {
      if (m == number()) continue;
      const Place& other = place(m);
      while (other.turn.load(std::memory_order_acquire) < turn) {
        if (other.gone.load(std::memory_order_acquire) &&
            other.turn.load(std::memory_order_acquire) < turn)
          lost(m, "has ended");
        waiter.pause(nap);
      }
      const std::span<uint8_t> to = in[static_cast<size_t>(m)];
      check(m, other.headers[half], to.size());
      if (part(to.size())) std::memcpy(to.data() + at, other.halves[half], part(to.size()));
    }
    at += kHalf;
  } while (at < most);
}

std::vector<std::unique_ptr<Link>> thread_links(int64_t size) {
  const size_t nbytes = board_nbytes(size);
  const std::shared_ptr<uint8_t> board(
      static_cast<uint8_t*>(::operator new(nbytes, std::align_val_t{kLine})),
      [](uint8_t* p) { ::operator delete(p, std::align_val_t{kLine}); });
  std::memset(board.get(), 0, nbytes);
  std::vector<std::unique_ptr<Link>> all;
  for (int64_t m = 0; m < size; ++m) all.push_back(std::make_unique<BoardLink>(board, m, size));
  return all;
}

std::unique_ptr<Link> file_link(int fd, int64_t number, int64_t size, int64_t offset) {
  const size_t nbytes = board_nbytes(size);
  struct stat found {};
  if (fstat(fd, &found) != 0 || found.st_size < static_cast<off_t>(nbytes) + offset)
    throw ResourceError("group: shared memory: expected " + std::to_string(nbytes) + " bytes");
  void* memory = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);
  if (memory == MAP_FAILED)
    throw ResourceError("group: shared memory of " + std::to_string(nbytes) +
                        " bytes: " + std::strerror(errno));
  const std::shared_ptr<uint8_t> board(static_cast<uint8_t*>(memory),
                                       [nbytes](uint8_t* p) { munmap(p, nbytes); });
  return std::make_unique<BoardLink>(board, number, size);
}

}  // namespace pyflow
