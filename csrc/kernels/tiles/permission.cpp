#include "kernels/tiles/permission.h"

#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#endif

namespace pyflow {

#if defined(__x86_64__)

// Linux: Documentation/arch/x86/xstate.rst. ENOSPC: a thread's alternate signal stack could not hold
// the larger state.
std::string ask_for_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0) return "";
  const int error = errno;
  const char* why = error == EPERM    ? "a sandbox forbids arch_prctl"
                    : error == ENOSPC ? "the signal stack of a thread is too small"
                                      : "Linux 5.16 or newer gives it";
  return "the system refused leave to use AMX (arch_prctl: " + std::string(std::strerror(error)) +
         "): " + why;
}

#else

std::string ask_for_tiles() { return "this architecture has no AMX"; }

#endif

}  // namespace pyflow
