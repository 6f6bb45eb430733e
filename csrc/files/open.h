// Tells formats apart by the bytes of a file.
#pragma once

#include <memory>
#include <string>

#include "files/checkpoint.h"
#include "files/torch/torch.h"

namespace pyflow {

// Opens the checkpoint at path, all parts of it when that is an index of shards. Null when the file
// is none of a format that we read. FormatError, UnsupportedError and ResourceError as the format's
// own class says. `inflate` unpacks members of zip archives; without, deflated ones are refused.
std::shared_ptr<Checkpoint> open_checkpoint(const std::string& path, const Inflate& inflate = {});

}  // namespace pyflow
