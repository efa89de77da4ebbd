#include "protocol/pool.h"

#include <cstdlib>
#include <new>
#include <utility>

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
  auto buffer = std::make_unique<Buffer>();
  buffer->data = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, capacity));
  if (buffer->data == nullptr) throw std::bad_alloc();
  buffer->capacity = capacity;
  buffer->size_class = size_class;
  return buffer.release();
}

}  // namespace

Pool::~Pool() { trim(); }

BufferRef Pool::take(size_t size) {
  int size_class = 0;
  while (size_class + 1 < kClasses && (kSmallest << size_class) < size) ++size_class;
  Buffer* buffer = take_idle(size_class);
  if (buffer == nullptr) {
    buffer = create(size_class);
    const std::lock_guard<std::mutex> lock(mutex_);
    used_bytes_ += buffer->capacity;
  }
  return BufferRef(buffer, [pool = shared_from_this()](Buffer* b) { pool->put_back(b); });
}

Buffer* Pool::take_idle(int size_class) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Buffer*& first = idle_[static_cast<size_t>(size_class)];
  Buffer* buffer = first;
  if (buffer == nullptr) return nullptr;
  first = buffer->next;
  idle_bytes_ -= buffer->capacity;
  used_bytes_ += buffer->capacity;
  return buffer;
}

void Pool::put_back(Buffer* buffer) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  used_bytes_ -= buffer->capacity;
  idle_bytes_ += buffer->capacity;
  Buffer*& first = idle_[static_cast<size_t>(buffer->size_class)];
  buffer->next = std::exchange(first, buffer);
}

void Pool::trim() {
  std::array<Buffer*, kClasses> idle{};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle.swap(idle_);
    idle_bytes_ = 0;
  }
  for (Buffer* first : idle) {
    while (first != nullptr) destroy(std::exchange(first, first->next));
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
