// The two ends of one established connection: requests, pieces, sockets.
//
// Law: a comm allocates no memory after its construction, except for the text of a failure. Bytes
// are not copied between the caller's memory and the kernel.
#pragma once

#include <sys/uio.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "abi.h"
#include "device.h"
#include "net.h"
#include "net_wire.h"

namespace ors::nccl {

// Owns a socket of this process. In a forked child fork.h has closed the socket, and the number may
// belong to another file, so the child does not close it again.
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

class Comm;

// One message. Message n of a comm is in requests_[n % kNetRequests].
struct Request {
  Comm* comm = nullptr;
  uint8_t* data = nullptr;
  size_t size = 0;         // bytes of the caller's memory
  size_t total = 0;        // bytes of the message, once known
  size_t promised = 0;     // payload bytes of the headers sent or received
  size_t moved = 0;        // payload bytes sent or received
  bool announced = false;  // a header has been received
  bool done = false;
  bool used = false;  // until net_test has set *done
};

class Comm {
 public:
  Comm(std::string peer, std::vector<FileDescriptor> sockets);
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  Result start(void* data, size_t size, void** request);
  Result test(Request* request, int* done, size_t* size);

 protected:
  enum class Turn { kMore, kBlocked, kFailed };

  // Sends or receives once on one socket, and subtracts the bytes from the budget.
  virtual Turn turn(size_t index, size_t* budget) = 0;
  virtual Result move() = 0;

  // Gives turns to all sockets until all block or the budget is used up.
  Result take_turns();
  Result fail(Result code, const std::string& what);
  void complete(Request* request);
  Request& request(uint64_t message) { return requests_[message % kNetRequests]; }

  std::vector<FileDescriptor> fds_;
  uint64_t posted_ = 0;  // number of messages so far
  uint64_t oldest_ = 0;  // the first message that is not done

 private:
  Result progress();

  const std::string peer_;
  size_t first_ = 0;  // the socket that had the first turn
  Result result_ = kSuccess;
  std::array<Request, kNetRequests> requests_;
};

class SendComm final : public Comm {
 public:
  SendComm(std::vector<FileDescriptor> sockets, std::string peer, size_t piece);

 private:
  struct Socket {
    Piece piece;
    std::array<uint8_t, kPieceBytes> header{};
    size_t written = 0;  // bytes of header and payload; 0: this socket has no piece
  };

  Turn turn(size_t index, size_t* budget) override;
  Result move() override;
  Result check_peer();
  bool offer(Socket* socket);
  int prepare(Socket* socket, size_t budget, iovec* parts);
  void sent(Socket* socket, size_t size);

  const size_t piece_;
  std::vector<Socket> sockets_;
  size_t looked_at_ = 0;
  uint64_t next_ = 0;  // the message of the next piece
};

class ReceiveComm final : public Comm {
 public:
  ReceiveComm(std::vector<FileDescriptor> sockets, std::string peer);

 private:
  // kParked: the header names a message without a request, so the payload is not read yet.
  enum class Step { kHeader, kParked, kPayload, kEnded };
  struct Socket {
    Step step = Step::kHeader;
    std::array<uint8_t, kPieceBytes> header{};
    size_t header_got = 0;
    Piece piece;
    size_t got = 0;  // received bytes of the piece's payload
  };

  Turn turn(size_t index, size_t* budget) override;
  Result move() override;
  int prepare(Socket* socket, size_t budget, iovec* parts);
  Turn end(Socket* socket);
  bool received(Socket* socket, size_t size);
  bool begin_piece(Socket* socket);
  bool place(Socket* socket);
  void end_piece(Socket* socket);

  std::vector<Socket> sockets_;
};

// Null, with a warning in the log, if there is no device of this number.
const Device* find_device(int index);

}  // namespace ors::nccl
