#include "pool.h"

#include <cstdlib>
#include <new>

namespace ors {
namespace {

constexpr size_t kSmallest = 256;
constexpr size_t kAlignment = 64;

void destroy(Buffer* buffer) {
  std::free(buffer->data);
  delete buffer;
}

Buffer* create(int size_class) {
  const size_t capacity = kSmallest << size_class;
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, capacity));
  if (data == nullptr) throw std::bad_alloc();
  return new Buffer{data, capacity, size_class};
}

}  // namespace

Pool::~Pool() { trim(); }

BufferRef Pool::take(size_t size) {
  int size_class = 0;
  while (size_class + 1 < kClasses && (kSmallest << size_class) < size) ++size_class;
  Buffer* buffer = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_bytes_ += kSmallest << size_class;
    auto& idle = idle_[static_cast<size_t>(size_class)];
    if (!idle.empty()) {
      buffer = idle.back();
      idle.pop_back();
      idle_bytes_ -= buffer->capacity;
    }
  }
  if (buffer == nullptr) buffer = create(size_class);
  return BufferRef(buffer, [pool = shared_from_this()](Buffer* b) { pool->put_back(b); });
}

void Pool::put_back(Buffer* buffer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= buffer->capacity;
  idle_bytes_ += buffer->capacity;
  idle_[static_cast<size_t>(buffer->size_class)].push_back(buffer);
}

void Pool::trim() {
  std::array<std::vector<Buffer*>, kClasses> idle;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle.swap(idle_);
    idle_bytes_ = 0;
  }
  for (auto& buffers : idle) {
    for (Buffer* buffer : buffers) destroy(buffer);
  }
}

size_t Pool::used_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return used_bytes_;
}

size_t Pool::idle_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return idle_bytes_;
}

}  // namespace ors
