#include "files/checkpoint.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/twins.h"

namespace pyflow {

void TensorRow::set_type(const TensorType& type) {
  type_name = type.name;
  type_id = type.id;
  block_bytes = type.block_bytes;
  supported = type.supported;
}

uint64_t Checkpoint::nbytes() const {
  uint64_t n = 0;
  for (const auto& file : files_) n += file->size();
  return n;
}

uint64_t Checkpoint::data_offset() const {
  uint64_t first = files_[0]->size();
  for (const TensorRow& t : table_)
    if (t.file == 0) first = std::min(first, t.offset);
  return first;
}

uint32_t Checkpoint::add_file(std::shared_ptr<const MappedFile> file) {
  files_.push_back(std::move(file));
  return static_cast<uint32_t>(files_.size() - 1);
}

void Checkpoint::set_table(std::vector<TensorRow> table) {
  table_ = std::move(table);
  by_name_ = sorted_by(table_.size(), [&](uint32_t i) { return std::string_view(table_[i].name); });
  for (const TensorRow& t : table_) {
    record_.push_back(static_cast<uint32_t>(tensors_.size()));
    if (!t.supported || !hindrance(t).empty()) continue;
    const std::optional<DType> dtype = t.n_divisors ? DType::Q8_0 : dtype_from_gguf(t.type_id);
    const uint8_t* file = files_[t.file]->data();
    tensors_.push_back({.name = t.name,
                        .dtype = dtype.value_or(DType::F32),
                        .is_double = !dtype,
                        .shape = t.shape,
                        .offset = t.offset,
                        .nbytes = t.nbytes,
                        .data = file + t.offset,
                        .divisors = t.n_divisors ? file + t.divisors : nullptr,
                        .n_divisors = t.n_divisors,
                        .made = t.made.get()});
  }
}

std::string Checkpoint::hindrance(const TensorRow& t) const {
  return t.strides.empty() ? "" : "strides, as of a transposed matrix";
}

const TensorRow* Checkpoint::row_named(std::string_view name) const {
  const auto it =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](uint32_t i, std::string_view n) { return table_[i].name < n; });
  return it == by_name_.end() || table_[*it].name != name ? nullptr : &table_[*it];
}

const TensorRecord* Checkpoint::find(std::string_view name) const {
  const TensorRow* t = row_named(name);
  if (!t) return nullptr;
  const std::string where = files_[t->file]->label() + ": tensor " + quoted(name);
  if (!t->supported) {
    const std::string number = "type " + std::to_string(t->type_id);
    const bool has_name = t->type_id != kNoGgufId && t->type_name != number;
    throw UnsupportedError(where + ": expected a type that this build can compute with, found " +
                           t->type_name + (has_name ? " (" + number + ")" : std::string()) +
                           "; get the model in another quantization, for example Q4_K_M" +
                           (t->type_id >> 16 == kOwnIds ? ", or update pyflow" : ""));
  }
  const std::string why = hindrance(*t);
  if (!why.empty())
    throw UnsupportedError(where + ": expected values row after row, as plain bytes, found " + why +
                           "; save the model again with each tensor contiguous, for example as "
                           "safetensors");
  return &tensors_[record_[static_cast<size_t>(t - table_.data())]];
}

Contents Checkpoint::contents(const TensorRow& t) const {
  return {files_[t.file]->data() + t.offset, t.span, nullptr};
}

std::vector<std::span<const uint8_t>> Checkpoint::parts(const TensorRow& t) const {
  if (t.made) return t.made->parts();
  return {{files_[t.file]->data() + t.offset, t.span}};
}

void Checkpoint::release(std::span<const uint8_t> bytes) const {
  for (const auto& file : files_)
    if (bytes.data() >= file->data() && bytes.data() < file->data() + file->size())
      file->release(static_cast<uint64_t>(bytes.data() - file->data()), bytes.size());
}

void Checkpoint::release(const TensorRecord& r) const {
  if (!r.made) return release({r.data, r.nbytes});
  for (const auto& part : r.made->parts()) release(part);
}

void Checkpoint::release_all() const {
  for (const auto& file : files_) file->release_all();
}

bool count_elements(const std::vector<int64_t>& shape, uint64_t& n) {
  n = 1;
  bool fits = true;
  // A zero anywhere makes it none, however large the others: their product must not overflow first.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    n = 0;
    return true;
  }
  for (const int64_t dim : shape)
    fits = fits && !__builtin_mul_overflow(n, static_cast<uint64_t>(dim), &n) &&
           n <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return fits;
}

}  // namespace pyflow
