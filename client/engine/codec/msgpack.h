// A small msgpack codec for the control maps: nil, booleans, integers, floats, strings, bytes,
// lists, and maps with string keys.
//
// Law: decoding never throws and never allocates more than the input can fill. Errors are returned
// as texts.
#pragma once

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

  const Value* find(std::string_view name) const;  // the last one wins, as in a Python dict
  std::optional<int64_t> as_int() const;           // nullopt if not an integer or too large
  std::optional<uint64_t> as_uint() const;
};

void msgpack_encode(const Value& value, std::string* out);

// Decodes one value, which must fill `bytes` exactly. Returns nullptr, or an error as a static
// text.
const char* msgpack_decode(std::string_view bytes, Value* value);

bool valid_utf8(std::string_view text);

}  // namespace ors
