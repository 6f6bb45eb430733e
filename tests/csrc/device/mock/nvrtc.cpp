// NVRTC for tests: a program is its source, with the prelude and the options of OpenCL.
#include <cstring>
#include <fstream>
#include <iterator>

#include "cuda.h"

using namespace mock;

namespace mock {
namespace {
std::mutex lock;
std::map<std::string, Result> answers;
std::map<std::string, size_t> counts;
}  // namespace

void answer(const std::string& function, Result code) {
  const std::lock_guard guard(lock);
  answers[function] = code;
}

Result told(const std::string& function) {
  const std::lock_guard guard(lock);
  ++counts[function];
  const auto found = answers.find(function);
  if (found == answers.end()) return kSuccess;
  const Result code = found->second;
  answers.erase(found);
  return code;
}

size_t calls(const std::string& function) {
  const std::lock_guard guard(lock);
  return counts[function];
}

}  // namespace mock

namespace {

std::string file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

struct pyflow::device::cuda::ProgramObject {
  std::string source, log;
};

extern "C" {

Result nvrtcVersion(int* major, int* minor) {
  *major = mock::kVersion / 1000;
  *minor = mock::kVersion % 1000 / 10;
  return kSuccess;
}
Result nvrtcGetNumSupportedArchs(int* n) {
  *n = 1;
  return kSuccess;
}
Result nvrtcGetSupportedArchs(int* all) {
  *all = 90;
  return kSuccess;
}
Result nvrtcCreateProgram(ProgramId* program, const char* source, const char*, int,
                          const char* const*, const char* const*) {
  *program = new ProgramObject{source, ""};
  return kSuccess;
}
Result nvrtcDestroyProgram(ProgramId* program) {
  delete *program;
  return kSuccess;
}
Result nvrtcCompileProgram(ProgramId program, int n, const char* const* options) {
  program->log = "the first line of a log";
  TOLD();
  // The program and its options become those of PoCL, which has mostly compiled them already.
  std::string kept = "mock";
  bool exact = false;
  for (int i = 0; i < n; ++i) {
    const std::string option = options[i];
    exact |= option == "--fmad=false";
    if (option[1] != '-' && option != "-DUNROLLED") kept += " " + option;
  }
  kept += " -cl-fp32-correctly-rounded-divide-sqrt";
  const std::string ours = file(MOCK_KERNELS "/prelude_cuda.dev");
  const size_t at = program->source.find(ours);
  if (at != std::string::npos) {
    if (!exact) return kFailed;
    program->source.replace(at, ours.size(), file(MOCK_KERNELS "/prelude_opencl.dev"));
  }
  // The instruction of matrix units becomes what the PTX ISA says of it.
  const std::string units = file(MOCK_KERNELS "/units_cuda.dev");
  if (const size_t place = program->source.find(units); place != std::string::npos)
    program->source.replace(place, units.size(), file(MOCK_TESTS "/units.cl"));
  program->source = kept + "\n" + program->source;
  return kSuccess;
}
Result nvrtcGetProgramLogSize(ProgramId program, size_t* size) {
  *size = program->log.size() + 1;
  return kSuccess;
}
Result nvrtcGetProgramLog(ProgramId program, char* to) {
  std::strcpy(to, program->log.c_str());
  return kSuccess;
}
Result nvrtcGetCUBINSize(ProgramId program, size_t* size) {
  *size = program->source.size() + 1;
  return kSuccess;
}
Result nvrtcGetCUBIN(ProgramId program, char* to) {
  std::strcpy(to, program->source.c_str());
  return kSuccess;
}

}  // extern "C"
