#include "net_socket.h"

#include <utility>

#include "io/fork.h"

namespace ors::nccl {

FileDescriptor::FileDescriptor(int fd) : fd_(fd), generation_(fork_generation()) {}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  reset();
  fd_ = std::exchange(other.fd_, -1);
  generation_ = other.generation_;
  return *this;
}

void FileDescriptor::reset() {
  if (open() && generation_ == fork_generation()) close_guarded(fd_);
  fd_ = -1;
}

}  // namespace ors::nccl
