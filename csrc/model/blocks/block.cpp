#include "model/blocks/block.h"

namespace pyflow {

std::unique_ptr<Block> make_block(const BlockSpec& spec, BlockContext& c) {
#define PYFLOW_BLOCK(name, where) \
  if (spec.kind == #name) return make_##name(spec, c);
#include "model/blocks/blocks.def"
#undef PYFLOW_BLOCK
  throw UnsupportedError("block '" + spec.kind + "': no such kind in this build");
}

Runs where_runs(const std::string& kind) {
#define PYFLOW_BLOCK(name, where) \
  if (kind == #name) return Runs::where;
#include "model/blocks/blocks.def"
#undef PYFLOW_BLOCK
  return Runs::HostOnly;
}

size_t register_index(const std::string& name) {
  if (name == "x") return 0;
  if (name == "h") return 1;
  if (name == "a") return 2;
  throw ShapeError("register '" + name + "': expected x, h or a");
}

}  // namespace pyflow
