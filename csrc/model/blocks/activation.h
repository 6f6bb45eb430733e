// The names of activations, as specs and tests write them.
#pragma once

#include <string>

#include "core/errors.h"
#include "kernels/table.h"

namespace pyflow {

// Throws UnsupportedError for another name.
inline Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::Silu;
  if (name == "gelu") return Activation::Gelu;
  if (name == "gelu_tanh") return Activation::GeluTanh;
  if (name == "relu") return Activation::Relu;
  if (name == "swiglu_clamped") return Activation::SwigluClamped;
  throw UnsupportedError("activation '" + name +
                         "': expected silu, gelu, gelu_tanh, relu or swiglu_clamped");
}

}  // namespace pyflow
