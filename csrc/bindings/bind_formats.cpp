#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bind.h"
#include "core/errors.h"
#include "core/message.h"
#include "files/gguf/gguf.h"
#include "files/llama2c/llama2c.h"
#include "files/open.h"
#include "files/safetensors/safetensors.h"
#include "files/shards.h"
#include "files/torch/torch.h"

namespace pyflow {
namespace {

// The path as the system knows it, for str, bytes and os.PathLike.
std::string path_bytes(const py::object& path) {
  return py::module_::import("os").attr("fsencode")(path).cast<std::string>();
}

template <class File>
std::shared_ptr<File> open_file(const py::object& path) {
  const std::string bytes = path_bytes(path);
  const py::gil_scoped_release unlocked;
  return File::open(bytes);
}

// GGUF says UTF-8, tokenizers hold anything: bytes that are not become lone surrogates, and
// s.encode("utf-8", "surrogateescape") gives back exactly what the file has.
py::str text(std::string_view s) {
  PyObject* o =
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape");
  if (!o) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(o);
}

template <class T>
py::object copy_numbers(const GgufArray& a) {
  py::array_t<T> out(static_cast<py::ssize_t>(a.count));
  if (a.nbytes > 0) std::memcpy(out.mutable_data(), a.data, a.nbytes);
  return out;
}

py::object to_python(const GgufArray& a) {
  switch (a.type) {
    case GgufType::U8:
      return copy_numbers<uint8_t>(a);
    case GgufType::I8:
      return copy_numbers<int8_t>(a);
    case GgufType::U16:
      return copy_numbers<uint16_t>(a);
    case GgufType::I16:
      return copy_numbers<int16_t>(a);
    case GgufType::U32:
      return copy_numbers<uint32_t>(a);
    case GgufType::I32:
      return copy_numbers<int32_t>(a);
    case GgufType::F32:
      return copy_numbers<float>(a);
    case GgufType::Bool:
      return copy_numbers<bool>(a);
    case GgufType::U64:
      return copy_numbers<uint64_t>(a);
    case GgufType::I64:
      return copy_numbers<int64_t>(a);
    case GgufType::F64:
      return copy_numbers<double>(a);
    case GgufType::String: {
      py::list out(a.count);
      size_t i = 0;
      for (const std::string_view s : a.strings())
        PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i++), text(s).release().ptr());
      return out;
    }
    case GgufType::Array: {
      py::list out;
      for (const GgufArray& inner : a.inner) out.append(to_python(inner));
      return out;
    }
  }
  __builtin_unreachable();  // the parser lets no other type through
}

py::object to_python(const GgufValue& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string_view>)
          return text(v);
        else if constexpr (std::is_same_v<T, GgufArray>)
          return to_python(v);
        else
          return py::cast(v);
      },
      value);
}

py::dict read_metadata(const GgufFile& f) {
  py::dict out;
  for (const GgufEntry& e : f.metadata()) {
    try {
      out[text(e.key)] = to_python(e.value);
    } catch (const FormatError& error) {
      throw FormatError(f.label() + ": metadata " + quoted(e.key) + ": " + error.what());
    }
  }
  // What Python now holds need not stay resident a second time.
  f.file().release(0, f.data_offset());
  return out;
}

// Python's own zlib: one more library to build with would be for archives that hardly exist.
std::shared_ptr<const uint8_t> inflate(const uint8_t* data, uint64_t packed, uint64_t nbytes) {
  const py::gil_scoped_acquire locked;
  const auto zlib = py::module_::import("zlib");
  try {
    constexpr int kRaw = -15;  // no header; the largest window
    const auto stream = zlib.attr("decompressobj")(kRaw);
    const auto view = py::memoryview::from_memory(data, static_cast<py::ssize_t>(packed));
    // One byte more than there may be: at the bound itself zlib does not look for the end.
    auto out = stream.attr("decompress")(view, nbytes + 1).cast<py::bytes>();
    if (!stream.attr("eof").cast<bool>() || py::len(out) != nbytes) return nullptr;
    const auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AS_STRING(out.ptr()));
    return {bytes, [held = out.release().ptr()](const uint8_t*) {
              const py::gil_scoped_acquire locked;
              Py_DECREF(held);
            }};
  } catch (py::error_already_set& e) {
    if (e.matches(zlib.attr("error"))) return nullptr;
    throw;
  }
}

py::object to_python(const TorchScalar& value) {
  return std::visit(
      [](const auto& v) -> py::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return py::none();
        else if constexpr (std::is_same_v<T, std::string>)
          return text(v);
        else if constexpr (std::is_same_v<T, BigInt>)
          return py::module_::import("builtins")
              .attr("int")
              .attr("from_bytes")(py::bytes(v.bytes), "little", py::arg("signed") = true);
        else
          return py::cast(v);
      },
      value);
}

py::object to_python(const TorchValue& value) {
  if (const auto* scalar = std::get_if<TorchScalar>(&value)) return to_python(*scalar);
  py::list out;
  for (const TorchScalar& v : std::get<std::vector<TorchScalar>>(value)) out.append(to_python(v));
  return out;
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

py::dict read_metadata(const Checkpoint& c) {
  if (const auto* f = dynamic_cast<const GgufFile*>(&c)) return read_metadata(*f);
  if (const auto* f = dynamic_cast<const ShardedCheckpoint*>(&c))
    return read_metadata(*f->parts()[0]);
  py::dict out;
  if (const auto* f = dynamic_cast<const Llama2cFile*>(&c))
    for (const auto& [key, value] : f->metadata()) out[text(key)] = value;
  if (const auto* f = dynamic_cast<const TorchFile*>(&c))
    for (const auto& [key, value] : f->metadata()) out[text(key)] = to_python(value);
  if (const auto* f = dynamic_cast<const SafetensorsFile*>(&c))
    for (const auto& [key, value] : f->metadata()) out[text(key)] = text(value);
  return out;
}

// Built once per file and kept on the object: a vocabulary of 262,144 strings takes 20 ms.
py::dict metadata(const py::object& self) {
  py::dict slots = self.attr("__dict__");
  constexpr const char* kSlot = "_metadata";
  if (!slots.contains(kSlot)) slots[kSlot] = read_metadata(self.cast<const Checkpoint&>());
  return slots[kSlot];
}

py::object path_of(const MappedFile& file) {
  return py::module_::import("os").attr("fsdecode")(py::bytes(file.path()));
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
  return {t, path_of(*c.files()[t.file])};
}

std::vector<FoundRow> lines(const Checkpoint& c) {
  std::vector<py::object> sources;
  for (const auto& file : c.files()) sources.push_back(path_of(*file));
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

std::string tensor_repr(const FoundRow& line) {
  const TensorRow& t = line.entry;
  return "<TensorRow " + printable(t.name) + " " + t.type_name + " " +
         py::repr(py::tuple(py::cast(t.shape))).cast<std::string>() + " " + grouped(t.nbytes) +
         " bytes at " + grouped(t.offset) + ">";
}

// The first bytes of a regular file, for telling formats apart.
py::bytes read_head(const py::object& path, size_t nbytes) {
  const MappedFile file(path_bytes(path));
  return {reinterpret_cast<const char*>(file.data()), std::min<size_t>(nbytes, file.size())};
}

}  // namespace

void register_formats(py::module_& m) {
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
      .def_property_readonly("source", [](const FoundRow& t) { return t.source; })
      .def_property_readonly("offset", field(&TensorRow::offset))
      .def_property_readonly("nbytes", field(&TensorRow::nbytes))
      .def("__repr__", tensor_repr);

  py::class_<Checkpoint, std::shared_ptr<Checkpoint>>(m, "Checkpoint", py::dynamic_attr())
      .def_property_readonly("format", &Checkpoint::format)
      .def_property_readonly("nbytes", &Checkpoint::nbytes)
      .def_property_readonly("data_offset", &Checkpoint::data_offset)
      .def_property_readonly("files",
                             [](const Checkpoint& c) {
                               py::list out;
                               for (const auto& file : c.files()) out.append(path_of(*file));
                               return out;
                             })
      .def_property_readonly("metadata", metadata)
      .def_property_readonly("tensors", lines)
      .def("tensor", line, py::arg("name"))
      .def("data", tensor_data, py::arg("name"))
      .def(
          "release",
          [](const Checkpoint& c, const std::string& name, uint64_t begin, uint64_t nbytes) {
            const TensorRow& t = require_tensor(c, name);
            const uint64_t from = std::min(begin, t.span);
            c.files()[t.file]->release(t.offset + from, std::min(nbytes, t.span - from));
          },
          py::arg("name"), py::arg("begin") = 0, py::arg("nbytes") = UINT64_MAX);

  py::class_<GgufFile, Checkpoint, std::shared_ptr<GgufFile>>(m, "GgufFile")
      .def(py::init(&open_file<GgufFile>), py::arg("path"))
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("alignment", &GgufFile::alignment)
      .def_property_readonly("data_offset", &GgufFile::data_offset)
      .def_property_readonly("entries", [](const GgufFile& f) {
        py::list out;
        for (const GgufEntry& e : f.metadata())
          out.append(py::make_tuple(
              text(e.key),
              py::bytes(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size())));
        return out;
      });
  py::class_<SafetensorsFile, Checkpoint, std::shared_ptr<SafetensorsFile>>(m, "SafetensorsFile")
      .def(py::init(&open_file<SafetensorsFile>), py::arg("path"));
  py::class_<ShardedCheckpoint, Checkpoint, std::shared_ptr<ShardedCheckpoint>>(
      m, "ShardedCheckpoint");
  py::class_<Llama2cFile, Checkpoint, std::shared_ptr<Llama2cFile>>(m, "Llama2cFile");
  py::class_<TorchFile, Checkpoint, std::shared_ptr<TorchFile>>(m, "TorchFile")
      .def_property_readonly("globals", [](const TorchFile& f) { return globals_of(f.globals()); });
  m.def("pickle_globals", pickle_globals, py::arg("path"));
  m.def(
      "open_checkpoint",
      [](const py::object& path) {
        const std::string bytes = path_bytes(path);
        const py::gil_scoped_release unlocked;
        return open_checkpoint(bytes, inflate);
      },
      py::arg("path"));
  m.def("read_head", read_head, py::arg("path"), py::arg("nbytes"));
}

}  // namespace pyflow
