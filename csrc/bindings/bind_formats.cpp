#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "bindings/bind.h"
#include "core/errors.h"
#include "formats/gguf.h"
#include "formats/message.h"

namespace pyflow {
namespace {

// The path as the system knows it, for str, bytes and os.PathLike.
std::string path_bytes(const py::object& path) {
  return py::module_::import("os").attr("fsencode")(path).cast<std::string>();
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

// Built once per file and kept on the object: a vocabulary of 262,144 strings takes 20 ms.
py::dict metadata(const py::object& self) {
  py::dict slots = self.attr("__dict__");
  constexpr const char* kSlot = "_metadata";
  if (!slots.contains(kSlot)) {
    const auto& f = self.cast<const GgufFile&>();
    py::dict out;
    for (const GgufEntry& e : f.metadata()) {
      try {
        out[text(e.key)] = to_python(e.value);
      } catch (const FormatError& error) {
        throw FormatError(f.file().label() + ": metadata " + quoted(e.key) + ": " + error.what());
      }
    }
    slots[kSlot] = out;
    // What Python now holds need not stay resident a second time.
    f.file().release(0, f.data_offset());
  }
  return slots[kSlot];
}

const GgufTensor& require_tensor(const GgufFile& f, const std::string& name) {
  const GgufTensor* t = f.find_in_table(name);
  if (!t)
    throw FormatError(f.file().label() + ": there is no tensor " + quoted(name) +
                      "; 'pyflow inspect' lists those that are there");
  return *t;
}

// The tensor's bytes as a read-only array that keeps the file open.
py::array tensor_data(const py::object& self, const std::string& name) {
  const auto& f = self.cast<const GgufFile&>();
  const GgufTensor& t = require_tensor(f, name);
  if (t.nbytes == 0)
    throw UnsupportedError(f.file().label() + ": tensor " + quoted(name) + " is of " + t.type_name +
                           ", whose size this build does not know; update pyflow");
  py::array_t<uint8_t> out(static_cast<py::ssize_t>(t.nbytes), f.file().data() + t.offset, self);
  out.attr("setflags")(py::arg("write") = false);
  return out;
}

std::string tensor_repr(const GgufTensor& t) {
  return "<TensorRecord " + printable(t.name) + " " + t.type_name + " " +
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
  // A copy of what the table says, without the address of the data: safe to outlive its file.
  py::class_<GgufTensor>(m, "TensorRecord")
      .def_readonly("name", &GgufTensor::name)
      .def_readonly("dtype", &GgufTensor::type_name)
      .def_readonly("type_id", &GgufTensor::type_id)
      .def_readonly("supported", &GgufTensor::supported)
      .def_property_readonly("shape",
                             [](const GgufTensor& t) { return py::tuple(py::cast(t.shape)); })
      .def_readonly("offset", &GgufTensor::offset)
      .def_readonly("nbytes", &GgufTensor::nbytes)
      .def("__repr__", tensor_repr);

  py::class_<GgufFile, std::shared_ptr<GgufFile>>(m, "GgufFile", py::dynamic_attr())
      .def(py::init([](const py::object& path) {
             const std::string bytes = path_bytes(path);
             const py::gil_scoped_release unlocked;
             return GgufFile::open(bytes);
           }),
           py::arg("path"))
      .def_property_readonly("version", &GgufFile::version)
      .def_property_readonly("alignment", &GgufFile::alignment)
      .def_property_readonly("nbytes", &GgufFile::nbytes)
      .def_property_readonly("data_offset", &GgufFile::data_offset)
      .def_property_readonly("metadata", metadata)
      .def_property_readonly("tensors", [](const GgufFile& f) { return f.table(); })
      .def("data", tensor_data, py::arg("name"))
      .def(
          "release",
          [](const GgufFile& f, uint64_t offset, uint64_t nbytes) {
            f.file().release(offset, nbytes);
          },
          py::arg("offset"), py::arg("nbytes"));
  m.def("read_head", read_head, py::arg("path"), py::arg("nbytes"));
}

}  // namespace pyflow
