// Links between members that share a stage.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "core/errors.h"
#include "link/board.h"
#include "link/sockets.h"

namespace pyflow {
namespace {

constexpr int64_t kMostMembers = 1024;
constexpr int64_t kMostTimed = int64_t{1} << 24;

void check_size(int64_t number, int64_t size) {
  if (size < 1 || size > kMostMembers || number < 0 || number >= size)
    throw ShapeError("group: expected 1 to " + std::to_string(kMostMembers) +
                     " members, found member " + std::to_string(number) + " of " +
                     std::to_string(size));
}

std::span<const uint8_t> bytes_of(const py::buffer_info& info) {
  return {static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

std::vector<std::shared_ptr<Link>> of_threads(int64_t size) {
  check_size(0, size);
  std::vector<std::shared_ptr<Link>> all;
  for (auto& link : thread_links(size)) all.push_back(std::move(link));
  return all;
}

py::bytes hear(Link& link) {
  std::vector<uint8_t> text;
  {
    py::gil_scoped_release release;
    text = link.hear();
  }
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

}  // namespace

void register_link(py::module_& m) {
  py::class_<Link, std::shared_ptr<Link>>(m, "Link")
      .def_static("threads", &of_threads, py::arg("size"))
      .def_static(
          "shared",
          [](int fd, int64_t number, int64_t size, int64_t offset) -> std::shared_ptr<Link> {
            check_size(number, size);
            return file_link(fd, number, size, std::max<int64_t>(0, offset));
          },
          py::arg("fd"), py::arg("number"), py::arg("size"), py::arg("offset") = 0)
      .def_static(
          "shared_nbytes",
          [](int64_t size) {
            check_size(0, size);
            return board_nbytes(size);
          },
          py::arg("size"))
      .def_static(
          "sockets",
          [](std::vector<int> fds, int64_t number) -> std::shared_ptr<Link> {
            check_size(number, std::ssize(fds));
            return socket_link(std::move(fds), number);
          },
          py::arg("fds"), py::arg("number"))
      .def_property_readonly("number", &Link::number)
      .def_property_readonly("size", &Link::size)
      .def_property_readonly(
          "gathers",
          [](const Link& link) { return std::pair(link.n_gathers(), link.n_gathered()); })
      .def(
          "time_rounds",
          [](Link& link, int64_t nbytes, int64_t n, double pause_s) {
            py::gil_scoped_release release;
            return link.time_rounds(std::clamp<int64_t>(nbytes, 0, kMostTimed),
                                    std::max<int64_t>(0, n), pause_s);
          },
          py::arg("nbytes"), py::arg("n"), py::arg("pause_s"))
      .def_property("sends_early", &Link::sends_early, &Link::set_sends_early)
      .def("set_deadline", &Link::set_deadline_ms, py::arg("ms"))
      .def(
          "meet",
          [](Link& link, const py::buffer& plan) {
            const py::buffer_info info = plan.request();
            py::gil_scoped_release release;
            link.meet(bytes_of(info));
          },
          py::arg("plan"))
      .def(
          "say",
          [](Link& link, const py::buffer& text) {
            const py::buffer_info info = text.request();
            py::gil_scoped_release release;
            link.say(bytes_of(info));
          },
          py::arg("text"))
      .def("hear", &hear)
      .def("agree", &Link::agree, py::arg("answer"), py::call_guard<py::gil_scoped_release>())
      .def("abort", &Link::abort);
}

}  // namespace pyflow
