// Which threads work next to which memory node, and where memory is to lie: `--numa`.
//
// Off: pages come from the node of the thread that touches them first, threads run anywhere.
// Interleave: weights go round robin over the nodes. Local: the share of each matrix that the
// threads of a node read lies on that node. Mirror: every node has a copy of the weights. Under the
// last two, threads keep to the CPUs of their node. Cells of a KV cache hold all heads, and any
// thread may read them: they go round robin in all modes but off.
//
// No result depends on it. A system may refuse each request, as containers do; that is noted, and
// first touch decides.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/buffer.h"

namespace pyflow {

enum class Numa : uint8_t { Off, Interleave, Local, Mirror };

struct NumaNode {
  int number;             // the system's; two entries may share one
  std::vector<int> cpus;  // where its threads may run
  int n_threads;
};

class Placement {
 public:
  Placement() = default;
  // Threads are numbered node by node. Throws ShapeError where a mode lacks nodes.
  Placement(Numa mode, std::vector<NumaNode> nodes);

  Numa mode() const { return mode_; }
  const std::vector<NumaNode>& nodes() const { return nodes_; }
  int n_threads() const;
  size_t n_copies() const { return mode_ == Numa::Mirror ? nodes_.size() : 1; }
  // Whether threads keep to their nodes.
  bool holds_threads() const { return mode_ == Numa::Local || mode_ == Numa::Mirror; }

  // Before anything in the buffer is touched: bytes [begin, end) come from a node, or all of it
  // goes round robin. False when that was refused.
  bool bind(const Buffer& buffer, size_t begin, size_t end, size_t node) const;
  bool spread(const Buffer& buffer) const;

  // What was refused so far, and why; each once.
  std::vector<std::string> refusals() const;

 private:
  friend class Hold;
  bool granted(int error, const std::string& what) const;

  Numa mode_ = Numa::Off;
  std::vector<NumaNode> nodes_;
  mutable std::mutex lock_;
  mutable std::set<std::string> refusals_;
};

// Keeps the calling thread to the CPUs of a node while this lives.
class Hold {
 public:
  Hold(const Placement& placement, size_t node);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::optional<cpu_set_t> before_;  // none: nothing was changed
};

// The policy that this process was started with, as by numactl: "default", "interleave", ...; empty
// when the system does not tell.
std::string memory_policy();
// Why memory cannot be bound to these nodes; empty when it can.
std::string binding_refusal(const std::vector<int>& nodes);

}  // namespace pyflow
