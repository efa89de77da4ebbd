// The two ends of one established connection: requests, pieces, sockets.
//
// Law: after its first request a comm allocates no memory, except for the text of a failure. Bytes
// are not copied between the caller's memory and the kernel.
//
// With helper threads, the caller of net_test moves only the first socket, and the threads move the
// others. A sender puts messages of at most kCallersBytes on the first socket. A receiver reads
// whatever comes on a socket, so the two ends may have different numbers of threads.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "device.h"
#include "net.h"
#include "net_helpers.h"
#include "net_socket.h"
#include "net_wire.h"

namespace ors::nccl {

// The largest message that the caller of net_test moves itself if there are helper threads. To wake
// a thread takes as long as to copy this many bytes.
constexpr size_t kCallersBytes = 64 << 10;

class Comm;

// One message. Message n of a comm is in requests_[n % kNetRequests]. The comm's mutex guards all
// that changes after begin(), except `used`; `total` is constant once `done` is set.
struct Request {
  void begin(Comm* owner, void* memory, size_t bytes);

  Comm* comm = nullptr;
  uint8_t* data = nullptr;
  size_t size = 0;         // bytes of the caller's memory
  size_t total = 0;        // bytes of the message, once known
  size_t promised = 0;     // payload bytes of the headers sent or received
  size_t moved = 0;        // payload bytes sent or received
  bool announced = false;  // a header has been received
  bool helped = false;     // needs the threads
  bool used = false;       // until net_test has set *done; only the caller uses this
  std::atomic<bool> done{false};
};

class Comm : public HelpedSockets {
 public:
  // `threads`: helper threads, fewer than the sockets.
  Comm(std::string peer, std::vector<FileDescriptor> sockets, size_t threads);

  Result start(void* data, size_t size, void** request);
  Result test(Request* request, int* done, size_t* size);

  int descriptor(size_t socket) const override { return fds_[socket].get(); }
  void broken(const char* why) override;

 protected:
  enum class Turn { kMore, kBlocked, kFailed };

  // Sends or receives once on one socket, and subtracts the bytes from the budget.
  virtual Turn turn(size_t index, size_t* budget) = 0;
  // Moves the caller's sockets.
  virtual void move() = 0;
  // Whether this request needs the threads.
  virtual bool needs_helpers(const Request& request) const = 0;
  // A request has been posted. The mutex is held.
  virtual void posted(Request* request) = 0;

  // Gives turns to the caller's sockets until all block or the budget is used up.
  void take_turns();
  bool failed() const { return result_.load(std::memory_order_acquire) != kSuccess; }
  bool is_helped(size_t socket) const { return socket >= callers_; }
  static void charge(size_t size, size_t* budget);
  void end_helpers();  // first of all in the destructor of each end

  // The mutex is held during these.
  void fail(Result code, const std::string& what);
  void complete(Request* request);
  Request& request(uint64_t message) { return requests_[message % kNetRequests]; }

  const std::vector<FileDescriptor> fds_;
  const size_t threads_;
  const size_t callers_;  // sockets that the caller moves: the first ones
  std::unique_ptr<Helpers> helpers_;
  uint64_t posted_ = 0;  // number of messages so far
  uint64_t oldest_ = 0;  // the first message that is not done

 private:
  void begin_helpers();
  Result progress();
  Result failure();

  const std::string peer_;
  const int generation_;
  size_t first_ = 0;  // the socket that had the first turn
  std::atomic<Result> result_{kSuccess};
  std::string trouble_;  // what failed; guarded by the mutex
  bool told_ = false;
  std::array<Request, kNetRequests> requests_;
};

class SendComm final : public Comm {
 public:
  SendComm(std::vector<FileDescriptor> sockets, std::string peer, size_t piece, size_t threads);
  ~SendComm() override { end_helpers(); }

  short wanted(size_t socket) override;
  void serve(size_t socket, short events) override;

 private:
  struct Socket {
    Piece piece;
    std::array<uint8_t, kPieceBytes> header{};
    bool loaded = false;  // has a piece
    size_t written = 0;   // bytes of the piece's header and payload
  };
  // The messages of the caller, or those of the threads.
  struct Queue {
    uint64_t next = 0;               // the message of the next piece
    const Socket* newest = nullptr;  // the socket with the last piece that was offered
  };

  Turn turn(size_t index, size_t* budget) override;
  void move() override;
  bool needs_helpers(const Request& request) const override;
  void posted(Request* request) override;
  bool peer_is_there(size_t index);
  bool advance(bool helped);
  bool offer(size_t index);
  void take_back(size_t index);
  int prepare(Socket* socket, size_t budget, iovec* parts);
  void sent(Socket* socket, size_t size);

  const size_t piece_;
  std::vector<Socket> sockets_;
  std::array<Queue, 2> queues_;  // of the caller, of the threads
  size_t callers_messages_ = 0;  // in flight; only the caller uses this
  size_t looked_at_ = 0;
};

class ReceiveComm final : public Comm {
 public:
  ReceiveComm(std::vector<FileDescriptor> sockets, std::string peer, size_t threads);
  ~ReceiveComm() override { end_helpers(); }

  short wanted(size_t socket) override;
  void serve(size_t socket, short events) override;

 private:
  // kParked: the header names a message without a request, so the payload is not read yet.
  enum class Step { kHeader, kParked, kPayload, kEnded };
  struct Socket {
    Step step = Step::kHeader;
    std::array<uint8_t, kPieceBytes> header{};
    size_t header_got = 0;
    Piece piece;
    size_t got = 0;  // received bytes of the piece's payload

    bool stands() const { return step == Step::kParked || step == Step::kEnded; }
  };

  Turn turn(size_t index, size_t* budget) override;
  void move() override;
  bool needs_helpers(const Request& request) const override;
  void posted(Request* request) override;
  int prepare(Socket* socket, size_t budget, iovec* parts);
  Turn end(Socket* socket);
  bool received(Socket* socket, size_t size);
  bool begin_piece(Socket* socket);
  bool place(Socket* socket);
  void end_piece(Socket* socket);

  std::vector<Socket> sockets_;
  size_t parked_ = 0;  // sockets; guarded by the mutex
};

// Null, with a warning in the log, if there is no device of this number.
const Device* find_device(int index);

}  // namespace ors::nccl
