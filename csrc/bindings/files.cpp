#include "bindings/files.h"

#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "core/errors.h"
#include "core/message.h"

namespace pyflow {
namespace {

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

py::object to_python(const MetadataScalar& value) {
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

py::object to_python(const std::vector<MetadataScalar>& values) {
  py::list out;
  for (const MetadataScalar& v : values) out.append(to_python(v));
  return out;
}

}  // namespace

std::string path_bytes(const py::object& path) {
  return py::module_::import("os").attr("fsencode")(path).cast<std::string>();
}

py::str path_text(const std::string& bytes) {
  return py::module_::import("os").attr("fsdecode")(py::bytes(bytes));
}

py::str text(std::string_view s) {
  PyObject* o =
      PyUnicode_DecodeUTF8(s.data(), static_cast<Py_ssize_t>(s.size()), "surrogateescape");
  if (!o) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(o);
}

py::dict metadata_dict(const Checkpoint& c) {
  py::dict out;
  for (const MetadataEntry& e : c.metadata()) {
    try {
      out[text(e.key)] = std::visit([](const auto& v) { return to_python(v); }, e.value);
    } catch (const FormatError& error) {
      throw FormatError(c.label() + ": metadata " + quoted(e.key) + ": " + error.what());
    }
  }
  c.files()[0]->release(0, c.data_offset());  // or it would be in memory twice
  return out;
}

std::shared_ptr<const uint8_t> inflate(const uint8_t* data, uint64_t packed, uint64_t nbytes) {
  const py::gil_scoped_acquire locked;
  const auto zlib = py::module_::import("zlib");
  try {
    constexpr int kRaw = -15;  // no header; the largest window
    const auto stream = zlib.attr("decompressobj")(kRaw);
    const auto view = py::memoryview::from_memory(data, static_cast<py::ssize_t>(packed));
    // One byte more than expected: at the bound itself zlib does not look for the end.
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

}  // namespace pyflow
