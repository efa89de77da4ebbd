// The two ends of one connection after it stands: requests, pieces, sockets.
//
// Law: nothing here allocates after a comm is made, but for the words of its failure. Bytes go
// between the caller's memory and the kernel; there is no copy between.
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

// A socket of this process. In a forked child fork.h has closed it, and its number may by then be
// another's: there it is left alone.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
  int generation_ = 0;
};

class Comm;

// One message. Number n of a comm lives in place n modulo kNetRequests.
struct Request {
  Comm* comm = nullptr;
  uint8_t* data = nullptr;
  size_t size = 0;         // of the caller's memory
  size_t total = 0;        // of the message, once it is known
  size_t promised = 0;     // bytes in headers that were sent or have come
  size_t moved = 0;        // bytes of the payloads behind them
  bool announced = false;  // a header has come
  bool done = false;
  bool used = false;  // until net_test has said done
};

class Comm {
 public:
  Comm(std::string peer, size_t sockets);
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  Result start(void* data, size_t size, void** request);
  Result test(Request* request, int* done, size_t* size);

 protected:
  enum class Turn { kMore, kBlocked, kFailed };

  // Moves bytes of one socket, once; takes them from the budget.
  virtual Turn turn(size_t index, size_t* budget) = 0;
  virtual Result move() = 0;
  virtual void hang_up() = 0;

  // Turns for all sockets, until none can go on or the budget is spent.
  Result take_turns();
  Result fail(Result code, const std::string& what);
  void complete(Request* request);
  Request& request(uint64_t message) { return requests_[message % kNetRequests]; }

  uint64_t posted_ = 0;  // messages so far
  uint64_t oldest_ = 0;  // the first that is not done

 private:
  Result progress();

  const std::string peer_;
  const size_t sockets_;
  size_t first_ = 0;  // who has the next first turn
  Result result_ = kSuccess;
  std::array<Request, kNetRequests> requests_;
};

class SendComm final : public Comm {
 public:
  SendComm(std::vector<Descriptor> sockets, std::string peer, size_t piece);

 private:
  struct Socket {
    Descriptor fd;
    Piece piece;
    std::array<uint8_t, kPieceBytes> header{};
    size_t written = 0;  // of header and payload; 0: this socket has no piece
  };

  Turn turn(size_t index, size_t* budget) override;
  Result move() override;
  void hang_up() override;
  Result look_for_the_end();
  bool offer(Socket* socket);
  int prepare(Socket* socket, size_t budget, iovec* parts);
  void sent(Socket* socket, size_t size);

  const size_t piece_;
  std::vector<Socket> sockets_;
  size_t looked_at_ = 0;
  uint64_t giving_ = 0;  // the message that the next piece is of
};

class ReceiveComm final : public Comm {
 public:
  ReceiveComm(std::vector<Descriptor> sockets, std::string peer);

 private:
  // kParked: the header is of a message without a request, and nothing is read behind it.
  enum class Step { kHeader, kParked, kPayload, kEnded };
  struct Socket {
    Descriptor fd;
    Step step = Step::kHeader;
    std::array<uint8_t, kPieceBytes> header{};
    size_t header_got = 0;
    Piece piece;
    size_t got = 0;  // of its payload
  };

  Turn turn(size_t index, size_t* budget) override;
  Result move() override;
  void hang_up() override;
  int prepare(Socket* socket, size_t budget, iovec* parts);
  Turn end(Socket* socket);
  bool received(Socket* socket, size_t size);
  bool begin_piece(Socket* socket);
  bool place(Socket* socket);
  void end_piece(Socket* socket);

  std::vector<Socket> sockets_;
};

// Null, and a warning: there is no device of this number.
const Device* find_device(int index);

}  // namespace ors::nccl
