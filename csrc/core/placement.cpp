#include "core/placement.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/errors.h"

namespace pyflow {
namespace {

std::string refusal(int error, const std::string& what) {
  return what + ": " + std::generic_category().message(error);
}

}  // namespace

Placement::Placement(Numa mode, std::vector<NumaNode> nodes)
    : mode_(mode), nodes_(std::move(nodes)) {
  if ((mode_ == Numa::Off) != nodes_.empty())
    throw ShapeError("numa: expected nodes for every mode but off, found " +
                     std::to_string(nodes_.size()));
  for (const NumaNode& node : nodes_)
    if (node.n_threads < 0)
      throw ShapeError("numa: node " + std::to_string(node.number) + " has " +
                       std::to_string(node.n_threads) + " threads");
}

int Placement::n_threads() const {
  int n = 0;
  for (const NumaNode& node : nodes_) n += node.n_threads;
  return n;
}

bool Placement::granted(int error, const std::string& what) const {
  if (error == 0) return true;
  std::lock_guard lock(lock_);
  refusals_.insert(refusal(error, what));
  return false;
}

bool Placement::bind(const Buffer& buffer, size_t begin, size_t end, size_t node) const {
  const int number = nodes_[node].number;
  return granted(buffer.prefer_node(begin, end, number),
                 "memory on node " + std::to_string(number));
}

bool Placement::spread(const Buffer& buffer) const {
  std::vector<int> numbers;
  for (const NumaNode& node : nodes_) numbers.push_back(node.number);
  return granted(buffer.interleave(numbers), "memory on all nodes in turn");
}

std::vector<std::string> Placement::refusals() const {
  std::lock_guard lock(lock_);
  return {refusals_.begin(), refusals_.end()};
}

Hold::Hold(const Placement& placement, size_t node) {
  if (!placement.holds_threads()) return;
  const NumaNode& target = placement.nodes_[node];
  const std::string what = "threads on the CPUs of node " + std::to_string(target.number);
  cpu_set_t wanted, before, common;
  CPU_ZERO(&wanted);
  for (const int cpu : target.cpus) CPU_SET(static_cast<size_t>(cpu), &wanted);
  if (sched_getaffinity(0, sizeof before, &before) != 0) {
    placement.granted(errno, what);
    return;
  }
  CPU_AND(&common, &before, &wanted);
  if (CPU_EQUAL(&common, &before)) return;  // it is there, and cannot leave
  if (placement.granted(sched_setaffinity(0, sizeof wanted, &wanted) == 0 ? 0 : errno, what))
    before_ = before;
}

Hold::~Hold() {
  if (before_) sched_setaffinity(0, sizeof *before_, &*before_);
}

std::string memory_policy() {
  int policy = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0) return "";
  switch (policy & ~MPOL_MODE_FLAGS) {
    case MPOL_DEFAULT:
      return "default";
    case MPOL_PREFERRED:
      return "preferred";
    case MPOL_BIND:
      return "bind";
    case MPOL_INTERLEAVE:
      return "interleave";
    case MPOL_LOCAL:
      return "local";
    default:
      return "policy " + std::to_string(policy);
  }
}

std::string binding_refusal(const std::vector<int>& nodes) {
  const Buffer page(1, "page");
  for (const int node : nodes)
    if (const int error = page.prefer_node(0, 1, node))
      return refusal(error, "memory on node " + std::to_string(node));
  return "";
}

}  // namespace pyflow
