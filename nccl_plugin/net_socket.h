// A socket of the point-to-point transport.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>

namespace ors::nccl {

inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

inline size_t bytes_of(const iovec* parts, int count) {
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += parts[i].iov_len;
  return size;
}

// Owns a descriptor of this process. In a forked child fork.h has closed the descriptor, and the
// number may belong to another file, so the child does not close it again.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd);
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
  int generation_ = 0;
};

}  // namespace ors::nccl
