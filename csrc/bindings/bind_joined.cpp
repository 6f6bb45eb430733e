// Tensors that make up others in folders whose weights other programs have quantized. Python reads
// configurations (formats/quantized) and says which; here each place is held against its tensor.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "core/errors.h"
#include "core/message.h"
#include "files/joined/joined.h"
#include "files/safetensors/mx_pairs.h"
#include "quant/foreign/codes.h"
#include "quant/foreign/compact.h"
#include "quant/foreign/integers.h"

namespace pyflow {
namespace {

using quant::CodeRows;
using quant::IntegerRows;
using quant::PackedIntegers;

using Shape = std::pair<int64_t, int64_t>;  // rows and columns

struct Packed {
  std::string tensor;
  int bits;
  PackedIntegers::Order order;
  int64_t per_line, per_word;
  bool by_column;
};
struct Zeros {
  int each;
  std::optional<Packed> packed;
  bool by_row;
};
struct GroupsAt {
  int64_t size, count;
  std::string of;  // a tensor; "": they follow each other
};
struct Outer {
  std::string tensor;
  int64_t size;
  float offset;
};
struct ScalesAt {
  std::string tensor;
  int64_t per_row, per_group;
  std::vector<float> table;  // 256 numbers; or none, for a tensor of floats
  std::optional<Outer> outer;
  float factor;
  bool divides;
};
struct Integers {
  std::string name, dtype;
  Shape shape;
  Packed codes;
  Zeros zeros;
  ScalesAt scales;
  GroupsAt groups;
  // A type of blocks for products (quant/foreign/compact.h), ""; whether scales are factors of rows.
  std::pair<std::string, bool> compact;
};
struct CodesAt {
  std::string tensor;
  CodeRows::Matrix::Form form;
  std::vector<float> table;
  float factor;
};
struct Codes {
  std::string name, dtype;
  Shape shape;
  CodesAt codes;
  ScalesAt scales;
  Shape block;
  std::string compact;
};
struct MxBlocks {
  std::string name, dtype;  // MXFP4
  Shape shape;
  std::string blocks, scales;
};
struct Scaled {
  std::string name, scales;
  int64_t n_scales;
};
using Plan = std::variant<Integers, Codes, MxBlocks, Scaled>;

// Finds the parts of one new tensor.
class Parts {
 public:
  Parts(const Checkpoint& of, const std::string& name) : of_(of), name_(name) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw ShapeError(of_.label() + ": tensor " + quoted(name_) + ": " + what);
  }
  // The bytes of a part, at least `needed`; 0: too many for any.
  std::span<const uint8_t> bytes(const std::string& tensor, uint64_t needed) {
    const TensorRow* t = of_.row_named(tensor);
    if (!t || t->made || !t->strides.empty()) fail("expected tensor " + quoted(tensor));
    const auto found = of_.parts(*t)[0];
    if (needed == 0 || found.size() < needed)
      fail("expected " + grouped(needed) + " bytes of " + quoted(tensor) + ", found " +
           grouped(found.size()));
    names.push_back(tensor);
    return found;
  }
  PackedIntegers integers(const Packed& p, int64_t lines, int64_t n) {
    PackedIntegers found{{}, p.bits, p.order, p.per_line, p.per_word};
    found.data = bytes(p.tensor, found.needs(lines, n));
    return found;
  }
  quant::CodeTable table(const std::vector<float>& values) const {
    quant::CodeTable found{};
    if (values.size() != found.size()) fail("expected what 256 codes stand for");
    std::copy(values.begin(), values.end(), found.begin());
    return found;
  }
  quant::Scales scales(const ScalesAt& s, int64_t rows, int64_t groups) {
    using Kind = quant::Scales::Kind;
    const TensorRow* t = of_.row_named(s.tensor);
    const std::string type = t ? t->type_name : "none";
    quant::Scales found;
    if (!s.table.empty())
      found.table = std::make_shared<const quant::CodeTable>(table(s.table));
    else if (type != "F32" && type != "F16" && type != "BF16")
      fail("expected scales " + quoted(s.tensor) + " in F16, BF16 or F32, found " + type);
    found.kind = found.table     ? Kind::Code
                 : type == "F32" ? Kind::F32
                 : type == "F16" ? Kind::F16
                                 : Kind::BF16;
    found.per_row = s.per_row;
    found.per_group = s.per_group;
    const PackedIntegers place{{}, 8, PackedIntegers::Order::Bytes, s.per_row, s.per_group};
    const uint64_t count = place.needs(rows, groups);
    found.data = bytes(s.tensor, count * found.bytes_each());
    if (s.outer) {
      if (s.outer->size < 1 || !found.table) fail("expected scales of scales");
      const auto each = static_cast<uint64_t>(s.outer->size);
      found.outer = bytes(s.outer->tensor, (count + each - 1) / each * sizeof(float));
      found.outer_size = s.outer->size;
      found.offset = s.outer->offset;
    }
    found.factor = s.factor;
    found.divides = s.divides;
    return found;
  }

  std::vector<std::string> names;

 private:
  const Checkpoint& of_;
  const std::string& name_;
};

std::shared_ptr<const MadeRows> rows_of(const Integers& p, DType dtype, Parts& parts) {
  const auto [rows, cols] = p.shape;
  const GroupsAt& groups = p.groups;
  IntegerRows::Matrix m;
  m.dtype = dtype;
  m.rows = rows;
  m.cols = cols;
  m.zero = p.zeros.each;
  m.by_column = p.codes.by_column;
  m.codes = m.by_column ? parts.integers(p.codes, cols, rows) : parts.integers(p.codes, rows, cols);
  m.scales = parts.scales(p.scales, rows, groups.count);
  m.zeros_by_row = p.zeros.by_row;
  const auto [lines, n] = m.zeros_by_row ? Shape{rows, groups.count} : Shape{groups.count, rows};
  if (p.zeros.packed) m.zeros = parts.integers(*p.zeros.packed, lines, n);
  m.groups = {groups.size, {}, groups.count};
  if (!groups.of.empty())
    m.groups.of = parts.bytes(groups.of, static_cast<uint64_t>(cols) * 4);
  else if (groups.size < 1 || (cols - 1) / groups.size >= groups.count)
    parts.fail("expected groups for all columns");
  if (info(dtype).block > 1 && (!groups.of.empty() || groups.size % info(dtype).block))
    parts.fail("expected groups of whole blocks");
  const auto made = std::make_shared<IntegerRows>(m);
  if (const auto& [type, by_rows] = p.compact; !type.empty())
    made->set_compact(quant::compact_integers(m, dtype_of(type), by_rows));
  return made;
}

std::shared_ptr<const MadeRows> rows_of(const Codes& p, DType dtype, Parts& parts) {
  const auto [rows, cols] = p.shape;
  CodeRows::Matrix m;
  m.dtype = dtype;
  m.rows = rows;
  m.cols = cols;
  if (p.block.first < 1 || p.block.second < 1) parts.fail("expected blocks of weights");
  const auto n = static_cast<uint64_t>(rows) * static_cast<uint64_t>(cols);
  m.form = p.codes.form;
  const bool is_byte = m.form == CodeRows::Matrix::Form::Bytes;
  m.codes = parts.bytes(p.codes.tensor, is_byte ? n : (n + 1) / 2);
  m.table = parts.table(p.codes.table);
  m.factor = p.codes.factor;
  m.row_block = p.block.first;
  m.group_size = p.block.second;
  m.scales = parts.scales(p.scales, (rows - 1) / m.row_block + 1, (cols - 1) / m.group_size + 1);
  if (dtype != DType::F32 && dtype != DType::BF16 && !CodeRows::can_be(m))
    parts.fail("expected a type that holds such codes, found " + p.dtype);
  const auto made = std::make_shared<CodeRows>(m);
  if (!p.compact.empty()) made->set_compact(quant::compact_codes(m, dtype_of(p.compact)));
  return made;
}

std::shared_ptr<const MadeRows> rows_of(const MxBlocks& p, DType dtype, Parts& parts) {
  if (dtype != DType::MXFP4) parts.fail("expected MXFP4");
  const int64_t per_row = p.shape.second / 32;
  const auto n = static_cast<uint64_t>(p.shape.first) * static_cast<uint64_t>(per_row);
  const auto blocks = parts.bytes(p.blocks, n * 16);
  return mx_rows(blocks, parts.bytes(p.scales, n), per_row);
}

template <class OfParts>
JoinedCheckpoint::Join join_of(const Checkpoint& of, const OfParts& p) {
  Parts parts(of, p.name);
  const DType dtype = dtype_of(p.dtype);
  const auto& type = info(dtype);
  const auto [rows, cols] = p.shape;
  if (rows < 1 || cols < 1 || rows >= INT32_MAX || cols >= INT32_MAX || cols % type.block)
    parts.fail("expected rows of whole blocks of " + p.dtype);
  TensorRow row;
  row.name = p.name;
  row.set_type(tensor_type(dtype));
  row.shape = {rows, cols};
  row.nbytes = row.span = static_cast<uint64_t>(rows * (cols / type.block)) * type.block_bytes;
  row.made = rows_of(p, dtype, parts);
  return JoinedCheckpoint::Join{std::move(row), std::move(parts.names)};
}

// A tensor of blocks keeps its name and shape.
JoinedCheckpoint::Join join_of(const Checkpoint& of, const Scaled& p) {
  Parts parts(of, p.name);
  const TensorRow* t = of.row_named(p.name);
  const auto dtype = t ? dtype_from_gguf(t->type_id) : std::nullopt;
  if (!t || t->made || !t->supported || !dtype || t->shape.size() < 2 || p.n_scales < 1)
    parts.fail("expected blocks, and scales beside them");
  quant::ScaledBlocks b;
  b.dtype = *dtype;
  b.cols = t->shape.back();
  b.rows = 1;
  for (size_t d = 0; d + 1 < t->shape.size(); ++d) b.rows *= t->shape[d];
  const auto rows = static_cast<uint64_t>(b.rows);
  b.blocks = parts.bytes(p.name, rows * row_bytes(b.dtype, b.cols));
  const uint64_t nbytes = static_cast<uint64_t>(p.n_scales) * sizeof(float);
  b.scales = parts.bytes(p.scales, nbytes).first(nbytes);
  TensorRow row;
  row.name = p.name;
  row.set_type(tensor_type(DType::F32));
  row.shape = t->shape;
  row.nbytes = row.span = rows * static_cast<uint64_t>(b.cols) * sizeof(float);
  row.made = quant::scaled_rows(b);
  return {std::move(row), std::move(parts.names)};
}

}  // namespace

void register_joined(py::module_& m) {
  py::enum_<PackedIntegers::Order>(m, "PackOrder")
      .value("STREAM", PackedIntegers::Order::Stream)
      .value("WORDS", PackedIntegers::Order::Words)
      .value("AWQ", PackedIntegers::Order::Awq)
      .value("BYTES", PackedIntegers::Order::Bytes);
  using Form = CodeRows::Matrix::Form;
  py::enum_<Form>(m, "CodeForm")
      .value("BYTES", Form::Bytes)
      .value("HIGH_FIRST", Form::HighFirst)
      .value("LOW_FIRST", Form::LowFirst);
  py::class_<Packed>(m, "Packed")
      .def(py::init<std::string, int, PackedIntegers::Order, int64_t, int64_t, bool>(),
           py::arg("tensor"), py::arg("bits"), py::arg("order"), py::arg("per_line"),
           py::arg("per_word"), py::arg("by_column") = false);
  py::class_<Zeros>(m, "Zeros")
      .def(py::init<int, std::optional<Packed>, bool>(), py::arg("each"),
           py::arg("packed") = std::nullopt, py::arg("by_row") = false);
  py::class_<GroupsAt>(m, "Groups")
      .def(py::init<int64_t, int64_t, std::string>(), py::arg("size"), py::arg("count"),
           py::arg("of") = "");
  py::class_<Outer>(m, "OuterScales")
      .def(py::init<std::string, int64_t, float>(), py::arg("tensor"), py::arg("size"),
           py::arg("offset"));
  py::class_<ScalesAt>(m, "ScalesAt")
      .def(py::init<std::string, int64_t, int64_t, std::vector<float>, std::optional<Outer>, float,
                    bool>(),
           py::arg("tensor"), py::arg("per_row"), py::arg("per_group"), py::kw_only(),
           py::arg("table") = std::vector<float>(), py::arg("outer") = std::nullopt,
           py::arg("factor") = 1.0f, py::arg("divides") = false);
  py::class_<CodesAt>(m, "CodesAt")
      .def(py::init<std::string, Form, std::vector<float>, float>(), py::arg("tensor"),
           py::arg("form"), py::arg("table"), py::arg("factor") = 1.0f);
  py::class_<Integers>(m, "Integers")
      .def(py::init<std::string, std::string, Shape, Packed, Zeros, ScalesAt, GroupsAt,
                    std::pair<std::string, bool>>(),
           py::arg("name"), py::arg("dtype"), py::arg("shape"), py::kw_only(), py::arg("codes"),
           py::arg("zeros"), py::arg("scales"), py::arg("groups"),
           py::arg("compact") = std::pair<std::string, bool>());
  py::class_<Codes>(m, "Codes")
      .def(py::init<std::string, std::string, Shape, CodesAt, ScalesAt, Shape, std::string>(),
           py::arg("name"), py::arg("dtype"), py::arg("shape"), py::kw_only(), py::arg("codes"),
           py::arg("scales"), py::arg("block"), py::arg("compact") = "");
  py::class_<MxBlocks>(m, "MxBlocks")
      .def(py::init([](std::string name, Shape shape, std::string blocks, std::string scales) {
             return MxBlocks{std::move(name), "MXFP4", shape, std::move(blocks), std::move(scales)};
           }),
           py::arg("name"), py::arg("shape"), py::kw_only(), py::arg("blocks"), py::arg("scales"));
  py::class_<Scaled>(m, "Scaled")
      .def(py::init<std::string, std::string, int64_t>(), py::arg("name"), py::arg("scales"),
           py::arg("n_scales"));
  m.def(
      "join_tensors",
      [](std::shared_ptr<Checkpoint> of, const std::vector<Plan>& plans,
         const std::vector<std::string>& hidden) {
        const py::gil_scoped_release unlocked;
        std::vector<JoinedCheckpoint::Join> joins;
        for (const Plan& plan : plans) {
          const auto join = [&](const auto& p) { return join_of(*of, p); };
          joins.push_back(std::visit(join, plan));
        }
        return std::shared_ptr<Checkpoint>(
            std::make_shared<JoinedCheckpoint>(std::move(of), std::move(joins), hidden));
      },
      py::arg("checkpoint"), py::arg("plans"), py::arg("hidden"));
}

}  // namespace pyflow
