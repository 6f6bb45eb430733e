// Reads JSON (RFC 8259) from front to back, as the caller expects it: no tree is built, so nothing
// can grow but what the caller keeps. Strict: UTF-8, each key of an object once, at most 32 levels.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/cursor.h"

namespace pyflow {

class JsonReader {
 public:
  // `in` says what errors name; the whole of its bytes is the text.
  explicit JsonReader(Cursor& in) : in_(in) {}

  // Calls member(key) for each; member reads the value. `field` is what errors call the object.
  template <class Member>
  void object(std::string_view field, Member&& member) {
    std::vector<Key> keys;
    open('{', "an object", field);
    for (bool first = true; next('}', first, field); first = false) {
      const uint64_t at = in_.pos();
      keys.push_back({string("key"), at});
      expect(':', "':' after a key", field);
      member(keys.back().name);
    }
    close();
    refuse_duplicates(keys);
  }
  template <class Item>
  void array(std::string_view field, Item&& item) {
    open('[', "an array", field);
    for (bool first = true; next(']', first, field); first = false) item();
    close();
  }
  std::string string(std::string_view field);
  // A number without sign, point or exponent, below 2^63.
  int64_t integer(std::string_view field);
  // Any value.
  void skip(std::string_view field);
  // Nothing but white space may follow.
  void end(std::string_view field);
  // The offset of the next value.
  uint64_t at();

 private:
  struct Key {
    std::string name;
    uint64_t at;
  };
  void space();
  // '\0' at the end of the text.
  char peek();
  void open(char bracket, std::string_view expected, std::string_view field);
  void close() { --depth_; }
  // Whether another item follows; reads the comma before it, or the closing bracket.
  bool next(char bracket, bool first, std::string_view field);
  void expect(char c, std::string_view expected, std::string_view field);
  void escape(std::string& out, std::string_view field);
  uint32_t hex4(std::string_view field);
  void literal(std::string_view word, std::string_view field);
  void number(std::string_view field);
  void refuse_duplicates(const std::vector<Key>& keys);
  [[noreturn]] void fail(std::string_view field, std::string_view expected);

  Cursor& in_;
  int depth_ = 0;
};

}  // namespace pyflow
