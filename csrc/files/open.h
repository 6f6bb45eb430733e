// Tells formats apart by the bytes of a file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "files/checkpoint.h"
#include "files/torch/torch.h"

namespace pyflow {

// Opens the checkpoint at path, all parts of it when that is an index of shards. Null when the file
// is none of a format that we read. FormatError, UnsupportedError and ResourceError as the format's
// own class says. `inflate` unpacks members of zip archives; without, deflated ones are refused.
std::shared_ptr<Checkpoint> open_checkpoint(const std::string& path, const Inflate& inflate = {});

// Opens these files as one checkpoint that is called after the first. Throws as open_checkpoint;
// FormatError if a file is of no format that we read.
std::shared_ptr<Checkpoint> open_shards(const std::vector<std::string>& paths,
                                        const Inflate& inflate = {});

}  // namespace pyflow
