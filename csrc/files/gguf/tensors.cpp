#include <algorithm>
#include <limits>

#include "core/message.h"
#include "files/gguf/sections.h"
#include "files/twins.h"

namespace pyflow::gguf_sections {
namespace {

constexpr uint64_t kMaxNameBytes = 64;  // the format's limit
constexpr uint32_t kMaxDims = 4;        // the format's limit

std::string read_name(Cursor& in) {
  const uint64_t at = in.pos();
  const std::string_view name = in.read_string("name length");
  if (name.empty() || name.size() > kMaxNameBytes || !is_utf8(name))
    in.fail(at, "name", "1 to 64 bytes of UTF-8", grouped(name.size()) + " bytes " + quoted(name),
            kAdviseConvert);
  in.name(name);
  return std::string(name);
}

// Returns the number of weights.
uint64_t read_shape(Cursor& in, std::vector<int64_t>& shape) {
  const uint64_t at = in.pos();
  const auto n_dims = in.read<uint32_t>("number of dimensions");
  if (n_dims > kMaxDims)
    in.fail(at, "number of dimensions", "0 to 4", grouped(n_dims), kAdviseConvert);
  uint64_t n_weights = 1;
  for (uint32_t d = 0; d < n_dims; ++d) {
    const auto dim = in.read<uint64_t>("dimension");
    const auto fail = [&](std::string_view expected, const std::string& found) {
      in.fail(in.pos() - sizeof dim, "dimension " + std::to_string(d), expected, found,
              kAdviseConvert);
    };
    if (dim == 0) fail("at least 1", "0");
    const uint64_t before = n_weights;
    if (__builtin_mul_overflow(n_weights, dim, &n_weights) ||
        n_weights > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      fail("fewer than 2^63 weights", grouped(before) + " times " + grouped(dim));
    shape.push_back(static_cast<int64_t>(dim));
  }
  std::reverse(shape.begin(), shape.end());  // the file has the row length first
  return n_weights;
}

// Sets the type and what the tensor takes by its shape.
void read_type(Cursor& in, TensorRow& t, uint64_t n_weights) {
  const uint64_t at = in.pos();
  t.type_id = in.read<uint32_t>("type");
  const auto type = tensor_type(t.type_id);
  if (!type) {
    t.type_name = "type " + std::to_string(t.type_id);
    return;
  }
  t.set_type(*type);
  const auto cols = static_cast<uint64_t>(t.shape.empty() ? 1 : t.shape.back());
  if (cols % type->block != 0)
    in.fail(at, "row length", "a multiple of " + grouped(type->block) + " for " + t.type_name,
            grouped(cols), kAdviseConvert);
  if (__builtin_mul_overflow(n_weights / type->block, type->block_bytes, &t.nbytes))
    in.fail(at, "size", "fewer than 2^64 bytes", grouped(n_weights) + " weights of " + t.type_name,
            kAdviseConvert);
  t.span = t.nbytes;
}

// A tensor of an unknown type has an unknown size, but it does have a first byte.
uint64_t least_bytes(const TensorRow& t) { return std::max<uint64_t>(t.nbytes, 1); }

// Turns the offset, so far from the start of the data, into one in the file.
void place(Cursor& in, TensorRow& t, uint64_t at, uint64_t data_offset, uint32_t alignment) {
  if (t.offset % alignment != 0)
    in.fail(at, "data offset", "a multiple of the alignment " + grouped(alignment),
            grouped(t.offset), kAdviseConvert);
  const uint64_t end = in.size();
  if (data_offset > end || t.offset > end - data_offset ||
      least_bytes(t) > end - data_offset - t.offset)
    in.fail(at, "data offset", "data that end within the file (" + grouped(end) + " bytes)",
            grouped(data_offset) + " + " + grouped(t.offset) + " + " + grouped(t.nbytes) + " bytes",
            kAdviseDownload);
  t.offset += data_offset;
}

void refuse_overlaps(Cursor& in, const Tensors& t, const std::vector<uint64_t>& offset_fields) {
  const std::vector<uint32_t> order =
      sorted_by(t.table.size(), [&](uint32_t i) { return t.table[i].offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorRow& a = t.table[order[i - 1]];
    const TensorRow& b = t.table[order[i]];
    if (b.offset - a.offset >= least_bytes(a)) continue;
    in.name(b.name);
    in.fail(offset_fields[order[i]], "data offset", "data that overlap no other tensor",
            "first byte " + grouped(b.offset) + " inside tensor " + quoted(a.name) + " (" +
                grouped(a.offset) + " + " + grouped(a.nbytes) + " bytes)",
            kAdviseConvert);
  }
}

}  // namespace

Tensors read_tensors(Cursor& in, uint64_t count, uint32_t alignment) {
  Tensors out;
  out.table.reserve(std::min(count, kMaxReserve));
  std::vector<uint64_t> name_fields, offset_fields;
  for (uint64_t i = 0; i < count; ++i) {
    in.enter("tensor", i, count);
    TensorRow& t = out.table.emplace_back();
    name_fields.push_back(in.pos());
    t.name = read_name(in);
    const uint64_t n_weights = read_shape(in, t.shape);
    read_type(in, t, n_weights);
    offset_fields.push_back(in.pos());
    t.offset = in.read<uint64_t>("data offset");
  }
  const auto name = [&](uint32_t i) -> std::string_view { return out.table[i].name; };
  each_twins(out.table.size(), name, [&](uint32_t a, uint32_t b) {
    in.name(name(b));
    in.fail(name_fields[b], "name", "each name once",
            "the name at byte " + grouped(name_fields[a]) + " again", kAdviseConvert);
  });
  out.data_offset = (in.pos() + alignment - 1) / alignment * alignment;
  for (size_t i = 0; i < out.table.size(); ++i) {
    in.name(out.table[i].name);
    place(in, out.table[i], offset_fields[i], out.data_offset, alignment);
  }
  refuse_overlaps(in, out, offset_fields);
  return out;
}

}  // namespace pyflow::gguf_sections
