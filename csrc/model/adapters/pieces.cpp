#include "model/adapters/pieces.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace pyflow {
namespace {

bool is_float(const TensorRecord& r) {
  return r.dtype == DType::F32 || r.dtype == DType::F16 || r.dtype == DType::BF16;
}

std::string shape_text(const TensorRecord& r) {
  return std::to_string(r.rows()) + " x " + std::to_string(r.cols());
}

}  // namespace

class PieceTensors::Rows final : public MadeRows {
 public:
  Rows(const TensorRecord& record, Piece piece, int64_t cols)
      : record_(record), piece_(std::move(piece)), cols_(cols) {}

  void read(int64_t first, int64_t n, uint8_t* out) const override {
    const size_t nbytes = static_cast<size_t>(cols_) * info(dtype()).block_bytes;
    for (int64_t i = 0; i < n; ++i, out += nbytes) {
      const int64_t row = StoredRows{record_, piece_.rows, false, piece_.step}.file_row(first + i);
      if (is_float(record_))
        gather(row, out);
      else
        decode(row, out);
    }
  }
  std::vector<std::span<const uint8_t>> parts() const override {
    return {{record_.data, static_cast<size_t>(record_.nbytes)}};
  }
  DType dtype() const { return is_float(record_) ? record_.dtype : DType::F32; }

 private:
  void gather(int64_t row, uint8_t* out) const {
    const size_t value = record_.block_bytes(), to = info(dtype()).block_bytes;
    for (int64_t j = 0; j < cols_; ++j, out += to) {
      const int64_t inner = piece_.first + j * piece_.inner_step;
      const int64_t at =
          piece_.across ? inner * record_.cols() + row : row * record_.cols() + inner;
      const uint8_t* from = record_.data + static_cast<size_t>(at) * value;
      if (!record_.is_double) {
        std::memcpy(out, from, to);
        continue;
      }
      float read;
      read_values("", record_, from, 1, &read);
      std::memcpy(out, &read, sizeof read);
    }
  }
  void decode(int64_t row, uint8_t* out) const {
    std::vector<float> values(static_cast<size_t>(record_.cols()));
    const size_t nbytes = values.size() / info(record_.dtype).block * record_.block_bytes();
    read_values("", record_, record_.data + static_cast<size_t>(row) * nbytes, record_.cols(),
                values.data());
    for (int64_t j = 0; j < cols_; ++j, out += sizeof(float))
      std::memcpy(out, &values[static_cast<size_t>(piece_.first + j * piece_.inner_step)],
                  sizeof(float));
  }

  const TensorRecord& record_;
  Piece piece_;
  int64_t cols_;
};

PieceTensors::PieceTensors(TensorSource source) : source_(std::move(source)) {}
PieceTensors::~PieceTensors() = default;

const TensorRecord& PieceTensors::record(const std::string& name) const {
  const TensorRecord* r = source_.find(name);
  if (!r) throw ShapeError(source_.path + ": tensor " + name + " is missing");
  return *r;
}

TensorRef PieceTensors::cut(const Piece& piece, int64_t rows, int64_t cols) {
  const TensorRecord& r = record(piece.name);
  const std::string where = source_.path + ": tensor " + piece.name + ": ";
  if (r.made || r.divisors || (!is_float(r) && piece.across))
    throw UnsupportedError(where + "expected floats, found " + std::string(info(r.dtype).name));
  const int64_t have = piece.across ? r.cols() : r.rows(), of = piece.across ? r.rows() : r.cols();
  if (cols < 1 || rows < 1 || piece.first < 0 || piece.first >= of ||
      (cols - 1) > (of - 1 - piece.first) / piece.inner_step ||
      (piece.rows.empty() && rows != have))
    throw ShapeError(where + "expected " + std::to_string(rows) + " x " + std::to_string(cols) +
                     (piece.across ? " across it" : "") + ", found " + shape_text(r));
  TensorRef({.name = piece.name, .rows = piece.rows, .step = piece.step})
      .check_rows(where, have, rows);
  const std::string name = piece.name + " (" + std::to_string(cuts_.size()) + ")";
  auto made = std::make_unique<Rows>(r, piece, cols);
  TensorRecord& record = cuts_[name];
  record.name = name;
  record.dtype = made->dtype();
  record.shape = {rows, cols};
  record.made = made.get();
  rows_[name] = std::move(made);
  return {.name = name};
}

TensorSource PieceTensors::source() {
  return {source_.path,
          [this](const std::string& name) {
            const auto found = cuts_.find(name);
            return found == cuts_.end() ? source_.find(name) : &found->second;
          },
          [](const TensorRecord&) {}, source_.release_all};
}

}  // namespace pyflow
