// A small msgpack codec for the control maps: nil, booleans, integers, floats, strings, bytes,
// lists, and maps with string keys.
//
// Law: decoding never throws and never allocates more than the input can fill; what is wrong with
// the input comes back as a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ors {

struct Value {
  enum class Type : uint8_t { kNil, kBool, kInt, kUint, kFloat, kStr, kBin, kList, kMap };
  using Map = std::vector<std::pair<std::string, Value>>;

  Type type = Type::kNil;
  bool boolean = false;
  int64_t integer = 0;   // kInt: always negative after decoding
  uint64_t natural = 0;  // kUint
  double real = 0;       // kFloat
  std::string text;      // kStr (valid UTF-8) and kBin
  std::vector<Value> list;
  Map map;

  static Value of(uint64_t natural);
  static Value of_int(int64_t integer);
  static Value of_bool(bool value);
  static Value str(std::string_view text);
  static Value bin(std::string_view bytes);
  static Value of_list(std::vector<Value> items = {});
  static Value of_map(Map entries = {});

  const Value* find(std::string_view name) const;  // last of that name, as Python's dict
  std::optional<int64_t> as_int() const;           // integers that fit
  std::optional<uint64_t> as_uint() const;
};

void msgpack_encode(const Value& value, std::string* out);

// Decodes exactly one value that fills `bytes`. Returns nullptr or what is wrong (static text).
const char* msgpack_decode(std::string_view bytes, Value* value);

bool valid_utf8(std::string_view text);

}  // namespace ors
