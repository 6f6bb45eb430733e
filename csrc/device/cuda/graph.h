// Launches that a stream is given again and again, as one command: a GPU begins those of a graph
// sooner than one by one, and the host says only what has changed.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/objects.h"

namespace pyflow::device::cuda {

struct Command {
  Function function;
  std::array<unsigned, 3> groups;
  unsigned items;
  std::vector<uint64_t> arguments;  // each in the first bytes of a word
  bool operator==(const Command&) const = default;

  // As the driver takes arguments.
  std::vector<void*> pointers() const;
};

// Commands of these functions, each after the one before.
class Graph {
 public:
  Graph(Shared opened, std::span<const Command> commands);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(std::span<const Command> commands, Stream stream);

 private:
  explicit Graph(Shared opened) : opened_(std::move(opened)) {}

  Shared opened_;
  std::vector<Command> commands_;
  std::vector<GraphNode> nodes_;
  GraphId graph_ = nullptr;
  GraphExec exec_ = nullptr;
};

// The graphs of a queue, by the functions of their commands and by their place in a step.
class Graphs {
 public:
  using Place = std::pair<size_t, size_t>;  // the number of hold(), and which since then

  explicit Graphs(Shared opened) : opened_(std::move(opened)) {}
  void launch(const Place& place, std::span<const Command> commands, Stream stream);

 private:
  Shared opened_;
  std::map<std::pair<Place, std::vector<Function>>, Graph> graphs_;
};

}  // namespace pyflow::device::cuda
