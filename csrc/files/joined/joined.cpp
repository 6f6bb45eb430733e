#include "files/joined/joined.h"

#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/twins.h"

namespace pyflow {

JoinedCheckpoint::JoinedCheckpoint(std::shared_ptr<const Checkpoint> of, std::vector<Join> joins,
                                   const std::vector<std::string>& hidden)
    : Checkpoint(of->label()), of_(std::move(of)) {
  for (const auto& file : of_->files()) add_file(file);
  constexpr size_t kNone = SIZE_MAX;
  std::unordered_map<std::string_view, size_t> taken;  // by a part, which join lists there
  for (size_t i = 0; i < joins.size(); ++i)
    for (const std::string& part : joins[i].parts)
      taken.emplace(part, &part == &joins[i].parts[0] ? i : kNone);
  for (const std::string& name : hidden) taken.emplace(name, kNone);
  std::vector<TensorRow> table;
  for (const TensorRow& t : of_->table()) {
    const auto found = taken.find(t.name);
    if (found == taken.end()) {
      table.push_back(t);
    } else if (found->second != kNone) {
      TensorRow& row = joins[found->second].row;
      row.file = t.file;
      row.offset = t.offset;
      table.push_back(std::move(row));
    }
  }
  const auto name = [&](uint32_t i) -> std::string_view { return table[i].name; };
  each_twins(table.size(), name, [&](uint32_t, uint32_t b) {
    throw FormatError(label() + ": tensor " + quoted(table[b].name) +
                      ": expected it once, found it also made of others; " +
                      std::string(kAdviseConvert));
  });
  set_table(std::move(table));
}

std::string JoinedCheckpoint::hindrance(const TensorRow& t) const {
  return t.made ? "" : of_->hindrance(*of_->row_named(t.name));
}

Contents JoinedCheckpoint::contents(const TensorRow& t) const {
  if (!t.made) return of_->contents(*of_->row_named(t.name));
  const std::lock_guard guard(lock_);
  if (last_ != t.made.get()) {
    const auto bytes = std::make_shared<std::vector<uint8_t>>(t.nbytes);
    int64_t n = 1;
    for (size_t d = 0; d + 1 < t.shape.size(); ++d) n *= t.shape[d];
    try {
      t.made->read(0, n, bytes->data());
    } catch (const UnsupportedError& e) {
      throw UnsupportedError(label() + ": tensor " + quoted(t.name) + ": " + e.what());
    }
    bytes_ = bytes;
    last_ = t.made.get();
  }
  return {bytes_->data(), t.nbytes, bytes_};
}

}  // namespace pyflow
