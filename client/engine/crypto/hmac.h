// HMAC-SHA256 (RFC 2104), HKDF (RFC 5869), and what is needed to handle keys with care.
#pragma once

#include <string>
#include <string_view>

#include "crypto/sha256.h"

namespace ors {

Digest hmac_sha256(std::string_view key, std::string_view data);

Digest hkdf_extract(std::string_view salt, std::string_view key);
// The first 32 bytes of the output; no more are ever needed.
Digest hkdf_expand(std::string_view extracted, std::string_view info);

// Whether two texts are equal, in a time that depends on their sizes alone.
bool equal_in_constant_time(std::string_view one, std::string_view other);

inline std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The key of a job, or none. Zeroed when it ends or is moved from; never shown, never logged.
class Secret {
 public:
  Secret() = default;
  explicit Secret(Digest&& key);  // zeroes the argument
  ~Secret() { clear(); }
  Secret(const Secret& other) = default;
  Secret& operator=(const Secret& other) = default;
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;

  explicit operator bool() const { return set_; }
  std::string_view bytes() const { return view(key_); }
  void clear();

 private:
  Digest key_{};
  bool set_ = false;
};

}  // namespace ors
