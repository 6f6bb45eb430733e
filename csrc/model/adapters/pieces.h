// Matrices that are parts of an adapter's tensors, as tensors of their own for Weights to pack.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/tensor.h"
#include "model/weights.h"
#include "quant/rows/stored_rows.h"

namespace pyflow {

// Some rows of a tensor, and some values of each; or, across, some columns, and some values of each.
struct Piece {
  std::string name;
  bool across = false;
  Segments rows = {};  // none: all
  int64_t step = 1;
  int64_t first = 0, inner_step = 1;  // of the values of a row
};

class PieceTensors {
 public:
  explicit PieceTensors(TensorSource source);
  ~PieceTensors();
  PieceTensors(const PieceTensors&) = delete;
  PieceTensors& operator=(const PieceTensors&) = delete;

  // A tensor rows x cols; floats stay as they are stored, blocks become F32. Throws ShapeError if
  // there is no such tensor or the cut is not in it, UnsupportedError for types that cannot be cut.
  TensorRef cut(const Piece& piece, int64_t rows, int64_t cols);
  const TensorRecord& record(const std::string& name) const;
  // Of the cuts, and of the whole tensors by their names.
  TensorSource source();
  const std::string& path() const { return source_.path; }

 private:
  class Rows;
  TensorSource source_;
  std::map<std::string, TensorRecord> cuts_;
  std::map<std::string, std::unique_ptr<Rows>> rows_;
};

}  // namespace pyflow
