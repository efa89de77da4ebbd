#include "crypto/hmac.h"

#include <string.h>

#include <cstring>
#include <string>

namespace ors {
namespace {

constexpr size_t kBlock = 64;

}  // namespace

Digest hmac_sha256(std::string_view key, std::string_view data) {
  uint8_t pad[kBlock] = {};
  if (key.size() > kBlock) {
    Sha256 hash;
    hash.update(key.data(), key.size());
    const Digest digest = hash.finish();
    std::memcpy(pad, digest.data(), digest.size());
  } else if (!key.empty()) {
    std::memcpy(pad, key.data(), key.size());
  }
  for (uint8_t& byte : pad) byte ^= 0x36;
  Sha256 inner;
  inner.update(pad, sizeof pad);
  inner.update(data.data(), data.size());
  const Digest digest = inner.finish();
  for (uint8_t& byte : pad) byte ^= 0x36 ^ 0x5C;
  Sha256 outer;
  outer.update(pad, sizeof pad);
  outer.update(digest.data(), digest.size());
  ::explicit_bzero(pad, sizeof pad);
  return outer.finish();
}

Digest hkdf_extract(std::string_view salt, std::string_view key) { return hmac_sha256(salt, key); }

Digest hkdf_expand(std::string_view extracted, std::string_view info) {
  return hmac_sha256(extracted, std::string(info) + '\x01');
}

bool equal_in_constant_time(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  volatile uint8_t difference = 0;  // keeps the compiler from leaving the loop early
  for (size_t i = 0; i < one.size(); ++i) {
    difference = difference | static_cast<uint8_t>(one[i] ^ other[i]);
  }
  return difference == 0;
}

Secret::Secret(Digest&& key) : key_(key), set_(true) { ::explicit_bzero(key.data(), key.size()); }

Secret::Secret(Secret&& other) noexcept : key_(other.key_), set_(other.set_) { other.clear(); }

Secret& Secret::operator=(Secret&& other) noexcept {
  if (this != &other) {
    key_ = other.key_;
    set_ = other.set_;
    other.clear();
  }
  return *this;
}

void Secret::clear() {
  ::explicit_bzero(key_.data(), key_.size());
  set_ = false;
}

}  // namespace ors
