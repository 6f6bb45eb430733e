#include "files/npz/npz.h"

#include <array>
#include <optional>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "files/cursor.h"
#include "files/marian/marian.h"
#include "files/torch/zip.h"

namespace pyflow {
namespace {

constexpr std::string_view kEnd = ".npy", kMagic = "\x93NUMPY";
constexpr uint64_t kLocalBytes = 30;  // of a member's header, before its name
constexpr uint64_t kMaxText = 1 << 16, kMaxRank = 8;

// What numpy calls the types that this build knows, without the order of bytes.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kTypes = {{
    {"f4", "F32"},
    {"f2", "F16"},
    {"f8", "F64"},
    {"i1", "I8"},
    {"u1", "U8"},
    {"S1", "U8"},
    {"i2", "I16"},
    {"i4", "I32"},
    {"i8", "I64"},
    {"u2", "U16"},
    {"b1", "BOOL"},
}};

// The dict at the start of an array.
class Header {
 public:
  explicit Header(Cursor& in, std::string_view text) : in_(in), rest_(text), begin_(in.pos()) {
    begin_ -= text.size();
    size_ = text.size();
  }

  void read(TensorRow& t) {
    expect('{');
    bool has_type = false, has_shape = false, has_order = false;
    while (!take('}')) {
      const std::string_view key = quoted_text();
      expect(':');
      if (key == "descr" && !has_type) {
        has_type = true;
        read_type(t);
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        by_columns_ = read_flag();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        read_shape(t);
      } else {
        fail("descr, fortran_order and shape, each once", quoted(key));
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() || !has_type || !has_shape || !has_order)
      fail("descr, fortran_order and shape, and no more", "something else");
    if (by_columns_ && t.shape.size() > 1)
      throw UnsupportedError(in_.describe(at(), "fortran_order", "False", "True",
                                          "save the array again by numpy.ascontiguousarray"));
  }

 private:
  uint64_t at() const { return begin_ + size_ - rest_.size(); }
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const {
    in_.fail(at(), "header", expected, found, kAdviseConvert);
  }
  void skip_space() {
    const size_t n = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(n == rest_.npos ? rest_.size() : n);
  }
  bool take(char c) {
    skip_space();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("'") + c + "'", quoted(rest_.substr(0, 20)));
  }
  std::string_view quoted_text() {
    expect('\'');
    const size_t n = rest_.find('\'');
    if (n == rest_.npos) fail("a text in quotes", quoted(rest_.substr(0, 20)));
    const std::string_view text = rest_.substr(0, n);
    rest_.remove_prefix(n + 1);
    return text;
  }
  bool read_flag() {
    skip_space();
    for (const std::string_view word : {"True", "False"})
      if (rest_.starts_with(word)) {
        rest_.remove_prefix(word.size());
        return word == "True";
      }
    fail("True or False", quoted(rest_.substr(0, 20)));
  }
  void read_type(TensorRow& t) {
    skip_space();
    const uint64_t where = at();
    const std::string_view text = rest_.starts_with('\'') ? quoted_text() : "a list of fields";
    for (const auto& [theirs, ours] : kTypes)
      if (text.size() == 3 && (text[0] == '<' || text[0] == '|') && text.substr(1) == theirs)
        return t.set_type(*tensor_type(ours));
    const bool is_object = text.ends_with('O');
    throw UnsupportedError(
        in_.describe(where, "descr", "little-endian numbers such as '<f4'",
                     quoted(text) + (is_object ? ", Python objects, which are never read" : ""),
                     "save the array again as float32"));
  }
  void read_shape(TensorRow& t) {
    expect('(');
    while (!take(')')) {
      if (t.shape.size() == kMaxRank) fail("at most 8 dimensions", "more");
      int64_t dim = 0;
      skip_space();
      size_t n = 0;
      for (; n < rest_.size() && rest_[n] >= '0' && rest_[n] <= '9' && n < 18; ++n)
        dim = 10 * dim + (rest_[n] - '0');
      if (n == 0 || n == 18) fail("a dimension", quoted(rest_.substr(0, 20)));
      rest_.remove_prefix(n);
      t.shape.push_back(dim);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
  }

  Cursor& in_;
  std::string_view rest_;
  uint64_t begin_, size_ = 0;
  bool by_columns_ = false;
};

std::string_view read_text(Cursor& in) {
  if (in.take(kMagic.size(), "magic") != kMagic)
    in.fail(0, "magic", "\\x93NUMPY", "other bytes", kAdviseConvert);
  const auto version = in.read<uint8_t>("version");
  in.skip(1, "version");
  if (version < 1 || version > 3)
    throw UnsupportedError(in.describe(kMagic.size(), "version", "1 to 3", grouped(version),
                                       "save the array again by numpy"));
  const uint64_t at = in.pos();
  const uint64_t n = version == 1 ? in.read<uint16_t>("length") : in.read<uint32_t>("length");
  if (n > kMaxText) in.fail(at, "length", "at most 65,536", grouped(n), kAdviseConvert);
  return in.take(n, "header");
}

TensorRow read_array(const MappedFile& file, const ZipMember& member) {
  Cursor in(
      Bytes{file.label(), file.data() + member.offset, member.nbytes, member.offset, "member"});
  in.enter("array", 0, 0);
  in.name(member.name);
  if (member.deflated)
    throw UnsupportedError(in.describe(0, "member", "stored bytes", "deflated ones",
                                       "save the model again with numpy.savez"));
  TensorRow t;
  t.name = member.name.substr(0, member.name.size() - kEnd.size());
  Header(in, read_text(in)).read(t);
  uint64_t n = 0;
  if (!count_elements(t.shape, n) || n > in.remaining() || n * t.block_bytes != in.remaining())
    in.fail(in.pos(), "values", "those of its shape and type " + t.type_name,
            grouped(in.remaining()) + " bytes", kAdviseConvert);
  t.nbytes = t.span = in.remaining();
  t.offset = in.in_file(in.pos());
  return t;
}

}  // namespace

bool NpzFile::matches(std::string_view head) {
  if (!head.starts_with("PK\3\4") || head.size() < kLocalBytes) return false;
  const size_t n = load<uint16_t>(reinterpret_cast<const uint8_t*>(head.data()) + 26);
  return head.substr(kLocalBytes, n).size() == n && head.substr(kLocalBytes, n).ends_with(kEnd);
}

NpzFile::NpzFile(std::shared_ptr<const MappedFile> file) : Checkpoint(file->label()) {
  add_file(std::move(file));
}

std::shared_ptr<NpzFile> NpzFile::open(const std::string& path) {
  std::shared_ptr<NpzFile> f(new NpzFile(std::make_shared<const MappedFile>(path)));
  const MappedFile& file = *f->files()[0];
  std::vector<TensorRow> table;
  for (const ZipMember& member : read_zip(file)) {
    if (!member.name.ends_with(kEnd))
      throw FormatError(file.label() + ": zip member " + quoted(member.name) + " at byte " +
                        grouped(member.offset) +
                        ": expected an array (.npy), found another file; " +
                        std::string(kAdviseConvert));
    TensorRow t = read_array(file, member);
    if (t.name == MarianFile::kConfig && t.block_bytes == 1) {
      const auto* text = reinterpret_cast<const char*>(file.data() + t.offset);
      f->metadata_.push_back({t.name, MetadataScalar(std::string(text, t.nbytes))});
    } else {
      table.push_back(std::move(t));
    }
  }
  f->set_table(std::move(table));
  return f;
}

}  // namespace pyflow
