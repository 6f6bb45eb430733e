#include "files/ctranslate2/ctranslate2.h"

#include <array>
#include <map>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/divisors.h"
#include "files/twins.h"

namespace pyflow {
namespace {

constexpr uint32_t kFirstVersion = 4, kLastVersion = 6;
constexpr uint64_t kLeastVariable = 2 + 1 + 1 + 1 + 4, kLeastAlias = 2 * (2 + 1);
constexpr uint8_t kMaxRank = 8;  // real variables have up to 4
constexpr std::string_view kSpec = "Spec";
constexpr std::string_view kScale = "_scale";
constexpr std::array<std::string_view, 6> kTypes = {"F32", "I8", "I16", "I32", "F16", "BF16"};

// A name as the file has it, without the zero at its end.
std::string read_text(Cursor& in, std::string_view field) {
  const uint64_t at = in.pos();
  const auto length = in.read<uint16_t>(field);
  const std::string_view bytes = in.take(length, field);
  if (bytes.size() < 2 || bytes.find('\0') != bytes.size() - 1 || !is_utf8(bytes))
    in.fail(at, field, "UTF-8 with one zero, at its end", quoted(bytes), kAdviseConvert);
  return std::string(bytes.substr(0, bytes.size() - 1));
}

uint32_t read_count(Cursor& in, uint64_t least, std::string_view field) {
  const uint64_t at = in.pos();
  const auto count = in.read<uint32_t>(field);
  if (count > in.remaining() / least)
    in.fail(at, field, "at most " + grouped(in.remaining() / least) + " (what the file can hold)",
            grouped(count), kAdviseDownload);
  return count;
}

// A variable with its place in the file.
TensorRow read_variable(Cursor& in) {
  TensorRow t;
  t.name = read_text(in, "name");
  in.name(t.name);
  const uint64_t rank_at = in.pos();
  const auto rank = in.read<uint8_t>("rank");
  if (rank > kMaxRank) in.fail(rank_at, "rank", "at most 8", grouped(rank), kAdviseConvert);
  for (uint8_t d = 0; d < rank; ++d) t.shape.push_back(in.read<uint32_t>("dims"));
  const uint64_t type_at = in.pos();
  const auto type = in.read<uint8_t>("type");
  if (type >= kTypes.size())
    in.fail(type_at, "type", "a number from 0 to 5", grouped(type), kAdviseConvert);
  t.set_type(*tensor_type(kTypes[type]));
  const uint64_t nbytes_at = in.pos();
  t.nbytes = t.span = in.read<uint32_t>("bytes");
  uint64_t n = 0;
  if (!count_elements(t.shape, n) || n > UINT32_MAX || n * t.block_bytes != t.nbytes)
    in.fail(nbytes_at, "bytes", "those of its dims and type " + t.type_name, grouped(t.nbytes),
            kAdviseConvert);
  t.offset = in.pos();
  in.skip(t.nbytes, "data");
  return t;
}

// Gives int8 matrices their divisors, which then are no tensors of their own.
void take_divisors(const Cursor& in, const uint8_t* file, std::vector<TensorRow>& all) {
  std::map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < all.size(); ++i) numbers.emplace(all[i].name, i);
  std::vector<bool> taken(all.size());
  for (TensorRow& t : all) {
    if (t.type_name != "I8" || t.shape.size() != 2) continue;
    const auto found = numbers.find(t.name + std::string(kScale));
    if (found == numbers.end()) continue;
    const TensorRow& s = all[found->second];
    const uint64_t n = s.nbytes / sizeof(float);
    if (s.type_name != "F32" || (n != 1 && n != static_cast<uint64_t>(t.shape[0])))
      in.fail(s.offset, quoted(s.name), "F32, 1 or " + grouped(static_cast<uint64_t>(t.shape[0])),
              s.type_name + ", " + grouped(n), kAdviseConvert);
    set_divisors(in, file, t, s.offset, static_cast<uint32_t>(n));
    taken[found->second] = true;
  }
  size_t i = 0;
  std::erase_if(all, [&](const TensorRow&) { return taken[i++]; });
}

MetadataScalar setting(const Cursor& in, const TensorRow& t, const uint8_t* file) {
  const uint8_t* data = file + t.offset;
  if (t.type_name == "I8") return int64_t{load<int8_t>(data)};
  if (t.type_name == "I16") return int64_t{load<int16_t>(data)};
  if (t.type_name == "I32") return int64_t{load<int32_t>(data)};
  if (t.type_name != "F32")
    in.fail(t.offset, quoted(t.name), "a setting in F32 or an integer", t.type_name,
            kAdviseConvert);
  return double{load<float>(data)};
}

}  // namespace

bool CTranslate2File::matches(std::string_view head) {
  if (head.size() < 12) return false;
  const auto* p = reinterpret_cast<const uint8_t*>(head.data());
  const size_t length = load<uint16_t>(p + 4);  // of a name such as TransformerSpec
  if (load<uint32_t>(p) > 255 || length <= kSpec.size() || length + 6 > head.size()) return false;
  const std::string_view spec = head.substr(6, length - 1);
  return head[5 + length] == '\0' && spec.ends_with(kSpec) && spec.find('\0') == spec.npos;
}

CTranslate2File::CTranslate2File(std::shared_ptr<const MappedFile> file)
    : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::shared_ptr<CTranslate2File> CTranslate2File::open(const std::string& path) {
  std::shared_ptr<CTranslate2File> f(new CTranslate2File(std::make_shared<const MappedFile>(path)));
  const MappedFile& file = *f->files()[0];
  Cursor in(file);
  in.enter("header", 0, 0);
  const auto version = in.read<uint32_t>("version");
  if (version < kFirstVersion || version > kLastVersion)
    throw UnsupportedError(in.describe(0, "version", "4 to 6", grouped(version),
                                       "convert the model again with CTranslate2 3 or 4"));
  f->metadata_.push_back({"spec", MetadataScalar(read_text(in, "spec"))});
  f->metadata_.push_back({"revision", MetadataScalar(int64_t{in.read<uint32_t>("revision")})});
  const uint32_t count = read_count(in, kLeastVariable, "number of variables");
  std::vector<TensorRow> all;
  for (uint32_t i = 0; i < count; ++i) {
    in.enter("variable", i, count);
    all.push_back(read_variable(in));
  }
  in.enter("aliases", 0, 0);
  std::vector<std::pair<std::string, std::string>> aliases;
  const uint32_t n_aliases = read_count(in, kLeastAlias, "number of aliases");
  for (uint32_t i = 0; i < n_aliases; ++i) {
    in.enter("alias", i, n_aliases);
    std::string name = read_text(in, "name");
    aliases.emplace_back(std::move(name), read_text(in, "variable"));
  }
  in.enter("end", 0, 0);
  if (in.remaining())
    in.fail(in.pos(), "end", "the end of the file", grouped(in.remaining()) + " bytes more",
            kAdviseConvert);
  const auto key = [&](uint32_t i) -> std::string_view {
    return i < count ? all[i].name : aliases[i - count].first;
  };
  each_twins(count + n_aliases, key, [&](uint32_t, uint32_t b) {
    in.fail(b < count ? all[b].offset : in.pos(), "name", "each name once",
            quoted(key(b)) + " again", kAdviseConvert);
  });
  take_divisors(in, file.data(), all);
  std::vector<TensorRow> table;
  for (TensorRow& t : all)
    if (t.shape.empty())
      f->metadata_.push_back({t.name, setting(in, t, file.data())});
    else
      table.push_back(std::move(t));
  f->set_table(std::move(table));
  for (auto& [name, variable] : aliases) {
    if (!f->row_named(variable))
      in.fail(in.pos(), "alias " + quoted(name), "the name of a variable", quoted(variable),
              kAdviseConvert);
    f->metadata_.push_back({"alias/" + name, MetadataScalar(std::move(variable))});
  }
  return f;
}

}  // namespace pyflow
