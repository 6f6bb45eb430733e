#include "device/program/compile.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "device/driver.h"

namespace pyflow::device {
namespace {

using Bytes = std::vector<uint8_t>;

// FNV-1a: a byte that changes always changes the result.
uint64_t hash(std::span<const uint8_t> bytes, uint64_t state = 0xcbf29ce484222325) {
  for (const uint8_t byte : bytes) state = (state ^ byte) * 0x100000001b3;
  return state;
}
uint64_t hash(const std::string& text, uint64_t state = 0xcbf29ce484222325) {
  const uint64_t size = text.size();  // so that "ab", "c" is not "a", "bc"
  uint8_t bytes[sizeof size];
  std::memcpy(bytes, &size, sizeof size);
  state = hash(bytes, state);
  return hash({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, state);
}

// A file: this, then the program.
struct Header {
  char magic[8];
  uint64_t made_from[2];  // source, options, device and driver
  uint64_t nbytes, checksum;
};
constexpr char kMagic[8] = {'P', 'F', 'D', 'E', 'V', '0', '1', '\n'};

Header header_of(const DeviceInfo& info, const Source& source) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  uint64_t seed = 0xcbf29ce484222325;
  for (uint64_t& made_from : header.made_from) {
    made_from = seed;
    for (const std::string* part :
         {&info.api, &info.name, &info.vendor, &info.driver, &source.options, &source.text})
      made_from = hash(*part, made_from);
    seed = hash(std::string("another one"), seed);
  }
  return header;
}

std::filesystem::path path_of(const std::string& folder, const Header& header) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (const uint64_t number : header.made_from)
    for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[number >> shift & 15];
  return std::filesystem::path(folder) / (name + ".program");
}

std::optional<Bytes> read(const std::filesystem::path& path, const Header& expected) {
  std::ifstream file(path, std::ios::binary);
  Header header;
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error || !file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
      std::memcmp(header.made_from, expected.made_from, sizeof header.made_from) != 0 ||
      header.nbytes != size - sizeof header)
    return std::nullopt;
  Bytes bytes(header.nbytes);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    return std::nullopt;
  return hash(bytes) == header.checksum ? std::optional(std::move(bytes)) : std::nullopt;
}

// Returns why it could not. Other processes see the whole file or none.
std::string write(const std::filesystem::path& path, Header header, const Bytes& bytes) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  header.nbytes = bytes.size();
  header.checksum = hash(bytes);
  static std::atomic<int> number = 0;  // threads may keep the same program at the same time
  const std::filesystem::path part =
      path.string() + "." + std::to_string(getpid()) + "." + std::to_string(++number);
  {
    std::ofstream file(part, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&header), sizeof header);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) std::filesystem::rename(part, path, error);
  if (!error) return "";
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  return path.parent_path().string() +
         ": device programs cannot be kept here, and are compiled at each start";
}

std::atomic<int> apart = 0;

struct Built {
  std::shared_ptr<const Program> program;
  Bytes binary;
};

// Some drivers compile when they are asked for the binary.
Built build(std::shared_ptr<Device> device, const Source& source, bool keeps, const Poll& poll) {
  const auto built = std::make_shared<Built>();
  run_apart(
      [=] {
        built->program = device->build(source.text, source.options);
        if (keeps) built->binary = built->program->binary();
      },
      poll);
  return std::move(*built);
}

}  // namespace

void run_apart(std::function<void()> work, const Poll& poll) {
  if (!poll) return work();
  auto promise = std::make_shared<std::promise<void>>();
  auto future = promise->get_future();
  ++apart;
  std::thread([promise, mine = std::move(work)]() mutable {
    try {
      mine();
      promise->set_value();
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
    promise.reset();
    mine = nullptr;
    --apart;
  }).detach();
  do {
    poll();
  } while (future.wait_for(kPollPeriod) != std::future_status::ready);
  future.get();
}

int n_apart() { return apart; }

Compiled compile(std::shared_ptr<Device> device, const Source& source, const std::string& folder,
                 const Poll& poll) {
  Compiled compiled;
  const DeviceInfo& info = device->info();
  compiled.slices = slices_of(info);
  compiled.matrix_units = info.matrix_units;
  const Header header = header_of(info, source);
  const auto path = path_of(folder, header);
  if (const auto bytes = folder.empty() ? std::nullopt : read(path, header)) {
    try {
      compiled.program = device->load(*bytes, source.options);
      compiled.from_cache = true;
    } catch (const DeviceError&) {
      // Compiled anew below.
    }
  }
  if (!compiled.program) {
    const Built built = build(device, source, !folder.empty(), poll);
    compiled.program = built.program;
    if (!folder.empty()) compiled.refusal = write(path, header, built.binary);
  }
  compiled.device = std::move(device);
  return compiled;
}

Compiled compile(std::shared_ptr<Device> device, std::span<const DType> formats,
                 const std::string& folder, const Poll& poll) {
  const Source source = program_source(device->info(), formats);
  return compile(std::move(device), source, folder, poll);
}

}  // namespace pyflow::device
