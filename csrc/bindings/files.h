// Paths, texts and metadata of files, as Python has them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "bindings/bind.h"
#include "files/checkpoint.h"

namespace pyflow {

// The path as the system knows it, for str, bytes and os.PathLike.
std::string path_bytes(const py::object& path);
// What path_bytes was given, as str.
py::str path_text(const std::string& bytes);

// GGUF says UTF-8, tokenizers hold anything: bytes that are not UTF-8 become lone surrogates, and
// s.encode("utf-8", "surrogateescape") gives back exactly what the file has.
py::str text(std::string_view s);

// Unmaps what it has read.
py::dict metadata_dict(const Checkpoint& c);

// An Inflate by Python's own zlib: hardly any archive is deflated, so that a library to build with
// would not pay.
std::shared_ptr<const uint8_t> inflate(const uint8_t* data, uint64_t packed, uint64_t nbytes);

}  // namespace pyflow
