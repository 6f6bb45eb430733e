#include "files/torch/pickle.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/torch/pickle_machine.h"
#include "files/torch/pickle_opcodes.h"

namespace pyflow {
namespace {

// Bounds far above real checkpoints: 50,000 tensors take 15 MB of pickle and 1.5 million values.
constexpr uint64_t kMaxBytes = 64 << 20;
constexpr size_t kMaxValues = 1 << 23;
constexpr size_t kMaxMarks = 1024;
constexpr size_t kMaxGlobals = 256;
constexpr uint64_t kMaxLine = 256;  // of a module's or a global's name
constexpr uint8_t kNewestProtocol = 5;

using namespace pickle_op;

std::string hex(uint8_t b) {
  static constexpr char kHex[] = "0123456789abcdef";
  return {'0', 'x', kHex[b >> 4], kHex[b & 15]};
}

}  // namespace

void Pickle::run(Cursor& in) { PickleMachine(*this, in).run(); }

void Pickle::refuse_unknown(const Cursor& in) const {
  const auto unknown = [](const PickleGlobal& g) { return !g.known; };
  const auto first = std::find_if(globals.begin(), globals.end(), unknown);
  if (first == globals.end()) return;
  std::string found, runs;
  size_t n = 0;
  for (auto g = first; g != globals.end(); ++g) {
    if (!g->known && n++ < 5) found.append(n > 1 ? ", " : "").append(printable(g->full(), 60));
    if (g->runs_code && runs.empty()) runs = printable(g->full(), 60);
  }
  if (n > 5) found.append(" and ").append(grouped(n - 5)).append(" more");
  std::string what;
  if (runs.empty())
    what.append(
        "not on the list of what a checkpoint needs, and what it would do elsewhere is not known");
  else
    what.append("loading it elsewhere could run code, by ").append(runs);
  what.append(
      "; nothing was run here: get the weights as safetensors, or have their owner save the "
      "state_dict alone");
  in.fail(first->offset - in.in_file(0), "global", "functions that rebuild tensors", found, what);
}

void PickleMachine::run() {
  begin_ = in_.pos();
  while (step()) {
  }
}

void PickleMachine::fail(std::string_view field, std::string_view expected,
                         const std::string& found) const {
  in_.fail(at_, field, expected, found, kAdviseConvert);
}

void PickleMachine::budget(size_t n, size_t most, std::string_view what) {
  if (n > most) fail(what, "at most " + grouped(most), "more");
}

void PickleMachine::push(const Value& v) {
  budget(stack_.size() + 1, kMaxValues, "stack");
  stack_.push_back(v);
}

PickleValue& PickleMachine::top() {
  if (stack_.size() <= floor()) fail("stack", "a value", "none");
  return stack_.back();
}

PickleValue PickleMachine::pop() {
  const Value v = top();
  stack_.pop_back();
  return v;
}

std::vector<PickleValue> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("stack", "a mark", "none");
  const auto begin = stack_.begin() + static_cast<int64_t>(marks_.back());
  std::vector<Value> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

PickleValue PickleMachine::make(Kind kind, std::vector<Value> items) {
  n_values_ += items.size() + 2;  // an empty container takes about as much as two values
  budget(n_values_, kMaxValues, "values");
  out_.items.push_back(std::move(items));
  return Value(kind, static_cast<uint32_t>(out_.items.size() - 1));
}

// Adds to the container on top of the stack. What is said of a shell is dropped.
void PickleMachine::extend(Kind kind, std::vector<Value> items) {
  const Value& target = top();
  if (target.kind == Kind::Shell) return;
  if (target.kind != kind)
    fail("stack", "a " + std::string(kind_name(kind)), "a " + std::string(kind_name(target.kind)));
  if (kind == Kind::Dict && items.size() % 2 != 0)
    fail("stack", "pairs of key and value", "a key without value");
  n_values_ += items.size();
  budget(n_values_, kMaxValues, "values");
  auto& to = out_.items[target.index];
  to.insert(to.end(), items.begin(), items.end());
}

PickleValue PickleMachine::text(uint64_t nbytes, Kind kind) {
  const std::string_view s = in_.take(nbytes, "length");
  if (s.size() > kMaxBytes) fail("length", "at most 67,108,864", grouped(s.size()));
  if (kind == Kind::Text && !is_utf8(s)) fail("text", "UTF-8", quoted(s));
  Value v(kind);
  v.size = static_cast<uint32_t>(s.size());
  v.data = s.data();
  return v;
}

// Little-endian, two's complement.
PickleValue PickleMachine::integer(uint64_t nbytes) {
  if (nbytes > 8) return text(nbytes, Kind::BigInt);
  const std::string_view s = in_.take(nbytes, "length");
  uint64_t bits = 0;
  std::memcpy(&bits, s.data(), s.size());
  if (nbytes > 0 && nbytes < 8 && (s.back() & 0x80)) bits |= ~uint64_t{0} << (8 * nbytes);
  Value v(Kind::Int);
  v.number = static_cast<int64_t>(bits);
  return v;
}

std::string_view PickleMachine::line() {
  const uint64_t most = std::min(in_.remaining(), kMaxLine);
  const void* end = std::memchr(in_.data(), '\n', most);
  if (!end) fail("global", "a name of at most 256 bytes", "none");
  const auto n = static_cast<uint64_t>(static_cast<const uint8_t*>(end) - in_.data());
  const std::string_view name = in_.take(n, "global");
  in_.skip(1, "global");
  return name;
}

PickleValue PickleMachine::global(std::string_view module, std::string_view name) {
  if (module.size() > kMaxLine || name.size() > kMaxLine || !is_utf8(module) || !is_utf8(name))
    fail("global", "names of at most 256 bytes of UTF-8", quoted(name));
  const KnownGlobal* known = known_global(module, name);
  auto same = std::find_if(out_.globals.begin(), out_.globals.end(), [&](const PickleGlobal& g) {
    return g.module == module && g.name == name;
  });
  if (same == out_.globals.end()) {
    budget(out_.globals.size() + 1, kMaxGlobals, "globals");
    out_.globals.push_back({std::string(module), std::string(name), in_.in_file(at_),
                            known != nullptr, runs_code(module, name)});
    same = out_.globals.end() - 1;
  }
  if (!known) return Value(Kind::Shell);
  if (known->what == Known::Type) {
    budget(out_.types.size() + 1, kMaxValues, "values");
    out_.types.push_back(*tensor_type(known->type));
    return Value(Kind::Type, static_cast<uint32_t>(out_.types.size() - 1));
  }
  return Value(Kind::Global, static_cast<uint32_t>(same - out_.globals.begin()));
}

// Picklers number what they keep from 0 on, so no number exceeds the bytes that came before.
void PickleMachine::memoize(uint64_t index) {
  if (index > at_ - begin_) fail("memo", "an index below the number of bytes read", grouped(index));
  if (memo_.size() <= index) memo_.resize(index + 1, Value(Kind::Global, UINT32_MAX));
  memo_[index] = top();
}

std::optional<PickleValue> PickleMachine::constant(uint8_t code) {
  Value v;
  switch (code) {
    case kNone:
      return v;
    case kNewTrue:
    case kNewFalse:
      v.kind = Kind::Bool;
      v.truth = code == kNewTrue;
      return v;
    case kBinInt:
      return integer(4);
    case kBinInt1:
      v.kind = Kind::Int;
      v.number = in_.read<uint8_t>("number");
      return v;
    case kBinInt2:
      v.kind = Kind::Int;
      v.number = in_.read<uint16_t>("number");
      return v;
    case kLong1:
      return integer(in_.read<uint8_t>("length"));
    case kLong4:
      return integer(in_.read<uint32_t>("length"));
    case kBinFloat: {
      const uint64_t bits = __builtin_bswap64(in_.read<uint64_t>("number"));
      v.kind = Kind::Float;
      std::memcpy(&v.real, &bits, sizeof bits);
      return v;
    }
    case kShortBinUnicode:
    case kShortBinString:  // str of Python 2
      return text(in_.read<uint8_t>("length"), code == kShortBinUnicode ? Kind::Text : Kind::Bytes);
    case kBinUnicode:
    case kBinString:
      return text(in_.read<uint32_t>("length"), code == kBinUnicode ? Kind::Text : Kind::Bytes);
    case kBinUnicode8:
      return text(in_.read<uint64_t>("length"), Kind::Text);
    case kShortBinBytes:
      return text(in_.read<uint8_t>("length"), Kind::Bytes);
    case kBinBytes:
      return text(in_.read<uint32_t>("length"), Kind::Bytes);
    case kBinBytes8:
    case kByteArray8:
      return text(in_.read<uint64_t>("length"), Kind::Bytes);
    default:
      return std::nullopt;
  }
}

// What makes containers, and fills them.
bool PickleMachine::container(uint8_t code) {
  const auto last = [&](size_t n) {
    if (stack_.size() - floor() < n) fail("stack", grouped(n) + " values", "fewer");
    std::vector<Value> items(stack_.end() - static_cast<int64_t>(n), stack_.end());
    stack_.resize(stack_.size() - n);
    return items;
  };
  switch (code) {
    case kEmptyTuple:
      push(make(Kind::Tuple, {}));
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push(make(Kind::Tuple, last(static_cast<size_t>(code - kTuple1 + 1))));
      return true;
    case kTuple:
      push(make(Kind::Tuple, pop_to_mark()));
      return true;
    case kEmptyList:
      push(make(Kind::List, {}));
      return true;
    case kEmptyDict:
      push(make(Kind::Dict, {}));
      return true;
    case kEmptySet:
      push(make(Kind::Set, {}));
      return true;
    case kFrozenSet:
      push(make(Kind::Set, pop_to_mark()));
      return true;
    case kAppend:
      extend(Kind::List, last(1));
      return true;
    case kAppends:
      extend(Kind::List, pop_to_mark());
      return true;
    case kSetItem:
      extend(Kind::Dict, last(2));
      return true;
    case kSetItems:
      extend(Kind::Dict, pop_to_mark());
      return true;
    case kAddItems:
      extend(Kind::Set, pop_to_mark());
      return true;
    default:
      return false;
  }
}

// Stack, marks and memo.
bool PickleMachine::memory(uint8_t code) {
  const auto get = [&](uint64_t index) {
    if (index >= memo_.size() ||
        (memo_[index].kind == Kind::Global && memo_[index].index == UINT32_MAX))
      fail("memo", "an index that is in use", grouped(index));
    push(memo_[index]);
    return true;
  };
  switch (code) {
    case kMark:
      budget(marks_.size() + 1, kMaxMarks, "marks");
      marks_.push_back(stack_.size());
      return true;
    case kPop:
      if (stack_.size() == floor() && !marks_.empty())
        marks_.pop_back();
      else
        pop();
      return true;
    case kPopMark:
      pop_to_mark();
      return true;
    case kDup:
      push(top());
      return true;
    case kBinPut:
      memoize(in_.read<uint8_t>("memo"));
      return true;
    case kLongBinPut:
      memoize(in_.read<uint32_t>("memo"));
      return true;
    case kMemoize:
      memoize(memo_.size());
      return true;
    case kBinGet:
      return get(in_.read<uint8_t>("memo"));
    case kLongBinGet:
      return get(in_.read<uint32_t>("memo"));
    default:
      return false;
  }
}

bool PickleMachine::step() {
  at_ = in_.pos();
  if (at_ - begin_ > kMaxBytes) fail("pickle", "at most 67,108,864 bytes", "more");
  const auto code = in_.read<uint8_t>("opcode");
  if (const auto v = constant(code)) {
    push(*v);
    return true;
  }
  if (container(code) || memory(code)) return true;
  switch (code) {
    case kProto:
      if (const auto protocol = in_.read<uint8_t>("protocol");
          protocol < 2 || protocol > kNewestProtocol)
        fail("protocol", "2 to 5", grouped(protocol));
      return true;
    case kFrame: {
      const auto n = in_.read<uint64_t>("frame");
      in_.require(n, "frame");
      return true;
    }
    case kGlobal: {
      const std::string_view module = line(), name = line();
      push(global(module, name));
      return true;
    }
    case kStackGlobal: {
      const Value name = pop(), module = pop();
      if (name.kind != Kind::Text || module.kind != Kind::Text)
        fail("global", "two texts", "a " + std::string(kind_name(name.kind)));
      push(global(module.text(), name.text()));
      return true;
    }
    case kInst: {
      const std::string_view module = line(), name = line();
      global(module, name);
      break;
    }
    case kReduce:
    case kNewObj: {
      const Value arguments = pop(), callee = pop();
      push(call(callee, arguments));
      return true;
    }
    case kBuild: {  // attributes, such as _metadata of a state_dict
      pop();
      if (top().kind != Kind::Dict && top().kind != Kind::Shell)
        fail("state", "a dict", "a " + std::string(kind_name(top().kind)));
      return true;
    }
    case kBinPersId:
      push(persistent(pop()));
      return true;
    case kStop:
      if (!marks_.empty() || stack_.size() != 1)
        fail("stack", "one value and no marks at the end",
             grouped(stack_.size()) + " values and " + grouped(marks_.size()) + " marks");
      out_.root = stack_[0];
      return false;
    default:
      break;
  }
  fail("opcode", "an opcode that torch.save writes", hex(code));
}

}  // namespace pyflow
