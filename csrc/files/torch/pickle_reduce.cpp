#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "core/message.h"
#include "files/checkpoint.h"
#include "files/torch/pickle_machine.h"

namespace pyflow {
namespace {

constexpr size_t kMaxDims = 64;  // PyTorch's own limit

// All that is known. Methods and attributes of these are not: a name that goes further is another.
constexpr KnownGlobal kKnown[] = {
    {"collections", "OrderedDict", Known::OrderedDict},
    {"torch._utils", "_rebuild_tensor", Known::Tensor1},
    {"torch._utils", "_rebuild_tensor_v2", Known::Tensor2},
    {"torch._utils", "_rebuild_tensor_v3", Known::Tensor3},
    {"torch._utils", "_rebuild_parameter", Known::Parameter},
    {"torch._utils", "_rebuild_parameter_with_state", Known::Parameter},
    {"torch.nn.parameter", "Parameter", Known::Parameter},
    {"torch.nn", "Parameter", Known::Parameter},
    {"torch", "Size", Known::Size},
    {"torch", "device", Known::Device},
    {"torch.storage", "UntypedStorage", Known::Storage, "U8"},
    {"torch", "UntypedStorage", Known::Storage, "U8"},
    {"torch", "FloatStorage", Known::Storage, "F32"},
    {"torch", "DoubleStorage", Known::Storage, "F64"},
    {"torch", "HalfStorage", Known::Storage, "F16"},
    {"torch", "BFloat16Storage", Known::Storage, "BF16"},
    {"torch", "LongStorage", Known::Storage, "I64"},
    {"torch", "IntStorage", Known::Storage, "I32"},
    {"torch", "ShortStorage", Known::Storage, "I16"},
    {"torch", "CharStorage", Known::Storage, "I8"},
    {"torch", "ByteStorage", Known::Storage, "U8"},
    {"torch", "BoolStorage", Known::Storage, "BOOL"},
    {"torch", "ComplexFloatStorage", Known::Storage, "C64"},
    {"torch", "ComplexDoubleStorage", Known::Storage, "C128"},
    {"torch", "float64", Known::Type, "F64"},
    {"torch", "float32", Known::Type, "F32"},
    {"torch", "float16", Known::Type, "F16"},
    {"torch", "bfloat16", Known::Type, "BF16"},
    {"torch", "float8_e4m3fn", Known::Type, "F8_E4M3"},
    {"torch", "float8_e5m2", Known::Type, "F8_E5M2"},
    {"torch", "float8_e4m3fnuz", Known::Type, "F8_E4M3FNUZ"},
    {"torch", "float8_e5m2fnuz", Known::Type, "F8_E5M2FNUZ"},
    {"torch", "float8_e8m0fnu", Known::Type, "F8_E8M0"},
    {"torch", "int64", Known::Type, "I64"},
    {"torch", "int32", Known::Type, "I32"},
    {"torch", "int16", Known::Type, "I16"},
    {"torch", "int8", Known::Type, "I8"},
    {"torch", "uint64", Known::Type, "U64"},
    {"torch", "uint32", Known::Type, "U32"},
    {"torch", "uint16", Known::Type, "U16"},
    {"torch", "uint8", Known::Type, "U8"},
    {"torch", "bool", Known::Type, "BOOL"},
    {"torch", "complex32", Known::Type, "C32"},
    {"torch", "complex64", Known::Type, "C64"},
    {"torch", "complex128", Known::Type, "C128"},
};

// Modules whose functions start programs, import, open connections or change the interpreter.
constexpr std::string_view kRunners[] = {
    "os",        "posix",     "nt",      "subprocess", "_posixsubprocess",
    "sys",       "shutil",    "socket",  "runpy",      "importlib",
    "imp",       "pty",       "ctypes",  "webbrowser", "code",
    "codeop",    "pdb",       "bdb",     "timeit",     "profile",
    "cProfile",  "pickle",    "_pickle", "marshal",    "operator",
    "_operator", "zipimport", "pip",     "pydoc",      "commands"};
constexpr std::string_view kBuiltins[] = {
    "eval",   "exec", "execfile",   "compile", "getattr", "setattr", "delattr", "globals",
    "locals", "vars", "__import__", "open",    "file",    "input",   "apply",   "breakpoint"};

template <size_t N>
bool holds(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::string a(PickleValue::Kind kind) { return "a " + std::string(kind_name(kind)); }

}  // namespace

const KnownGlobal* known_global(std::string_view module, std::string_view name) {
  for (const KnownGlobal& g : kKnown)
    if (g.module == module && g.name == name) return &g;
  return nullptr;
}

bool runs_code(std::string_view module, std::string_view name) {
  const std::string_view top = module.substr(0, module.find('.'));
  if (top == "builtins" || top == "__builtin__")
    return holds(kBuiltins, name.substr(0, name.find('.')));
  if (holds(kRunners, top)) return true;
  // A name with dots goes through attributes: torch.serialization, os.system is os.system.
  for (size_t dot; (dot = name.find('.')) != name.npos; name.remove_prefix(dot + 1))
    if (holds(kRunners, name.substr(0, dot))) return true;
  return false;
}

std::string_view kind_name(PickleValue::Kind kind) {
  constexpr std::string_view kNames[] = {
      "None", "bool", "number", "float",  "text",  "bytes",   "number", "tuple",
      "list", "dict", "set",    "global", "dtype", "storage", "tensor", "global that is not known"};
  return kNames[static_cast<size_t>(kind)];
}

uint64_t PickleMachine::natural(const Value& v, std::string_view field) {
  if (v.kind != Kind::Int || v.number < 0)
    fail(field, "an integer of 0 or more",
         v.kind == Kind::Int ? std::to_string(v.number) : a(v.kind));
  return static_cast<uint64_t>(v.number);
}

std::vector<int64_t> PickleMachine::dimensions(const Value& v, std::string_view field) {
  if (v.kind != Kind::Tuple) fail(field, "a tuple of integers", a(v.kind));
  if (items(v).size() > kMaxDims) fail(field, "at most 64 dimensions", grouped(items(v).size()));
  std::vector<int64_t> out;
  for (const Value& dim : items(v)) out.push_back(static_cast<int64_t>(natural(dim, field)));
  return out;
}

// A call of something that is not known, or with such a thing, makes another such thing. So
// whatever hides behind it, all globals of the pickle come to light.
PickleValue PickleMachine::call(const Value& callee, const Value& arguments) {
  if (callee.kind == Kind::Shell || arguments.kind == Kind::Shell) return Value(Kind::Shell);
  if (callee.kind != Kind::Global) fail("call", "a global", a(callee.kind));
  const PickleGlobal& g = out_.globals[callee.index];
  if (arguments.kind != Kind::Tuple) fail("arguments", "a tuple", a(arguments.kind));
  const std::vector<Value>& given = items(arguments);
  for (const Value& v : given)
    if (v.kind == Kind::Shell) return Value(Kind::Shell);
  const auto expect = [&](size_t least, size_t most) {
    if (given.size() < least || given.size() > most)
      fail("arguments", grouped(least) + " to " + grouped(most) + " for " + g.full(),
           grouped(given.size()));
  };
  switch (known_global(g.module, g.name)->what) {
    case Known::OrderedDict:
      expect(0, 1);
      return ordered_dict(given);
    case Known::Tensor1:
      expect(4, 4);
      return tensor(given, 1);
    case Known::Tensor2:
      expect(6, 7);
      return tensor(given, 2);
    case Known::Tensor3:
      expect(7, 8);
      return tensor(given, 3);
    case Known::Parameter:
      expect(1, 4);
      if (given[0].kind != Kind::Tensor) fail("arguments", "a tensor", a(given[0].kind));
      return given[0];
    case Known::Size:
      expect(1, 1);
      if (given[0].kind != Kind::Tuple && given[0].kind != Kind::List)
        fail("arguments", "a tuple", a(given[0].kind));
      return given[0];
    case Known::Device:
      expect(1, 2);
      if (given[0].kind != Kind::Text) fail("arguments", "a text", a(given[0].kind));
      return given[0];
    case Known::Storage:
    case Known::Type:
      break;
  }
  fail("call", "a function that rebuilds tensors", g.full());
}

PickleValue PickleMachine::ordered_dict(const std::vector<Value>& given) {
  std::vector<Value> flat;
  if (!given.empty()) {  // as Python 2 has it: a list of pairs
    if (given[0].kind != Kind::List) fail("arguments", "a list of pairs", a(given[0].kind));
    for (const Value& pair : items(given[0])) {
      if ((pair.kind != Kind::List && pair.kind != Kind::Tuple) || items(pair).size() != 2)
        fail("arguments", "a list of pairs", a(pair.kind));
      flat.insert(flat.end(), items(pair).begin(), items(pair).end());
    }
  }
  return make(Kind::Dict, std::move(flat));
}

// version 1: (storage, first element, shape, strides)
// version 2: the same, requires_grad, hooks[, metadata]
// version 3: the same, requires_grad, hooks, dtype[, metadata]
PickleValue PickleMachine::tensor(const std::vector<Value>& given, int version) {
  if (given[0].kind != Kind::Storage) fail("storage", "a storage", a(given[0].kind));
  PickleTensor t;
  t.storage = given[0].index;
  t.offset = in_.in_file(at_);
  const PickleStorage& storage = out_.storages[t.storage];
  t.type = storage.type;
  if (version == 3) {
    if (given[6].kind != Kind::Type) fail("dtype", "a dtype", a(given[6].kind));
    t.type = out_.types[given[6].index];
  }
  const size_t metadata = version == 3 ? 7 : 6;
  if (given.size() > metadata) t.lazy = lazy_bit(given[metadata]);
  t.shape = dimensions(given[2], "shape");
  t.strides = dimensions(given[3], "strides");
  if (t.shape.size() != t.strides.size())
    fail("strides", grouped(t.shape.size()) + ", one per dimension", grouped(t.strides.size()));
  uint64_t first = natural(given[1], "storage offset");
  if (__builtin_add_overflow(first, storage.first, &first) ||
      __builtin_mul_overflow(first, t.type.block_bytes, &t.first_byte))
    fail("storage offset", "an offset within the storage", grouped(first));
  check_extent(t);
  n_values_ += 8 + t.shape.size();
  out_.tensors.push_back(std::move(t));
  return Value(Kind::Tensor, static_cast<uint32_t>(out_.tensors.size() - 1));
}

// The dict beside a tensor has bits that say that its values are to be conjugated or negated.
std::string_view PickleMachine::lazy_bit(const Value& metadata) {
  if (metadata.kind == Kind::None) return {};
  if (metadata.kind != Kind::Dict) fail("metadata", "a dict or none", a(metadata.kind));
  std::string_view found;
  const std::vector<Value>& given = items(metadata);
  // Many tensors may have the same dict.
  if (given.size() > 4) fail("metadata", "conj and neg", grouped(given.size() / 2) + " entries");
  for (size_t i = 0; i + 1 < given.size(); i += 2) {
    const bool text = given[i].kind == Kind::Text || given[i].kind == Kind::Bytes;
    if (!text || (given[i].text() != "conj" && given[i].text() != "neg"))
      fail("metadata", "conj or neg", text ? quoted(given[i].text()) : a(given[i].kind));
    if (given[i + 1].kind != Kind::Bool) fail("metadata", "true or false", a(given[i + 1].kind));
    if (given[i + 1].truth) found = given[i].text();
  }
  return found;
}

// The last element must lie in the storage.
void PickleMachine::check_extent(const PickleTensor& t) {
  const PickleStorage& storage = out_.storages[t.storage];
  const uint64_t nbytes = storage.n_elements * storage.type.block_bytes;
  uint64_t n = 0;
  if (!count_elements(t.shape, n)) fail("shape", "fewer than 2^63 values", "more");
  if (uint64_t size; __builtin_mul_overflow(n, t.type.block_bytes, &size))
    fail("shape", "fewer than 2^64 bytes", grouped(n) + " of " + std::string(t.type.name));
  uint64_t end = t.first_byte;
  bool fits = true;
  if (n > 0) {
    uint64_t last = 0;
    for (size_t d = 0; d < t.shape.size(); ++d) {
      uint64_t step = 0;
      fits = fits &&
             !__builtin_mul_overflow(static_cast<uint64_t>(t.shape[d] - 1),
                                     static_cast<uint64_t>(t.strides[d]), &step) &&
             !__builtin_add_overflow(last, step, &last);
    }
    fits = fits && !__builtin_add_overflow(last, 1, &last) &&
           !__builtin_mul_overflow(last, t.type.block_bytes, &last) &&
           !__builtin_add_overflow(end, last, &end);
  }
  if (!fits || end > nbytes)
    fail("tensor", "elements within the " + grouped(nbytes) + " bytes of its storage",
         fits ? "an end at " + grouped(end) : std::string("an end beyond 2^64"));
}

// ("storage", class, key, location, number of elements[, view]); a view into a storage, which old
// versions had, is (key, first element, number of elements).
PickleValue PickleMachine::persistent(const Value& id) {
  if (id.kind == Kind::Shell) return id;
  if (id.kind != Kind::Tuple || items(id).size() < 5 || items(id).size() > 6)
    fail("persistent id", "a tuple of 5 or 6", a(id.kind));
  const std::vector<Value>& given = items(id);
  const auto is_text = [](const Value& v) { return v.kind == Kind::Text || v.kind == Kind::Bytes; };
  if (!is_text(given[0]) || given[0].text() != "storage")
    fail("persistent id", "'storage'",
         is_text(given[0]) ? quoted(given[0].text()) : a(given[0].kind));
  if (given[1].kind == Kind::Shell) return given[1];
  const KnownGlobal* known = nullptr;
  if (given[1].kind == Kind::Global) {
    const PickleGlobal& g = out_.globals[given[1].index];
    known = known_global(g.module, g.name);
  }
  if (!known || known->what != Known::Storage)
    fail("persistent id", "the class of a storage", a(given[1].kind));
  if (!is_text(given[2]) || given[2].size == 0)
    fail("persistent id", "the key of a storage", a(given[2].kind));
  PickleStorage s;
  s.key = given[2].text();
  s.type = *tensor_type(known->type);
  s.n_elements = natural(given[4], "number of elements");
  s.offset = in_.in_file(at_);
  if (given.size() == 6 && given[5].kind != Kind::None) {
    if (given[5].kind != Kind::Tuple || items(given[5]).size() != 3)
      fail("view", "a tuple of 3", a(given[5].kind));
    s.first = natural(items(given[5])[1], "view");
  }
  if (uint64_t size; __builtin_mul_overflow(s.n_elements, s.type.block_bytes, &size))
    fail("number of elements", "fewer than 2^64 bytes", grouped(s.n_elements));
  n_values_ += 4;
  out_.storages.push_back(s);
  return Value(Kind::Storage, static_cast<uint32_t>(out_.storages.size() - 1));
}

}  // namespace pyflow
