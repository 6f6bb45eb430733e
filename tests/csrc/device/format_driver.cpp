// Runs the self-test with products of the format PYFLOW_TRIED, on device argv[1], with the texts of
// kernels from the folder argv[2]. The scalar table is the only one.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <list>
#include <map>
#include <string>

#include "device/selftest.h"
#include "kernels/dispatch.h"

namespace pyflow {

const KernelTable* kernels_scalar() noexcept;
const KernelTable& kernel_table(std::string_view) { return *kernels_scalar(); }

namespace device {
namespace {
std::map<std::string_view, std::string_view> texts;
}
const std::map<std::string_view, std::string_view>& kernel_texts() { return texts; }
}  // namespace device

}  // namespace pyflow

int main(int, char** argv) {
  using namespace pyflow;
  std::list<std::string> held;
  for (const auto& entry : std::filesystem::directory_iterator(argv[2])) {
    std::ifstream file(entry.path());
    held.push_back(entry.path().stem());
    const std::string& name = held.back();
    held.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    device::texts[name] = held.back();
  }
  const DType tried[] = {DType::PYFLOW_TRIED};
  try {
    device::Ops ops(
        device::compile(device::open_device(std::strtoul(argv[1], nullptr, 10)), tried, ""));
    const std::string fault = device::first_fault(ops, tried);
    std::puts(fault.empty() ? "exact" : fault.c_str());
  } catch (const std::exception& error) {
    std::puts(error.what());
  }
}
