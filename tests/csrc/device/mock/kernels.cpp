// Programs, launches and graphs of the mock.
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <type_traits>

#include "cuda.h"

using namespace mock;

struct pyflow::device::cuda::FunctionObject {
  cl::KernelId kernel;
  cl::Uint n_arguments;
  std::mutex mutex;
};
struct pyflow::device::cuda::ModuleObject {
  cl::ProgramId program;
  std::map<std::string, FunctionObject> functions;
};
// Arguments as words: the mock does not know how long they are.
struct pyflow::device::cuda::GraphNodeObject {
  Function function;
  Launch how;
  std::vector<uint64_t> arguments;
};
struct pyflow::device::cuda::GraphObject {
  std::vector<GraphNode> nodes;
};
struct pyflow::device::cuda::GraphExecObject {
  std::vector<GraphNode> nodes;
  std::vector<GraphNodeObject> made;
};

namespace mock {

Machine::Machine() {
  cl::Uint n = 0;
  api().GetPlatformIDs(0, nullptr, &n);
  std::vector<cl::Platform> all(n);
  api().GetPlatformIDs(n, all.data(), nullptr);
  for (cl::Platform platform : all) {
    char name[256] = {};
    api().GetPlatformInfo(platform, cl::kPlatformName, sizeof name, name, nullptr);
    if (std::strstr(name, "Portable Computing Language"))
      api().GetDeviceIDs(platform, cl::kTypeAll, 1, &device, nullptr);
  }
  if (!device) return;
  context = api().CreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
  void* handle = dlopen("libOpenCL.so.1", RTLD_NOW);
  const auto find = [&](auto& to, const char* name) {
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(handle, name));
  };
  find(svm.alloc, "clSVMAlloc");
  find(svm.free, "clSVMFree");
  find(svm.copy, "clEnqueueSVMMemcpy");
  find(svm.set, "clSetKernelArgSVMPointer");
  find(svm.kernel_info, "clGetKernelInfo");
}

Machine& machine() {
  static auto* one = new Machine();
  return *one;
}

}  // namespace mock

namespace {

std::mutex lock;

// PoCL knows whether an argument is a pointer, or how many bytes it has.
bool set(cl::KernelId kernel, cl::Uint i, void* argument) {
  const auto set = api().SetKernelArg;
  return machine().svm.set(kernel, i, *static_cast<void**>(argument)) == cl::kSuccess ||
         set(kernel, i, 4, argument) == cl::kSuccess || set(kernel, i, 8, argument) == cl::kSuccess;
}

Result launch(const Launch& how, Function function, void** arguments, Stream stream) {
  const auto [x, y, z] = how.groups;
  if (y > 65'535 || z > 65'535 || how.items[1] != 1 || how.items[2] != 1) return kInvalidValue;
  const std::lock_guard guard(function->mutex);
  for (cl::Uint i = 0; i < function->n_arguments; ++i)
    if (!set(function->kernel, i, arguments[i])) return kInvalidValue;
  const size_t items = how.items[0];
  const size_t local[3] = {items, 1, 1}, global[3] = {x * items, y, z};
  return result(api().EnqueueNDRangeKernel(stream->queue, function->kernel, 3, nullptr, global,
                                           local, 0, nullptr, nullptr));
}

GraphNodeObject node_of(const NodeLaunch& of) {
  const auto [x, y, z] = of.groups;
  GraphNodeObject node = {
      of.function,
      {{x, y, z}, {of.items[0], of.items[1], of.items[2]}, 0, nullptr, nullptr, 0},
      {}};
  for (cl::Uint i = 0; i < of.function->n_arguments; ++i)
    node.arguments.push_back(*static_cast<uint64_t*>(of.arguments[i]));
  return node;
}

}  // namespace

extern "C" {

Result cuModuleLoadData(Module* module, const void* image) {
  IN_CONTEXT();
  const std::string code = static_cast<const char*>(image);  // options, a line, the source
  const size_t end = code.find('\n');
  if (code.rfind("mock ", 0) != 0) return 209;
  const std::string options = code.substr(5, end - 5);
  const char* text = code.c_str() + end + 1;
  cl::ProgramId program =
      api().CreateProgramWithSource(machine().context, 1, &text, nullptr, nullptr);
  if (api().BuildProgram(program, 1, &machine().device, options.c_str(), nullptr, nullptr) !=
      cl::kSuccess) {
    api().ReleaseProgram(program);
    return 209;
  }
  *module = new ModuleObject{program, {}};
  return kSuccess;
}
Result cuModuleUnload(Module module) {
  IN_CONTEXT();
  for (auto& [name, function] : module->functions) api().ReleaseKernel(function.kernel);
  api().ReleaseProgram(module->program);
  delete module;
  return kSuccess;
}
Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  IN_CONTEXT();
  const std::lock_guard guard(lock);
  const auto [it, is_new] = module->functions.try_emplace(name);
  *function = &it->second;
  if (!is_new) return kSuccess;
  it->second.kernel = api().CreateKernel(module->program, name, nullptr);
  if (!it->second.kernel) {
    module->functions.erase(it);
    return kNotFound;
  }
  constexpr cl::Uint kArguments = 0x1191;
  machine().svm.kernel_info(it->second.kernel, kArguments, sizeof(cl::Uint),
                            &it->second.n_arguments, nullptr);
  return kSuccess;
}

Result cuLaunchKernelEx(const Launch* how, Function function, void** arguments, void**) {
  IN_CONTEXT();
  return launch(*how, function, arguments, how->stream);
}

Result cuGraphCreate(GraphId* graph, unsigned) {
  IN_CONTEXT();
  *graph = new GraphObject;
  return kSuccess;
}
Result cuGraphDestroy(GraphId graph) {
  IN_CONTEXT();
  for (GraphNode node : graph->nodes) delete node;
  delete graph;
  return kSuccess;
}
Result cuGraphAddKernelNode_v2(GraphNode* node, GraphId graph, const GraphNode* before, size_t n,
                               const NodeLaunch* of) {
  IN_CONTEXT();
  // Chains alone: this is how they run.
  if (n != (graph->nodes.empty() ? 0 : 1) || (n && *before != graph->nodes.back()))
    return kInvalidValue;
  *node = new GraphNodeObject(node_of(*of));
  graph->nodes.push_back(*node);
  return kSuccess;
}
Result cuGraphInstantiateWithFlags(GraphExec* exec, GraphId graph, unsigned long long) {
  IN_CONTEXT();
  *exec = new GraphExecObject{graph->nodes, {}};
  for (GraphNode node : graph->nodes) (*exec)->made.push_back(*node);
  return kSuccess;
}
Result cuGraphExecDestroy(GraphExec exec) {
  IN_CONTEXT();
  delete exec;
  return kSuccess;
}
Result cuGraphExecKernelNodeSetParams_v2(GraphExec exec, GraphNode node, const NodeLaunch* of) {
  IN_CONTEXT();
  for (size_t i = 0; i < exec->nodes.size(); ++i)
    if (exec->nodes[i] == node) {
      exec->made[i] = node_of(*of);
      return kSuccess;
    }
  return kInvalidValue;
}
Result cuGraphLaunch(GraphExec exec, Stream stream) {
  IN_CONTEXT();
  for (GraphNodeObject& node : exec->made) {
    std::vector<void*> arguments;
    for (uint64_t& word : node.arguments) arguments.push_back(&word);
    if (const Result code = launch(node.how, node.function, arguments.data(), stream);
        code != kSuccess)
      return code;
  }
  return kSuccess;
}

}  // extern "C"
