// Python pickles, protocols 2 to 5, as torch.save writes them: a stack machine that builds data and
// nothing else (docs.python.org/3/library/pickletools.html lists the opcodes).
//
// A pickle is a program: GLOBAL names a function anywhere in Python, REDUCE calls it. Here a global
// is a name. A few names are known, of what rebuilds tensors, and each of these is a constructor of
// ours (pickle_reduce.cpp). Any other is noted, what is made of it stays an empty shell, and the
// pickle is refused at its end with all such names. Nothing is imported, nothing is called.
//
// Whatever the pickle says, it takes memory in proportion to its length, and time too: values are
// numbers or indices, containers are never copied, and nothing here recurses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/cursor.h"
#include "files/tensor_type.h"

namespace pyflow {

struct PickleValue {
  enum class Kind : uint8_t {
    None,
    Bool,
    Int,
    Float,
    Text,  // UTF-8
    Bytes,
    BigInt,  // little-endian, two's complement, more than 8 bytes
    Tuple,   // these three by their index in Pickle::items
    List,
    Dict,  // key, value, key, value...
    Set,
    Global,   // by its index in Pickle::globals
    Type,     // a dtype of torch, by its index in Pickle::types
    Storage,  // by its index in Pickle::storages
    Tensor,   // by its index in Pickle::tensors
    Shell,    // of something that is not known
  };
  Kind kind = Kind::None;
  uint32_t size = 0;  // of text and bytes
  union {
    bool truth;
    int64_t number;
    double real;
    const char* data;  // text and bytes, where they lie
    uint32_t index;
  };

  PickleValue() : number(0) {}
  explicit PickleValue(Kind k, uint32_t i = 0) : kind(k), index(i) {}
  std::string_view text() const { return {data, size}; }
};
static_assert(sizeof(PickleValue) == 16);
// What values of a kind are called.
std::string_view kind_name(PickleValue::Kind kind);

// A name that the pickle asks for.
struct PickleGlobal {
  std::string module, name;
  uint64_t offset = 0;     // in the file, of the opcode
  bool known = false;      // it is one of those that rebuild tensors
  bool runs_code = false;  // a name by which pickles are known to run code

  std::string full() const { return module + "." + name; }
};

// What a pickle says of a storage, which lies elsewhere in the file.
struct PickleStorage {
  std::string_view key;
  TensorType type;  // of its elements; U8 when the storage has none
  uint64_t n_elements = 0;
  uint64_t first = 0;   // element at which a view into it starts
  uint64_t offset = 0;  // in the file, of the opcode
};

struct PickleTensor {
  uint32_t storage = 0;
  TensorType type;
  uint64_t first_byte = 0;  // in the storage
  std::vector<int64_t> shape, strides;
  uint64_t offset = 0;    // in the file, of the opcode
  std::string_view lazy;  // "conj", "neg": what is still to be done to its values
};

// Values live as long as the bytes that they were read from.
class Pickle {
 public:
  std::vector<std::vector<PickleValue>> items;
  std::vector<PickleGlobal> globals;  // in the order in which they are asked for, each once
  std::vector<TensorType> types;
  std::vector<PickleStorage> storages;
  std::vector<PickleTensor> tensors;
  PickleValue root;

  // Runs the pickle from where `in` stands, up to its end. FormatError: it is broken, too large, or
  // of opcodes that torch.save does not write; then `globals` are those asked for so far. Globals
  // that are not known do not stop it.
  void run(Cursor& in);
  // FormatError, naming them, when globals have been asked for that are not known.
  void refuse_unknown(const Cursor& in) const;

  const std::vector<PickleValue>& items_of(const PickleValue& v) const { return items[v.index]; }
};

}  // namespace pyflow
