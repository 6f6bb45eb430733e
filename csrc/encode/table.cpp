#include "encode/table.h"

#include <string_view>

namespace pyflow {

#define PYFLOW_ISA_LINE(name, ...) const EncodeTable* encode_##name();
#include "kernels/isas.def"
#undef PYFLOW_ISA_LINE

#if defined(__x86_64__)
// Encoding multiplies no bytes, and what compilers made for both was the same, 200 KB of it.
const EncodeTable* encode_avxvnni() { return encode_avx2(); }
#endif

const EncodeTable& encode_table(const KernelTable& kernels) {
  const std::string_view isa = kernels.name;
#define PYFLOW_ISA_LINE(name, ...) \
  if (isa == #name) return *encode_##name();
#define PYFLOW_TILE_LINE(name, base, ...) \
  if (isa == #name) return *encode_##base();
#include "kernels/isas.def"
#undef PYFLOW_ISA_LINE
  return *encode_scalar();
}

}  // namespace pyflow
