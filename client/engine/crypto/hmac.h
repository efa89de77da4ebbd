// HMAC-SHA256 (RFC 2104), HKDF (RFC 5869), and helpers that keep keys secret.
#pragma once

#include <string_view>

#include "crypto/sha256.h"

namespace ors {

Digest hmac_sha256(std::string_view key, std::string_view data);

Digest hkdf_extract(std::string_view salt, std::string_view key);
// Returns the first 32 bytes of the output, which is all that the handshake needs.
Digest hkdf_expand(std::string_view extracted, std::string_view info);

// Compares two texts in a time that depends only on their sizes.
bool equal_in_constant_time(std::string_view one, std::string_view other);

inline std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

// The key of a job; may be empty. The memory is zeroed on destruction and on move. Never log it.
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
