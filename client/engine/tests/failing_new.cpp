#include "failing_new.h"

#include <cstdlib>
#include <new>

namespace {

constexpr long kNever = -1;
constexpr long kFailed = -2;

thread_local long left = kNever;

void* allocate(size_t size) {
  if (left == 0) {
    left = kFailed;
    throw std::bad_alloc();
  }
  if (left > 0) --left;
  void* memory = std::malloc(size > 0 ? size : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void fail_allocation(long n) { left = n; }

bool allocation_failed() {
  const bool failed = left == kFailed;
  left = kNever;
  return failed;
}

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
