// Pool of memory for copies of chunks. Buffers are reused, because page faults of fresh memory cost
// more than the copy.
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
  Buffer* next = nullptr;  // in the list of idle buffers
};

// Shared by the chunk that keeps the bytes and the frame that carries them.
using BufferRef = std::shared_ptr<Buffer>;

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  ~Pool();

  // Returns a buffer of at least `size` bytes (at most kMaxChunkBytes), aligned to 64 bytes. Throws
  // std::bad_alloc.
  BufferRef take(size_t size);

  void trim();                // frees all idle buffers
  size_t used_bytes() const;  // capacity of the buffers in use
  size_t idle_bytes() const;

 private:
  static constexpr int kClasses = 15;  // 256 B, 512 B, ... 4 MiB

  Buffer* take_idle(int size_class);
  void put_back(Buffer* buffer) noexcept;

  mutable std::mutex mutex_;
  std::array<Buffer*, kClasses> idle_{};  // by size class: the head of a list, last returned first
  size_t used_bytes_ = 0;
  size_t idle_bytes_ = 0;
};

}  // namespace ors
