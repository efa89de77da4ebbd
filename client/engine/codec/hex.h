// Bytes as hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

namespace ors {

inline std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) text += {kDigits[byte >> 4 & 15], kDigits[byte & 15]};
  return text;
}

}  // namespace ors
