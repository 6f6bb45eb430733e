// A link through memory that all members see: of threads, or of processes of one machine.
//
// Each member has a place with two halves, which serve every other round. A member that begins
// round n has everything of round n - 1, so all others have begun that one, and are done with the
// half of round n - 2. Larger pieces take several turns.
#pragma once

#include <memory>
#include <vector>

#include "link/link.h"

namespace pyflow {

// Bytes of a board of so many members; they begin as zeros.
size_t board_nbytes(int64_t size);

class BoardLink final : public Link {
 public:
  // On a border of 64 bytes.
  BoardLink(std::shared_ptr<uint8_t> board, int64_t number, int64_t size);
  ~BoardLink() override;

 protected:
  void transfer(const RoundHeader& header, std::span<const uint8_t> own, Pieces in,
                Waiter& waiter) override;
  void leave() noexcept override;

 private:
  struct Place;
  Place& place(int64_t member) const;
  std::shared_ptr<uint8_t> board_;
  uint64_t turn_ = 0;
};

// The links of threads of one process.
std::vector<std::unique_ptr<Link>> thread_links(int64_t size);
// Over a shared file, which other members map too, from a page on. Throws ResourceError.
std::unique_ptr<Link> file_link(int fd, int64_t number, int64_t size, int64_t offset);

}  // namespace pyflow
