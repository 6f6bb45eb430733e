#include "model/device/device_stage.h"

#include <set>

#include "core/errors.h"
#include "device/probe.h"
#include "device/program/compile.h"

namespace pyflow {

DeviceStage::DeviceStage(const Offload& offload, Home group, Membership own,
                         std::span<const NamedMatrix> matrices, const DeviceNeeds& needs,
                         const std::function<void()>& poll)
    : group_(group),
      own_(own),
      number_(offload.ranks.alone() ? static_cast<size_t>(own.number) : 0),
      device_(offload.groups[static_cast<size_t>(group)][number_]),
      weights_(device_, own) {
  std::set<DType> set;
  for (const NamedMatrix& w : matrices) set.insert(w.packed->dtype());
  const std::vector<DType> formats(set.begin(), set.end());
  compiled_ = device::compile(device_, formats, offload.programs, poll);
  fault_ = device::find_fault(compiled_, formats, poll);
  if (!fault_.empty() && !offload.allow_inexact)
    throw UnsupportedError(device_->info().name + ": its results differ from the CPU's: " + fault_ +
                           "; use another device, or --gpu-inexact");
  weights_.place(matrices, needs);
}

}  // namespace pyflow
