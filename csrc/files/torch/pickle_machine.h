// The machine that runs a pickle: pickle.cpp has its opcodes, pickle_reduce.cpp what stands for the
// functions that a pickle calls.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "files/torch/pickle.h"

namespace pyflow {

class PickleMachine {
 public:
  PickleMachine(Pickle& out, Cursor& in) : out_(out), in_(in) {}
  void run();

 private:
  using Kind = PickleValue::Kind;
  using Value = PickleValue;

  // One opcode; false at the end of the pickle.
  bool step();
  std::optional<Value> constant(uint8_t code);
  bool container(uint8_t code);
  bool memory(uint8_t code);

  // The stack. What lies below the latest mark is out of reach, as in Python.
  void push(const Value& v);
  Value pop();
  Value& top();
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  std::vector<Value> pop_to_mark();

  Value text(uint64_t nbytes, Kind kind);
  Value integer(uint64_t nbytes);
  Value make(Kind kind, std::vector<Value> items);
  void extend(Kind kind, std::vector<Value> items);
  Value global(std::string_view module, std::string_view name);
  std::string_view line();
  void memoize(uint64_t index);
  void budget(size_t n, size_t most, std::string_view what);

  // Calls of known globals, with a tuple of arguments.
  Value call(const Value& callee, const Value& arguments);
  Value ordered_dict(const std::vector<Value>& given);
  Value tensor(const std::vector<Value>& given, int version);
  Value persistent(const Value& id);
  std::string_view lazy_bit(const Value& metadata);
  std::vector<int64_t> dimensions(const Value& v, std::string_view field);
  uint64_t natural(const Value& v, std::string_view field);
  void check_extent(const PickleTensor& t);

  [[noreturn]] void fail(std::string_view field, std::string_view expected,
                         const std::string& found) const;
  const std::vector<Value>& items(const Value& v) const { return out_.items[v.index]; }

  Pickle& out_;
  Cursor& in_;
  uint64_t begin_ = 0;  // of the pickle
  uint64_t at_ = 0;     // of the opcode
  std::vector<Value> stack_, memo_;
  std::vector<size_t> marks_;
  size_t n_values_ = 0;
};

// What a global stands for.
enum class Known : uint8_t {
  OrderedDict,
  Tensor1,
  Tensor2,
  Tensor3,
  Parameter,
  Size,
  Device,
  Storage,
  Type
};
struct KnownGlobal {
  std::string_view module, name;
  Known what;
  std::string_view type = {};  // of a storage's elements, or the dtype
};
// Null for any other.
const KnownGlobal* known_global(std::string_view module, std::string_view name);
// Whether a pickle that asks for it is known to run code by it. Of most names nobody knows.
bool runs_code(std::string_view module, std::string_view name);

}  // namespace pyflow
