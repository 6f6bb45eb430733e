#include "files/safetensors/mx_pairs.h"

#include <string>
#include <unordered_set>
#include <utility>

#include "core/dtype.h"

namespace pyflow {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kBlock = 32, kNibbleBytes = 16;

bool is_bytes(const TensorRow& t) { return t.type_name == "U8" && t.strides.empty(); }

// The scales of a tensor of blocks, or null.
const TensorRow* scales_of(const Checkpoint& of, const TensorRow& t) {
  if (!t.name.ends_with(kBlocks) || !is_bytes(t) || t.shape.size() < 2 ||
      t.shape.back() != kNibbleBytes || t.nbytes == 0)
    return nullptr;
  const std::string stem = t.name.substr(0, t.name.size() - kBlocks.size());
  const TensorRow* scales = of.row_named(stem + std::string(kScales));
  const std::vector<int64_t> shape(t.shape.begin(), t.shape.end() - 1);
  return scales && is_bytes(*scales) && scales->shape == shape ? scales : nullptr;
}

TensorRow joined(const TensorRow& blocks, const TensorRow& scales) {
  TensorRow t = blocks;
  t.set_type(tensor_type(DType::MXFP4));
  t.shape.pop_back();
  t.shape.back() *= kBlock;
  t.nbytes = blocks.nbytes + scales.nbytes;
  t.scales = {scales.file, scales.offset};
  return t;
}

}  // namespace

std::shared_ptr<Checkpoint> PairedCheckpoint::join(std::shared_ptr<Checkpoint> of) {
  std::unordered_set<std::string_view> used;
  for (const TensorRow& t : of->table())
    if (const TensorRow* scales = scales_of(*of, t)) used.insert(scales->name);
  if (used.empty()) return of;
  std::vector<TensorRow> table;
  for (const TensorRow& t : of->table()) {
    if (used.contains(t.name)) continue;
    const TensorRow* scales = scales_of(*of, t);
    table.push_back(scales ? joined(t, *scales) : t);
  }
  return std::shared_ptr<Checkpoint>(new PairedCheckpoint(std::move(of), std::move(table)));
}

PairedCheckpoint::PairedCheckpoint(std::shared_ptr<const Checkpoint> of,
                                   std::vector<TensorRow> table)
    : Checkpoint(of->label()), of_(std::move(of)) {
  for (const auto& file : of_->files()) add_file(file);
  set_table(std::move(table));
}

std::string PairedCheckpoint::hindrance(const TensorRow& t) const {
  return t.scales ? "" : of_->hindrance(*of_->row_named(t.name));
}

Contents PairedCheckpoint::contents(const TensorRow& t) const {
  if (!t.scales) return of_->contents(*of_->row_named(t.name));
  const auto bytes = std::make_shared<std::vector<uint8_t>>(t.nbytes);
  find(t.name)->join_blocks(0, static_cast<int64_t>(t.nbytes / t.block_bytes), bytes->data());
  return {bytes->data(), t.nbytes, bytes};
}

}  // namespace pyflow
