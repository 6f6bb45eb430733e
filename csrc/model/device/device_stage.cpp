#include "model/device/device_stage.h"

#include <set>

#include "core/errors.h"
#include "device/program/compile.h"
#include "device/selftest.h"

namespace pyflow {

DeviceStage::DeviceStage(const Offload& offload, const std::vector<const PackedTensor*>& matrices)
    : device_(offload.device), weights_(device_) {
  std::set<DType> set;
  for (const PackedTensor* w : matrices) set.insert(w->dtype());
  const std::vector<DType> formats(set.begin(), set.end());
  compiled_ = device::compile(device_, formats, offload.programs);
  device::Ops ops(compiled_);
  fault_ = device::first_fault(ops, formats);
  if (!fault_.empty() && !offload.allow_inexact)
    throw UnsupportedError(device_->info().name + ": its results differ from the CPU's: " + fault_ +
                           "; use another device, or --gpu-inexact");
  weights_.place(matrices);
}

}  // namespace pyflow
