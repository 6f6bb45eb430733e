#include "device/cuda/graph.h"

namespace pyflow::device::cuda {
namespace {

// Of each part of a step, for one row, for drafts, for several sequences; more begin anew.
constexpr size_t kMostGraphs = 256;

NodeLaunch node_of(const Command& command, std::vector<void*>& pointers) {
  pointers = command.pointers();
  const auto [x, y, z] = command.groups;
  return {command.function, {x, y, z}, {command.items, 1, 1}, 0, pointers.data(), nullptr,
          nullptr,          nullptr};
}

}  // namespace

std::vector<void*> Command::pointers() const {
  std::vector<void*> all;
  // The driver only reads.
  for (const uint64_t& value : arguments) all.push_back(const_cast<uint64_t*>(&value));
  return all;
}

Graph::Graph(Shared opened, std::span<const Command> commands) : Graph(std::move(opened)) {
  commands_.assign(commands.begin(), commands.end());
  opened_->run("making a graph", [&](const Library& api) {
    if (const Result code = api.GraphCreate(&graph_, 0); code != kSuccess) return code;
    std::vector<void*> pointers;
    for (const Command& command : commands_) {
      const NodeLaunch how = node_of(command, pointers);
      const GraphNode* before = nodes_.empty() ? nullptr : &nodes_.back();
      GraphNode node = nullptr;
      if (const Result code = api.GraphAddKernel(&node, graph_, before, before ? 1 : 0, &how);
          code != kSuccess)
        return code;
      nodes_.push_back(node);
    }
    return api.GraphInstantiate(&exec_, graph_, 0);
  });
}

Graph::~Graph() {
  opened_->release([&](const Library& api) {
    if (exec_) api.GraphExecDestroy(exec_);
    return graph_ ? api.GraphDestroy(graph_) : kSuccess;
  });
}

void Graph::launch(std::span<const Command> commands, Stream stream) {
  opened_->run("running a graph", [&](const Library& api) {
    std::vector<void*> pointers;
    for (size_t i = 0; i < commands.size(); ++i) {
      if (commands[i] == commands_[i]) continue;
      const NodeLaunch how = node_of(commands[i], pointers);
      if (const Result code = api.GraphExecSetKernel(exec_, nodes_[i], &how); code != kSuccess)
        return code;
      commands_[i] = commands[i];
    }
    return api.GraphLaunch(exec_, stream);
  });
}

void Graphs::launch(const Place& place, std::span<const Command> commands, Stream stream) {
  std::vector<Function> functions;
  for (const Command& command : commands) functions.push_back(command.function);
  if (graphs_.size() >= kMostGraphs && !graphs_.contains({place, functions})) graphs_.clear();
  const auto [graph, is_new] = graphs_.try_emplace({place, functions}, opened_, commands);
  graph->second.launch(commands, stream);
}

}  // namespace pyflow::device::cuda
