// Texts through an encoder: many of unequal length in one pass over the weights, one after the other
// without padding. What comes of a text depends on no other text, to the last bit.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "link/link.h"
#include "model/group/group.h"
#include "model/scratch.h"
#include "model/stage.h"
#include "model/texts/dense.h"

namespace pyflow {

// How the rows of a text become one vector. Weighted: row i counts i + 1 times; RootMean: their sum
// over the root of their number.
enum class Pool : uint8_t { First, Mean, Max, Last, Weighted, RootMean };
// Throws UnsupportedError for another name.
Pool pool_named(const std::string& name);

// Texts one after the other; text i ends before ends[i].
struct Texts {
  std::span<const int32_t> tokens;
  std::span<const int32_t> types;  // of tokens; empty: all 0
  std::span<const int64_t> ends;
};

// What is made of the last layer's rows.
struct Readout {
  std::vector<Pool> pools;  // joined in this order; empty: rows stay apart
  std::vector<const Dense*> layers;
  bool normalize = false;         // to length one
  int64_t first_pooled = 0;       // of a text: rows before it, those of a prompt, are left out
  std::span<const int64_t> rows;  // ascending, of all texts: those wanted, where rows stay apart
};

class TextEncoder {
 public:
  // files: whose layers readouts may take besides the stage's. tables: the stage that embeds tokens,
  // a decoder's for one, if the encoder's own has no embedding; else null. link: to the other
  // members, if several share these stages; all make the same runs. Throws ShapeError for sizes out
  // of range, UnsupportedError for a stage that is no whole encoder.
  TextEncoder(std::shared_ptr<const Stage> stage, int64_t n_batch,
              std::vector<std::shared_ptr<const DenseFile>> files,
              std::shared_ptr<const Stage> tables = nullptr, std::shared_ptr<Link> link = nullptr);
  // What an encoder of so many rows a step allocates.
  static size_t nbytes(const Stage& stage, int64_t n_batch);

  int64_t n_out(const Readout& readout) const;
  // One row of n_out floats for each text, or for each wanted row. `poll` is called between steps,
  // and may throw. Throws ShapeError for texts or layers that do not fit, before anything is run;
  // Error for results that are no numbers, LinkError if another member is lost.
  void run(const Texts& texts, const Readout& readout, float* out,
           const std::function<void()>& poll);

  const Stage& stage() const { return *stage_; }
  const std::vector<std::shared_ptr<const DenseFile>>& files() const { return files_; }
  std::mutex& busy() { return busy_; }

 private:
  struct Batch {
    std::vector<TextRows> texts;
    std::vector<KvRow> rows;
    std::vector<int64_t> wanted;  // rows of the batch, where they stay apart
    int64_t first = 0, n_keys = 0;
    int64_t n_items(const Readout& readout) const {
      return readout.pools.empty() ? std::ssize(wanted) : std::ssize(texts);
    }
  };
  void check(const Texts& texts, const Readout& readout) const;
  // The next texts that fit into a step, from `text` on.
  Batch next(const Texts& texts, size_t text, const Readout& readout) const;
  Step step(const Team& team, const StepRows& rows) const;
  void start(Step& s, Team& team) const;
  void read(Step& s, Team& team, const Batch& batch, const Readout& readout, float* out) const;
  void gather(const Step& s, const Batch& batch, const Readout& readout, int64_t item,
              float* to) const;

  std::shared_ptr<const Stage> stage_, tables_;  // of the layers, of the embedding
  std::vector<std::shared_ptr<const DenseFile>> files_;
  int64_t n_batch_;
  std::unique_ptr<Group> group_;  // null: the stage has one member
  Scratch scratch_;
  Buffer rows_[2];  // of readouts: kHeadRows rows, what goes into a layer and what comes out
  std::mutex busy_;
};

}  // namespace pyflow
