// Where an adapter's tensors stand beside a matrix of the stage.
#pragma once

#include <cstdint>
#include <string>

#include "model/adapters/pieces.h"
#include "model/spec.h"

namespace pyflow {

// The tensors of an adapter beside one tensor of its model: A (n_parts * rank, inputs) and B
// (outputs, rank * n_parts), where the part is the fast index of B's columns; or, by_part,
// (n_parts * outputs, rank). Parts are experts. Inputs and outputs are those of what the adapter is
// beside, which may be several tensors of the model, or one of several in a tensor.
struct LowRankSpec {
  std::string a, b;
  int64_t rank;
  double scale;
  std::string magnitude = {};  // of DoRA, a value for each output; empty: none
  bool is_lookup = false;      // beside the rows of the embedding, which are the inputs
  bool by_row = false;         // of lookups: A is (inputs, rank)
  Segments order = {};         // of outputs, where the model has another; none: the same

  int64_t n_parts = 1;
  bool by_part = false;
  int64_t part_rows = 0;  // of the model's tensor, as stored, for each of its parts; 0: it has one
  int64_t part = -1;      // of the model's tensor, the only one that this is beside; -1: all
  int64_t of = -1;        // the adapter's part; -1: that of the model's tensor
  bool turned = false;    // A is along outputs, B along inputs
  int64_t first = 0, step = 1;  // of the outputs that the model's tensor has
  int64_t first_input = 0;      // likewise
};

// The part of its tensor that a matrix is in.
int64_t part_of(const LowRankSpec& spec, const TensorRef& ref);

// What is cut out of an adapter for a matrix: a (rank x columns), b (rows x rank).
struct Sides {
  Piece a, b;
  bool is_flipped;   // outputs of the adapter, along B, are the matrix's columns, not its rows
  Segments outputs;  // those that are; none: all
  int64_t step;      // between them
};
Sides sides(const LowRankSpec& spec, const TensorRef& ref, const PieceTensors& tensors,
            int64_t rows, int64_t cols);

}  // namespace pyflow
