// Weights into the blocks of a format.
#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "core/thread_pool.h"
#include "encode/encoder.h"
#include "kernels/dispatch.h"

namespace pyflow {
namespace {

// Null for none. Throws ShapeError.
const float* checked(const std::optional<ExactFloats>& importance, int64_t cols) {
  if (!importance) return nullptr;
  if (importance->size() != cols)
    throw ShapeError("importance: expected a number for each of " + std::to_string(cols) +
                     " columns, found " + std::to_string(importance->size()));
  return importance->data();
}

const EncodeTable& encode_ops(const std::string& isa) {
  return encode_table(isa.empty() ? kernel_table() : kernel_table(isa));
}

// body(begin, end) over rows of `cols` weights, with the GIL released, by the pool's threads if
// there is a pool. Once all are done, throws the error of the first rows that failed.
template <class Body>
void for_rows(ThreadPool* pool, int64_t rows, int64_t cols, const Body& body) {
  const py::gil_scoped_release unlocked;
  if (!pool) return body(0, rows);
  std::mutex lock;
  std::exception_ptr failure;
  int64_t failed = rows;
  const auto guarded = [&](int64_t begin, int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard locked(lock);
      if (begin < failed) failure = std::current_exception();
      failed = std::min(failed, begin);
    }
  };
  const int64_t grain = std::max<int64_t>(1, 16384 / cols);
  pool->run([&](Team& team) { team.for_each(rows, grain, guarded); });
  if (failure) std::rethrow_exception(failure);
}

// Rows of blocks from rows of floats.
ByteArray quantize_array(const std::string& name, const ExactFloats& x,
                         const std::optional<ExactFloats>& importance, ThreadPool* pool,
                         const std::string& isa) {
  const DType dtype = dtype_of(name);
  if (x.ndim() == 0) throw ShapeError("quantize: expected rows of weights, found a single number");
  const int64_t cols = x.shape(x.ndim() - 1);
  const Encoder encoder(dtype, cols, checked(importance, cols), encode_ops(isa));
  const int64_t rows = x.size() / cols;
  std::vector<py::ssize_t> shape(x.shape(), x.shape() + x.ndim());
  shape.back() = static_cast<py::ssize_t>(encoder.row_bytes());
  ByteArray out(shape);
  const float* src = x.data();
  uint8_t* dst = out.mutable_data();
  for_rows(pool, rows, cols, [&](int64_t begin, int64_t end) {
    encoder.encode(src + begin * cols, end - begin, begin,
                   dst + static_cast<size_t>(begin) * encoder.row_bytes());
  });
  return out;
}

Triangles triangles(int64_t cols) {
  if (cols <= 0 || cols >= int64_t{1} << 31 || cols % Triangles::kStep != 0)
    throw ShapeError("second moments: expected a multiple of 16 columns, found " +
                     std::to_string(cols));
  return Triangles(cols);
}

std::unique_ptr<Feedback> make_feedback(const ExactFloats& moments, int64_t cols, ThreadPool* pool,
                                        const std::string& isa) {
  const Triangles shape = triangles(cols);
  if (moments.ndim() != 1 || moments.size() != shape.size())
    throw ShapeError("second moments of " + std::to_string(cols) + " columns: expected " +
                     std::to_string(shape.size()) + " numbers, found " +
                     std::to_string(moments.size()));
  const EncodeTable& table = encode_ops(isa);
  const py::gil_scoped_release unlocked;
  return std::make_unique<Feedback>(moments.data(), shape, pool, table);
}

// Rows of one format's blocks into rows of another's.
class Requantizer {
 public:
  Requantizer(const std::string& from, const std::string& to, int64_t cols,
              std::optional<ExactFloats> importance, const Feedback* feedback,
              const std::string& isa)
      : from_(dtype_of(from)),
        importance_(std::move(importance)),
        feedback_(feedback),
        encoder_(dtype_of(to), cols, checked(importance_, cols), encode_ops(isa)) {
    if (!feedback_) return;
    const int64_t block = info(encoder_.dtype()).block;
    if (feedback_->shape().n_cols() != cols || block == 1)
      throw ShapeError("error feedback: expected blocks of " + std::to_string(cols) +
                       " columns, found that of " + std::to_string(feedback_->shape().n_cols()));
    blocks_.emplace(*feedback_, block);
  }

  // The blocks, and the sums of their losses.
  py::tuple run(const ByteArray& data, int64_t first_row, ThreadPool* pool) const {
    const int64_t cols = encoder_.n_cols();
    const auto from_bytes = static_cast<py::ssize_t>(row_bytes(from_, cols));
    const int64_t rows = data.nbytes() / from_bytes;
    check_bytes(data, from_, rows, cols);
    ByteArray out({rows, static_cast<py::ssize_t>(encoder_.row_bytes())});
    std::vector<RowLoss> losses(static_cast<size_t>(rows));
    const uint8_t* src = data.data();
    uint8_t* dst = out.mutable_data();
    const auto convert = [&](int64_t begin, int64_t end) {
      const SourceRows part = {from_, src + begin * from_bytes, end - begin, first_row + begin};
      uint8_t* to = dst + static_cast<size_t>(begin) * encoder_.row_bytes();
      RowLoss* lost = losses.data() + static_cast<size_t>(begin);
      if (feedback_)
        recode(part, encoder_, *feedback_, *blocks_, to, lost);
      else
        recode(part, encoder_, to, lost);
    };
    for_rows(pool, rows, feedback_ ? 256 : cols, convert);
    RowLoss all;  // rows in order, so that threads change nothing
    for (const RowLoss& row : losses) {
      all.squared += row.squared;
      all.power += row.power;
      all.absolute += row.absolute;
      all.largest = std::max(all.largest, row.largest);
    }
    return py::make_tuple(out, py::make_tuple(all.squared, all.power, all.absolute, all.largest));
  }

 private:
  DType from_;
  std::optional<ExactFloats> importance_;
  const Feedback* feedback_;
  Encoder encoder_;
  std::optional<BlockFactors> blocks_;
};

}  // namespace

void register_encode(py::module_& m) {
  m.def("quantize", &quantize_array, py::arg("dtype"), py::arg("x"),
        py::arg("importance") = py::none(), py::arg("pool") = nullptr, py::arg("isa") = "");

  py::class_<Feedback>(m, "Feedback")
      .def(py::init(&make_feedback), py::arg("moments"), py::arg("columns"),
           py::arg("pool") = nullptr, py::arg("isa") = "")
      .def_static(
          "size", [](int64_t cols) { return triangles(cols).size(); }, py::arg("columns"));
  py::class_<Requantizer>(m, "Requantizer")
      .def(py::init<const std::string&, const std::string&, int64_t, std::optional<ExactFloats>,
                    const Feedback*, const std::string&>(),
           py::arg("from_dtype"), py::arg("dtype"), py::arg("columns"),
           py::arg("importance") = py::none(), py::arg("feedback") = nullptr, py::arg("isa") = "",
           py::keep_alive<1, 6>())
      .def("run", &Requantizer::run, py::arg("data"), py::arg("first_row") = 0,
           py::arg("pool") = nullptr);
}

}  // namespace pyflow
