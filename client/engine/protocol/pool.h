// Staging memory: reused, because the page faults of fresh memory cost more than the copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace ors {

class Pool;

struct Buffer {
  uint8_t* data = nullptr;
  size_t capacity = 0;
  int size_class = 0;
  Buffer* next = nullptr;  // of the idle ones
};

// Shared by the round that keeps the bytes and the send that is reading them.
using BufferRef = std::shared_ptr<Buffer>;

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  ~Pool();

  // At least `size` bytes (at most kMaxChunkBytes), aligned to 64. Throws std::bad_alloc.
  BufferRef take(size_t size);

  void trim();                // gives all unused memory back
  size_t used_bytes() const;  // taken and not returned
  size_t idle_bytes() const;

 private:
  static constexpr int kClasses = 15;  // 256 B, 512 B, ... 4 MiB

  Buffer* take_idle(int size_class);
  void put_back(Buffer* buffer) noexcept;

  mutable std::mutex mutex_;
  std::array<Buffer*, kClasses> idle_{};  // the last one that was put back, and from it the others
  size_t used_bytes_ = 0;
  size_t idle_bytes_ = 0;
};

}  // namespace ors
