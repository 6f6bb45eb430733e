// Checkpoints: the files that hold weights, and the rows of their tensor tables.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/files.h"
#include "core/errors.h"
#include "core/message.h"
#include "files/gguf/gguf.h"
#include "files/open.h"
#include "files/safetensors/mx_pairs.h"
#include "files/safetensors/safetensors.h"
#include "files/torch/torch.h"

namespace pyflow {
namespace {

template <class File>
std::shared_ptr<File> open_file(const py::object& path) {
  const std::string bytes = path_bytes(path);
  const py::gil_scoped_release unlocked;
  return File::open(bytes);
}

// Built once per file and kept on the object: a vocabulary of 262,144 strings takes 20 ms.
py::dict metadata(const py::object& self) {
  py::dict slots = self.attr("__dict__");
  constexpr const char* kSlot = "_metadata";
  if (!slots.contains(kSlot)) slots[kSlot] = metadata_dict(self.cast<const Checkpoint&>());
  return slots[kSlot];
}

const TensorRow& require_tensor(const Checkpoint& c, const std::string& name) {
  const TensorRow* t = c.row_named(name);
  if (!t)
    throw FormatError(c.label() + ": there is no tensor " + quoted(name) +
                      "; 'pyflow inspect' lists those that are there");
  return *t;
}

// A copy of what the table says, without the address of the data: safe to outlive its file.
struct FoundRow {
  TensorRow entry;
  py::object source;
};

FoundRow line(const Checkpoint& c, const std::string& name) {
  const TensorRow& t = require_tensor(c, name);
  return {t, path_text(c.files()[t.file]->path())};
}

std::vector<FoundRow> lines(const Checkpoint& c) {
  std::vector<py::object> sources;
  for (const auto& file : c.files()) sources.push_back(path_text(file->path()));
  std::vector<FoundRow> out;
  out.reserve(c.table().size());
  for (const TensorRow& t : c.table()) out.push_back({t, sources[t.file]});
  return out;
}

py::tuple strides(const TensorRow& t) {
  if (!t.strides.empty()) return py::tuple(py::cast(t.strides));
  std::vector<int64_t> out(t.shape.size());
  int64_t step = 1;
  for (size_t d = t.shape.size(); d-- > 0; step *= std::max<int64_t>(1, t.shape[d])) out[d] = step;
  return py::tuple(py::cast(out));
}

// The tensor's bytes as a read-only array that keeps the file open.
py::array tensor_data(const py::object& self, const std::string& name) {
  const auto& c = self.cast<const Checkpoint&>();
  const TensorRow& t = require_tensor(c, name);
  if (t.block_bytes == 0)
    throw UnsupportedError(c.label() + ": tensor " + quoted(name) + " is of " + t.type_name +
                           ", whose size this build does not know; update pyflow");
  Contents contents;
  {
    const py::gil_scoped_release unlocked;
    contents = c.contents(t);
  }
  py::object owner = self;
  if (contents.owner)
    owner = py::capsule(new std::shared_ptr<const void>(std::move(contents.owner)),
                        [](void* p) { delete static_cast<std::shared_ptr<const void>*>(p); });
  py::array_t<uint8_t> out(static_cast<py::ssize_t>(contents.nbytes), contents.data, owner);
  out.attr("setflags")(py::arg("write") = false);
  return out;
}

// The bytes of files that make up a tensor, likewise.
py::list tensor_parts(const py::object& self, const std::string& name) {
  const auto& c = self.cast<const Checkpoint&>();
  py::list out;
  for (const auto& part : c.parts(require_tensor(c, name))) {
    py::array_t<uint8_t> bytes(static_cast<py::ssize_t>(part.size()), part.data(), self);
    bytes.attr("setflags")(py::arg("write") = false);
    out.append(std::move(bytes));
  }
  return out;
}

// What divides the int8 codes of a tensor, one number for all rows or one for each; else none.
py::array_t<float> divisors(const Checkpoint& c, const std::string& name) {
  const TensorRow& t = require_tensor(c, name);
  py::array_t<float> out(t.n_divisors);
  if (t.n_divisors > 0)
    std::memcpy(out.mutable_data(), c.files()[t.file]->data() + t.divisors,
                t.n_divisors * sizeof(float));
  return out;
}

std::string tensor_repr(const FoundRow& line) {
  const TensorRow& t = line.entry;
  return "<TensorRow " + printable(t.name) + " " + t.type_name + " " +
         py::repr(py::tuple(py::cast(t.shape))).cast<std::string>() + " " + grouped(t.nbytes) +
         " bytes at " + grouped(t.offset) + ">";
}

py::list globals_of(const std::vector<PickleGlobal>& globals) {
  py::list out;
  for (const PickleGlobal& g : globals)
    out.append(py::make_tuple(text(g.full()), g.known, g.runs_code));
  return out;
}

py::tuple pickle_globals(const py::object& path) {
  const std::string bytes = path_bytes(path);
  TorchFile::Inspection found;
  {
    const py::gil_scoped_release unlocked;
    found = TorchFile::inspect(bytes, inflate);
  }
  return py::make_tuple(globals_of(found.globals), text(found.error));
}

// The first bytes of a regular file, for telling formats apart.
py::bytes read_head(const py::object& path, size_t nbytes) {
  const MappedFile file(path_bytes(path));
  return {reinterpret_cast<const char*>(file.data()), std::min<size_t>(nbytes, file.size())};
}

void register_rows(py::module_& m) {
  const auto field = [](auto TensorRow::*member) {
    return [member](const FoundRow& t) { return t.entry.*member; };
  };
  py::class_<FoundRow>(m, "TensorRow")
      .def_property_readonly("name", field(&TensorRow::name))
      .def_property_readonly("dtype", field(&TensorRow::type_name))
      .def_property_readonly("type_id",
                             [](const FoundRow& t) -> std::optional<uint32_t> {
                               if (t.entry.type_id == kNoGgufId) return std::nullopt;
                               return t.entry.type_id;
                             })
      .def_property_readonly("supported", field(&TensorRow::supported))
      .def_property_readonly("shape",
                             [](const FoundRow& t) { return py::tuple(py::cast(t.entry.shape)); })
      .def_property_readonly("strides", [](const FoundRow& t) { return strides(t.entry); })
      .def_property_readonly("contiguous",
                             [](const FoundRow& t) { return t.entry.strides.empty(); })
      .def_property_readonly("made", [](const FoundRow& t) { return t.entry.made != nullptr; })
      .def_property_readonly("compact",
                             [](const FoundRow& t) -> std::string_view {
                               const auto* c = t.entry.made ? t.entry.made->compact() : nullptr;
                               return c ? info(c->dtype()).name : "";
                             })
      .def_property_readonly("source", [](const FoundRow& t) { return t.source; })
      .def_property_readonly("offset", field(&TensorRow::offset))
      .def_property_readonly("nbytes", field(&TensorRow::nbytes))
      .def("__repr__", tensor_repr);
}

void register_checkpoint(py::module_& m) {
  py::class_<Checkpoint, std::shared_ptr<Checkpoint>>(m, "Checkpoint", py::dynamic_attr())
      .def_property_readonly("format", &Checkpoint::format)
      .def_property_readonly("nbytes", &Checkpoint::nbytes)
      .def_property_readonly("data_offset", &Checkpoint::data_offset)
      .def_property_readonly("files",
                             [](const Checkpoint& c) {
                               py::list out;
                               for (const auto& file : c.files())
                                 out.append(path_text(file->path()));
                               return out;
                             })
      .def_property_readonly("notes",
                             [](const Checkpoint& c) {
                               py::list out;
                               for (const std::string& note : c.notes()) out.append(text(note));
                               return out;
                             })
      .def_property_readonly("metadata", metadata)
      .def_property_readonly("tensors", lines)
      .def("tensor", line, py::arg("name"))
      .def("data", tensor_data, py::arg("name"))
      .def("parts", tensor_parts, py::arg("name"))
      .def("divisors", divisors, py::arg("name"))
      .def(
          "release",
          [](const Checkpoint& c, const std::string& name, uint64_t begin, uint64_t nbytes) {
            const TensorRow& t = require_tensor(c, name);
            if (!t.made) {
              const uint64_t from = std::min(begin, t.span);
              c.files()[t.file]->release(t.offset + from, std::min(nbytes, t.span - from));
            } else if (begin == 0 || nbytes >= t.nbytes - std::min(begin, t.nbytes)) {
              for (const auto& part : c.parts(t)) c.release(part);
            }
          },
          py::arg("name"), py::arg("begin") = 0, py::arg("nbytes") = UINT64_MAX)
      .def("release_all", &Checkpoint::release_all);
}

void register_formats(py::module_& m) {
  py::class_<GgufFile, Checkpoint, std::shared_ptr<GgufFile>>(m, "GgufFile")
      .def(py::init(&open_file<GgufFile>), py::arg("path"))
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("alignment", &GgufFile::alignment)
      .def_property_readonly("entries", [](const GgufFile& f) {
        py::list out;
        for (const GgufEntry& e : f.entries())
          out.append(py::make_tuple(
              text(e.key),
              py::bytes(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size())));
        return out;
      });
  py::class_<SafetensorsFile, Checkpoint, std::shared_ptr<SafetensorsFile>>(m, "SafetensorsFile")
      .def(py::init(&open_file<SafetensorsFile>), py::arg("path"));
  py::class_<TorchFile, Checkpoint, std::shared_ptr<TorchFile>>(m, "TorchFile")
      .def_property_readonly("globals", [](const TorchFile& f) { return globals_of(f.globals()); });
}

}  // namespace

// A file format without a class here is a plain Checkpoint to Python.
void register_files(py::module_& m) {
  register_rows(m);
  register_checkpoint(m);
  register_formats(m);
  m.def("pickle_globals", pickle_globals, py::arg("path"));
  m.def(
      "open_checkpoint",
      [](const py::object& path) {
        const std::string bytes = path_bytes(path);
        const py::gil_scoped_release unlocked;
        return open_checkpoint(bytes, inflate);
      },
      py::arg("path"));
  m.def(
      "open_shards",
      [](const std::vector<py::object>& paths) {
        std::vector<std::string> bytes;
        for (const py::object& path : paths) bytes.push_back(path_bytes(path));
        const py::gil_scoped_release unlocked;
        return open_shards(bytes, inflate);
      },
      py::arg("paths"));
  m.def("join_pairs", &join_mx_pairs, py::arg("checkpoint"));
  m.def("read_head", read_head, py::arg("path"), py::arg("nbytes"));
}

}  // namespace pyflow
