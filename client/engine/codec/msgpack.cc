#include "codec/msgpack.h"

#include <algorithm>
#include <cstring>

#include "codec/wire.h"

namespace ors {
namespace {

using Type = Value::Type;

// The smallest n so that 2^n bytes hold the number.
unsigned log2_bytes_of(uint64_t n) {
  if (n <= 0xFF) return 0;
  if (n <= 0xFFFF) return 1;
  return n <= 0xFFFFFFFF ? 2 : 3;
}

// Appends a tag and the last 2^log2_bytes bytes of the value. The tags of a type with a value of 1,
// 2, 4 and 8 bytes follow each other from `tag` on.
void put(std::string* out, unsigned tag, unsigned log2_bytes, uint64_t value) {
  out->push_back(static_cast<char>(tag + log2_bytes));
  for (int shift = (8 << log2_bytes) - 8; shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift & 0xFF));
  }
}

void put_natural(uint64_t n, std::string* out) {
  if (n < 0x80) {
    out->push_back(static_cast<char>(n));
  } else {
    put(out, 0xCC, log2_bytes_of(n), n);
  }
}

void put_integer(int64_t n, std::string* out) {
  if (n >= 0) {
    put_natural(static_cast<uint64_t>(n), out);
  } else if (n >= -32) {
    out->push_back(static_cast<char>(n));
  } else {  // one bit more than the magnitude, for the sign
    put(out, 0xD0, log2_bytes_of(~static_cast<uint64_t>(n) << 1), static_cast<uint64_t>(n));
  }
}

// Appends a size. Sizes below `fix_limit` are a part of the tag `fix`; other tags follow each other
// from `tag` on, as in put(), and begin with `least_log2`.
void put_size(size_t n, unsigned fix, size_t fix_limit, unsigned tag, unsigned least_log2,
              std::string* out) {
  if (n < fix_limit) {
    out->push_back(static_cast<char>(fix | n));
  } else {
    put(out, tag, std::max(least_log2, log2_bytes_of(n)), n);
  }
}

void put_text(std::string_view text, std::string* out) {
  put_size(text.size(), 0xA0, 32, 0xD9, 0, out);
  out->append(text);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  const char* value(Value* out, int depth);
  size_t left() const { return bytes_.size(); }

 private:
  // Reads a number of 2^log2_bytes bytes.
  bool take(unsigned log2_bytes, uint64_t* out) {
    const size_t size = size_t{1} << log2_bytes;
    if (bytes_.size() < size) return false;
    *out = 0;
    for (size_t i = 0; i < size; ++i) *out = *out << 8 | static_cast<uint8_t>(bytes_[i]);
    bytes_.remove_prefix(size);
    return true;
  }

  const char* text(Type type, uint64_t size, Value* out);
  const char* items(uint64_t size, Value* out, int depth);
  const char* entries(uint64_t size, Value* out, int depth);
  const char* number(uint8_t tag, Value* out);
  const char* sized(uint8_t tag, Value* out, int depth);

  std::string_view bytes_;
};

constexpr const char* kShort = "msgpack ends early";

const char* Reader::text(Type type, uint64_t size, Value* out) {
  if (size > bytes_.size()) return kShort;
  out->type = type;
  out->text.assign(bytes_.substr(0, size));
  bytes_.remove_prefix(size);
  if (type == Type::kStr && !valid_utf8(out->text)) return "a msgpack string that is not UTF-8";
  return nullptr;
}

const char* Reader::items(uint64_t size, Value* out, int depth) {
  if (size > kMaxControlItems) return "a msgpack list of more than 4096 items";
  if (size > bytes_.size()) return kShort;
  out->type = Type::kList;
  for (uint64_t i = 0; i < size; ++i) {
    Value item;
    if (const char* wrong = value(&item, depth + 1)) return wrong;
    out->list.push_back(std::move(item));
  }
  return nullptr;
}

const char* Reader::entries(uint64_t size, Value* out, int depth) {
  if (size > kMaxControlItems) return "a msgpack map of more than 4096 items";
  if (size > bytes_.size() / 2) return kShort;
  out->type = Type::kMap;
  for (uint64_t i = 0; i < size; ++i) {
    Value name;
    Value item;
    if (const char* wrong = value(&name, depth + 1)) return wrong;
    if (name.type != Type::kStr) return "a msgpack map key that is not a string";
    if (const char* wrong = value(&item, depth + 1)) return wrong;
    out->map.emplace_back(std::move(name.text), std::move(item));
  }
  return nullptr;
}

const char* Reader::number(uint8_t tag, Value* out) {
  uint64_t word = 0;
  if (tag == 0xCA || tag == 0xCB) {
    if (!take(tag == 0xCA ? 2 : 3, &word)) return kShort;
    out->type = Type::kFloat;
    if (tag == 0xCA) {
      float single;
      const auto bits = static_cast<uint32_t>(word);
      std::memcpy(&single, &bits, sizeof single);
      out->real = static_cast<double>(single);
    } else {
      std::memcpy(&out->real, &word, sizeof word);
    }
    return nullptr;
  }
  const unsigned log2_bytes = tag & 3;
  if (!take(log2_bytes, &word)) return kShort;
  if (tag >= 0xD0) {
    const int unused_bits = 64 - (8 << log2_bytes);
    const auto n = static_cast<int64_t>(word << unused_bits) >> unused_bits;
    *out = Value::of_int(n);
  } else {
    *out = Value::of(word);
  }
  return nullptr;
}

const char* Reader::sized(uint8_t tag, Value* out, int depth) {
  uint64_t size = 0;
  if (tag >= 0xC4 && tag <= 0xC6) {
    return take(tag - 0xC4u, &size) ? text(Type::kBin, size, out) : kShort;
  }
  if (tag >= 0xD9 && tag <= 0xDB) {
    return take(tag - 0xD9u, &size) ? text(Type::kStr, size, out) : kShort;
  }
  if (tag == 0xDC || tag == 0xDD) {
    return take(tag - 0xDBu, &size) ? items(size, out, depth) : kShort;
  }
  if (tag == 0xDE || tag == 0xDF) {
    return take(tag - 0xDDu, &size) ? entries(size, out, depth) : kShort;
  }
  return "a msgpack type that control maps do not use";
}

const char* Reader::value(Value* out, int depth) {
  if (depth > kMaxControlDepth) return "msgpack nested deeper than 8 levels";
  uint64_t first = 0;
  if (!take(0, &first)) return kShort;
  const auto tag = static_cast<uint8_t>(first);
  if (tag < 0x80) return *out = Value::of(tag), nullptr;
  if (tag < 0x90) return entries(tag & 0x0F, out, depth);
  if (tag < 0xA0) return items(tag & 0x0F, out, depth);
  if (tag < 0xC0) return text(Type::kStr, tag & 0x1F, out);
  if (tag >= 0xE0) return *out = Value::of_int(static_cast<int8_t>(tag)), nullptr;
  if (tag == 0xC0) return out->type = Type::kNil, nullptr;
  if (tag == 0xC2 || tag == 0xC3) {
    out->type = Type::kBool;
    out->boolean = tag == 0xC3;
    return nullptr;
  }
  if (tag >= 0xCA && tag <= 0xD3) return number(tag, out);
  return sized(tag, out, depth);
}

}  // namespace

Value Value::of(uint64_t natural) {
  Value value;
  value.type = Type::kUint;
  value.natural = natural;
  return value;
}

Value Value::of_bool(bool value) {
  Value out;
  out.type = Type::kBool;
  out.boolean = value;
  return out;
}

Value Value::of_int(int64_t integer) {
  if (integer >= 0) return of(static_cast<uint64_t>(integer));
  Value value;
  value.type = Type::kInt;
  value.integer = integer;
  return value;
}

Value Value::str(std::string_view text) {
  Value value;
  value.type = Type::kStr;
  value.text.assign(text);
  return value;
}

Value Value::bin(std::string_view bytes) {
  Value value = str(bytes);
  value.type = Type::kBin;
  return value;
}

Value Value::of_list(std::vector<Value> items) {
  Value value;
  value.type = Type::kList;
  value.list = std::move(items);
  return value;
}

Value Value::of_map(Map entries) {
  Value value;
  value.type = Type::kMap;
  value.map = std::move(entries);
  return value;
}

const Value* Value::find(std::string_view name) const {
  const Value* found = nullptr;
  for (const auto& [key, value] : map) {
    if (key == name) found = &value;
  }
  return found;
}

std::optional<int64_t> Value::as_int() const {
  if (type == Type::kInt) return integer;
  if (type == Type::kUint && natural <= static_cast<uint64_t>(INT64_MAX)) {
    return static_cast<int64_t>(natural);
  }
  return std::nullopt;
}

std::optional<uint64_t> Value::as_uint() const {
  return type == Type::kUint ? std::optional(natural) : std::nullopt;
}

void msgpack_encode(const Value& value, std::string* out) {
  switch (value.type) {
    case Type::kNil:
      out->push_back(static_cast<char>(0xC0));
      break;
    case Type::kBool:
      out->push_back(static_cast<char>(value.boolean ? 0xC3 : 0xC2));
      break;
    case Type::kInt:
      put_integer(value.integer, out);
      break;
    case Type::kUint:
      put_natural(value.natural, out);
      break;
    case Type::kFloat: {
      uint64_t bits;
      std::memcpy(&bits, &value.real, sizeof bits);
      put(out, 0xC8, 3, bits);
      break;
    }
    case Type::kStr:
      put_text(value.text, out);
      break;
    case Type::kBin:
      put_size(value.text.size(), 0, 0, 0xC4, 0, out);
      out->append(value.text);
      break;
    case Type::kList:
      put_size(value.list.size(), 0x90, 16, 0xDB, 1, out);
      for (const Value& item : value.list) msgpack_encode(item, out);
      break;
    case Type::kMap:
      put_size(value.map.size(), 0x80, 16, 0xDD, 1, out);
      for (const auto& [name, item] : value.map) {
        put_text(name, out);
        msgpack_encode(item, out);
      }
      break;
  }
}

const char* msgpack_decode(std::string_view bytes, Value* value) {
  Reader reader(bytes);
  *value = Value();
  if (const char* wrong = reader.value(value, 1)) return wrong;
  return reader.left() == 0 ? nullptr : "bytes after the msgpack value";
}

bool valid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data());
  const auto* const end = p + text.size();
  while (p < end) {
    const uint8_t lead = *p++;
    if (lead < 0x80) continue;
    int follow = 0;
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
      follow = 1;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      follow = 2;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      follow = 3;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return false;
    }
    for (; follow > 0; --follow, low = 0x80, high = 0xBF) {
      if (p == end || *p < low || *p > high) return false;
      ++p;
    }
  }
  return true;
}

}  // namespace ors
