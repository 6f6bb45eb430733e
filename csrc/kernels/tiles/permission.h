// Leave to use tiles, which Linux gives a process only if it asks.
#pragma once

#include <string>

namespace pyflow {

// Asks for it, for all threads. Returns why it was refused, or nothing.
std::string ask_for_tiles();

}  // namespace pyflow
