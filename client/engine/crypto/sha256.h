// SHA-256 (RFC 6234), so that mode psk needs no library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ors {

constexpr size_t kDigestSize = 32;
using Digest = std::array<uint8_t, kDigestSize>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();  // zeroes the state, which may hold a key
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(const void* data, size_t size);
  Digest finish();  // call once

 private:
  static constexpr size_t kBlock = 64;
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, kBlock> block_{};
  uint64_t size_ = 0;
};

}  // namespace ors
