// NVRTC: found, opened, asked for programs.
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "core/errors.h"
#include "device/cuda/api.h"

namespace pyflow::device::cuda {
namespace {

constexpr int kOldest = 12;        // version whose packages we know
constexpr size_t kLogChars = 600;  // the first lines of a log say the most

// The folder of packages that this code is installed in.
std::filesystem::path packages() {
  static const char kOurs = 0;
  Dl_info self;
  if (!dladdr(&kOurs, &self) || !self.dli_fname) return {};
  std::error_code error;
  return std::filesystem::absolute(self.dli_fname, error).parent_path().parent_path();
}

// Where a major version may be.
std::vector<std::string> places(int major) {
  const std::string file = "libnvrtc.so." + std::to_string(major);
  const std::string folder = major == 12 ? "cuda_nvrtc" : "cu" + std::to_string(major);
  return {file, packages() / "nvidia" / folder / "lib" / file};
}

std::unique_ptr<const Compiler> open_compiler(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return nullptr;
  auto compiler = std::make_unique<Compiler>();
  bool whole = true;
#define PYFLOW_NVRTC_FIND(name, symbol, parameters)                                   \
  compiler->name = reinterpret_cast<decltype(compiler->name)>(dlsym(handle, symbol)); \
  whole = whole && compiler->name;
  PYFLOW_NVRTC_FUNCTIONS(PYFLOW_NVRTC_FIND)
#undef PYFLOW_NVRTC_FIND
  int n = 0;
  if (!whole || compiler->Version(&compiler->major, &compiler->minor) != kSuccess ||
      compiler->GetNumSupportedArchs(&n) != kSuccess || n <= 0)
    return nullptr;
  compiler->capabilities.resize(static_cast<size_t>(n));
  if (compiler->GetSupportedArchs(compiler->capabilities.data()) != kSuccess) return nullptr;
  return compiler;
}

// Those of this machine, newest first.
const std::vector<std::unique_ptr<const Compiler>>& compilers(int newest) {
  static const auto* all = [newest] {
    auto* found = new std::vector<std::unique_ptr<const Compiler>>();
    for (int major = newest; major >= kOldest; --major)
      for (const std::string& path : places(major))
        if (auto compiler = open_compiler(path)) {
          found->push_back(std::move(compiler));
          break;
        }
    return found;
  }();
  return *all;
}

}  // namespace

// Code of an older major version runs on any newer driver, code of a newer one does not.
const Compiler* compiler_for(int capability, int driver_version) {
  for (const auto& compiler : compilers(driver_version / 1000))
    if (compiler->target(capability)) return compiler.get();
  return nullptr;
}

// 8.9 runs code for 8.0, but none for 9.0, and 9.0 none for 8.0.
int Compiler::target(int capability) const {
  int best = 0;
  for (const int each : capabilities)
    if (each / 10 == capability / 10 && each <= capability) best = std::max(best, each);
  return best;
}

std::vector<uint8_t> Compiler::compile(const std::string& source, const std::string& options,
                                       int capability) const {
  std::vector<std::string> words = {"--gpu-architecture=sm_" + std::to_string(target(capability))};
  std::istringstream text(options);
  for (std::string word; text >> word;) words.push_back(word);
  std::vector<const char*> given;
  for (const std::string& word : words) given.push_back(word.c_str());

  ProgramId program = nullptr;
  if (CreateProgram(&program, source.c_str(), "kernels", 0, nullptr, nullptr) != kSuccess)
    throw DeviceError("NVRTC: it takes no program");
  const std::unique_ptr<ProgramId, Result (*)(ProgramId*)> owner(&program, DestroyProgram);
  size_t size = 0;
  if (CompileProgram(program, static_cast<int>(given.size()), given.data()) != kSuccess) {
    GetProgramLogSize(program, &size);
    std::string log(size, '\0');
    if (size) GetProgramLog(program, log.data());
    log.resize(std::min({log.size(), log.find('\0'), kLogChars}));
    throw DeviceError("NVRTC " + std::to_string(major) + "." + std::to_string(minor) +
                      ": building a program: " + log);
  }
  GetCubinSize(program, &size);
  std::vector<uint8_t> code(size);
  if (size == 0 || GetCubin(program, reinterpret_cast<char*>(code.data())) != kSuccess)
    throw DeviceError("NVRTC: it gives no code for sm_" + std::to_string(capability));
  return code;
}

}  // namespace pyflow::device::cuda
