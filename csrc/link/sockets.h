// A link over connected sockets, one to each other member; between machines. It spins: waking a
// thread that sleeps in the kernel costs ten times a round.
#pragma once

#include <memory>
#include <vector>

#include "link/link.h"

namespace pyflow {

// Takes the sockets, fds[m] to member m; its own is not used.
std::unique_ptr<Link> socket_link(std::vector<int> fds, int64_t number);

}  // namespace pyflow
