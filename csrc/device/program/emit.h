// Device code of a weight format, from the header that the CPU's kernels use (quant/formats/).
//
// `Emit` is a vocabulary like those of kernels/simd/, with the words that work on each lane alone.
// A word of it computes nothing: it appends a statement of C to
// the emission at hand and returns the name of its result. Asked for by Emit,
//
//   d = S::load_f16(p + 16); s[0] = S::mul(d, S::to_f(bytes));
//
// becomes
//
//   const float v0 = load_half(p, 16 + lane);
//   const float v1 = (float)(int)bytes;  const float v2 = v0 * v1;  s[0] = v2;
//
// for one lane; a prelude and kernels/words.dev have what these statements call.
// The bits of a number that the file has as a float stay in integers: registers of floats may quiet
// a NaN.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace pyflow::device {

// The statements of a function, and the tables that they look into.
class Emission {
 public:
  // Offsets of pointers count from here. Tables are named after the prefix.
  Emission(const void* origin, std::string prefix)
      : origin_(static_cast<const uint8_t*>(origin)), prefix_(std::move(prefix)), outer_(current_) {
    current_ = this;
  }
  ~Emission() { current_ = outer_; }
  Emission(const Emission&) = delete;
  Emission& operator=(const Emission&) = delete;

  static Emission& current() { return *current_; }

  int value(const char* type, const std::string& expression) {
    const int id = n_values_++;
    statements_ += "  const " + std::string(type) + " " + name(id) + " = " + expression + ";\n";
    return id;
  }
  void assign(const std::string& to, int id) {
    statements_ += "  " + to + " = " + name(id) + ";\n";
  }
  void line(const std::string& text) { statements_ += text + "\n"; }
  // The index of the number at p, of `size` bytes each, for this lane.
  std::string index(const void* p, int64_t size) const {
    return std::to_string((static_cast<const uint8_t*>(p) - origin_) / size) + " + lane";
  }
  // Sixteen bytes, or sixteen floats, as words, declared once.
  std::string table(const int8_t* bytes) { return table(bytes, 4); }
  std::string table(const float* numbers) { return table(numbers, 16); }
  std::string table(const void* from, int n_words) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    std::string text;
    for (int i = 0; i < n_words; ++i) {
      uint32_t word;
      __builtin_memcpy(&word, bytes + 4 * i, 4);
      text += (i ? ", " : "") + std::to_string(word) + "u";
    }
    const auto [it, is_new] =
        tables_.try_emplace(text, "FORMAT(" + prefix_ + std::to_string(tables_.size()) + ")");
    if (is_new)
      declarations_ +=
          "TABLE uint " + it->second + "[" + std::to_string(n_words) + "] = {" + text + "};\n";
    return it->second;
  }

  static std::string name(int id) { return "v" + std::to_string(id); }
  // All of it as a function of a place in a tile, a lane and `parameters`.
  std::string function(const std::string& head, const std::string& parameters) const {
    return declarations_ + "INLINE " + head + "(GLOBAL const uchar* p, int lane" + parameters +
           ") {\n" + statements_ + "}\n";
  }

 private:
  const uint8_t* const origin_;
  const std::string prefix_;
  Emission* const outer_;
  std::string statements_, declarations_;
  std::map<std::string, std::string> tables_;
  int n_values_ = 0;
  static inline thread_local Emission* current_ = nullptr;
};

// One word a line, which clang-format would spread over five.
// clang-format off

struct Emit {
  struct F { int id; int bits = -1; };  // bits: the same as an integer, if there is one
  struct I { int id; };
  struct B { int id; };

  static F zero() { return f("0.0f"); }
  static F set1(float x) { return f("as_float(" + word(bits_of(x)) + ")"); }
  static F load(const float* p) { return f("as_float(load_word(p, " + at(p) + "))"); }
  static F load_f16(const uint16_t* p) { return f("load_half(p, " + at(p) + ")"); }
  static F load_bf16(const uint16_t* p) {
    const int bits = u("(uint)load_short(p, " + at(p) + ") << 16").id;
    return {f("as_float(" + v(bits) + ")").id, bits};
  }
  static F load_i8f(const int8_t* p) { return f("(float)(int)load_char(p, " + at(p) + ")"); }
  static I load_i32(const int32_t* p) { return u("load_word(p, " + at(p) + ")"); }
  static I load_i8(const int8_t* p) { return u("(uint)(int)load_char(p, " + at(p) + ")"); }
  static I load_u8(const uint8_t* p) { return u("(uint)p[" + at(p) + "]"); }

  static F add(F a, F b) { return f(v(a) + " + " + v(b)); }
  static F sub(F a, F b) { return f(v(a) + " - " + v(b)); }
  static F mul(F a, F b) { return f(v(a) + " * " + v(b)); }
  static F fma(F a, F b, F c) { return f("fma(" + v(a) + ", " + v(b) + ", " + v(c) + ")"); }
  static F fnma(F a, F b, F c) { return f("fma(-" + v(a) + ", " + v(b) + ", " + v(c) + ")"); }
  static F to_f(I a) { return f("(float)(int)" + v(a)); }
  static F bits_f(I a) { return {f("as_float(" + v(a) + ")").id, a.id}; }
  static I bits_i(F a) { return a.bits >= 0 ? I{a.bits} : u("as_uint(" + v(a) + ")"); }

  static F pick16(const float* table, I index) {
    return f("as_float(" + Emission::current().table(table) + "[" + v(index) + " & 15u])");
  }
  // Four k of this lane, in two pairs of bytes.
  static void load_e4m3(const uint8_t* p, F (&w)[4]) {
    for (int i = 0; i < 4; i += 2) {
      const int pair = u("(uint)load_short(p, " + at(p + 16 * i, 2) + ")").id;
      w[i] = f("from_e4m3(" + v(pair) + " & 255u)");
      w[i + 1] = f("from_e4m3(" + v(pair) + " >> 8)");
    }
  }

  static I izero() { return u("0u"); }
  static I iset1(int32_t x) { return u(word(static_cast<uint32_t>(x))); }
  static I iadd(I a, I b) { return u(v(a) + " + " + v(b)); }
  static I isub(I a, I b) { return u(v(a) + " - " + v(b)); }
  static I imul(I a, I b) { return u(v(a) + " * " + v(b)); }
  static I iand(I a, I b) { return u(v(a) + " & " + v(b)); }
  static I ior(I a, I b) { return u(v(a) + " | " + v(b)); }
  template <int N>
  static I shl(I a) { return u(v(a) + " << " + std::to_string(N)); }
  template <int N>
  static I shr(I a) { return u(v(a) + " >> " + std::to_string(N)); }
  template <int N>
  static I sar(I a) { return u("(uint)((int)" + v(a) + " >> " + std::to_string(N) + ")"); }

  // Four bytes of this lane. Shifts are those of pairs of bytes.
  static B bload(const uint8_t* p) { return b("load_word(p, " + at(p, 4) + ")"); }
  static B bset1(uint8_t x) { return b(word(x * 0x01010101u)); }
  static B band(B a, B c) { return b(v(a) + " & " + v(c)); }
  static B bor(B a, B c) { return b(v(a) + " | " + v(c)); }
  static B bmerge(B a, B mask, B c) { return b("(" + v(a) + " & " + v(mask) + ") | " + v(c)); }
  template <int N>
  static B bshr(B a) { return b(v(a) + " >> " + std::to_string(N) + pairs(0xffff >> N)); }
  template <int N>
  static B bshl(B a) { return b(v(a) + " << " + std::to_string(N) + pairs(0xffff & 0xffff << N)); }
  static B bavg(B a, B c) { return b("average_bytes(" + v(a) + ", " + v(c) + ")"); }
  template <int T>
  static B belevenths(B a) { return b("elevenths(" + v(a) + " >> " + std::to_string(8 * T) + ")"); }
  static B lut16(const int8_t* table, B index) {
    return b("look_up(" + Emission::current().table(table) + ", " + v(index) + ")");
  }
  static B s8_prepare(B w) { return w; }

 private:
  static int named(const char* type, const std::string& expression) {
    return Emission::current().value(type, expression);
  }
  static F f(const std::string& expression) { return {named("float", expression)}; }
  static I u(const std::string& expression) { return {named("uint", expression)}; }
  static B b(const std::string& expression) { return {named("uint", expression)}; }
  static std::string v(int id) { return Emission::name(id); }
  template <class Value>
  static std::string v(Value value) { return Emission::name(value.id); }
  template <class T>
  static std::string at(const T* p, int64_t size = sizeof(T)) {
    return Emission::current().index(p, size);
  }
  static std::string pairs(uint32_t mask) { return " & " + word(mask * 0x10001u); }
  static std::string word(uint32_t x) { return std::to_string(x) + "u"; }
  static uint32_t bits_of(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
  }
};
// clang-format on

// The weights of quarter Q of a piece, to w.
template <class Format, int Q>
void emit_quarter(const uint8_t* piece, Emission& weights) {
  weights.line("  if (quarter == " + std::to_string(Q) + ") {");
  Emit::B w[4];
  Format::template weights<Emit, Q>(piece, w);
  for (int i = 0; i < 4; ++i) weights.assign("w[" + std::to_string(i) + "]", w[i].id);
  weights.line("  }");
}

// What products need to know of a format of blocks, and its functions scales() and weights().
template <class Format>
std::string emit_blocks() {
  alignas(64) static const uint8_t unit[Format::kUnitBytes] = {};
  constexpr int kScales = Format::kPieces * 64 / Format::kSubBlock;
  std::string text;
  const auto define = [&](const char* name, int value) {
    text += "#define " + std::string(name) + " " + std::to_string(value) + "\n";
  };
  define("PIECES", Format::kPieces);
  define("SUB_BLOCK", Format::kSubBlock);
  define("UNIT_BYTES", Format::kUnitBytes);
  define("SCALE_BYTES", Format::kScaleBytes);
  define("PIECE_BYTES", Format::kPieceBytes);
  define("SIGNED", Format::kSigned);
  define("MINIMUM", Format::kMinimum);
  // Signed weights without a minimum are themselves (dot_start in kernels/matmul/matmul.inl).
  if constexpr (Format::kSigned && !Format::kMinimum)
    define("OFFSET", 0);
  else
    define("OFFSET", Format::kOffset);

  Emission scales(unit, "scale_table");
  {
    Emit::F s[kScales], m[kScales];
    Format::template scales<Emit>(unit, s, m);
    for (int i = 0; i < kScales; ++i) {
      scales.assign("s[" + std::to_string(i) + "]", s[i].id);
      if constexpr (Format::kMinimum) scales.assign("m[" + std::to_string(i) + "]", m[i].id);
    }
  }
  text += scales.function("void FORMAT(scales)", ", float* s, float* m");

  Emission weights(unit, "weight_table");
  emit_quarter<Format, 0>(unit, weights);
  emit_quarter<Format, 1>(unit, weights);
  emit_quarter<Format, 2>(unit, weights);
  emit_quarter<Format, 3>(unit, weights);
  return text + weights.function("void FORMAT(weights)", ", int quarter, uint* w");
}

// The same of a format of plain numbers, with its function weight().
template <class Format>
std::string emit_plain() {
  alignas(64) static const uint8_t unit[Format::kUnitBytes] = {};
  Emission weight(unit, "table");
  const Emit::F value = Format::template load<Emit>(unit);
  weight.line("  return " + Emission::name(value.id) + ";");
  return "#define UNIT_BYTES " + std::to_string(Format::kUnitBytes) + "\n" +
         weight.function("float FORMAT(weight)", "");
}

// The same of codes of floats with a scale: scale(), and weights() of the STEP k of a line.
template <class Format>
std::string emit_scaled() {
  alignas(64) static const uint8_t unit[Format::kUnitBytes] = {};
  std::string text;
  const auto define = [&](const char* name, int value) {
    text += "#define " + std::string(name) + " " + std::to_string(value) + "\n";
  };
  define("UNIT_BYTES", Format::kUnitBytes);
  define("SCALE_BYTES", Format::kScaleBytes);
  define("BLOCK", Format::kBlock);
  define("STEP", Format::kStep);
  Emission scale(unit, "scale_table");
  const Emit::F value = Format::template scale<Emit>(unit);
  scale.line("  return " + Emission::name(value.id) + ";");
  text += scale.function("float FORMAT(scale)", "");

  Emission weights(unit, "weight_table");
  Emit::F s = {weights.value("float", "d")}, w[Format::kStep];
  Format::template weights<Emit>(unit, s, w);
  for (int i = 0; i < Format::kStep; ++i) weights.assign("w[" + std::to_string(i) + "]", w[i].id);
  return text + weights.function("void FORMAT(weights)", ", float d, float* w");
}

}  // namespace pyflow::device
