#include "net_comm.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/fork.h"
#include "log.h"

namespace ors::nccl {
namespace {

// Maximum bytes that one call moves. A core copies them in well under a millisecond; NCCL's thread
// has other connections to serve.
constexpr size_t kBudget = 1 << 20;

// How many messages a sender may be ahead of the last request: more than the kernel buffers of 16
// sockets can hold, even if each message is only a header.
constexpr uint64_t kMostAhead = uint64_t{1} << 26;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

size_t bytes_of(const iovec* parts, int count) {
  size_t size = 0;
  for (int i = 0; i < count; ++i) size += parts[i].iov_len;
  return size;
}

std::string shown(const Piece& piece) {
  return std::to_string(piece.length) + " bytes at " + std::to_string(piece.offset) +
         " of message " + std::to_string(piece.message) + " of " + std::to_string(piece.total);
}

}  // namespace

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

// --- both ends ---

Comm::Comm(std::string peer, std::vector<FileDescriptor> sockets)
    : fds_(std::move(sockets)), peer_(std::move(peer)) {}

Result Comm::start(void* data, size_t size, void** request) {
  *request = nullptr;
  if (result_ != kSuccess) return result_;
  Request& next = this->request(posted_);
  if (next.used) return kSuccess;
  next = Request();
  next.comm = this;
  next.data = static_cast<uint8_t*>(data);
  next.size = size;
  next.used = true;
  ++posted_;
  const Result result = progress();
  if (result != kSuccess && !next.done) return result;
  *request = &next;
  return kSuccess;
}

Result Comm::test(Request* request, int* done, size_t* size) {
  *done = 0;
  const Result result = request->done ? kSuccess : progress();
  if (!request->done) return result;
  if (size != nullptr) *size = request->total;
  request->used = false;
  *done = 1;
  return kSuccess;
}

Result Comm::progress() {
  if (result_ != kSuccess || oldest_ == posted_) return result_;
  return move();
}

Result Comm::take_turns() {
  size_t budget = kBudget;
  std::bitset<kMaxNetSockets> blocked;
  const size_t sockets = fds_.size();
  first_ = (first_ + 1) % sockets;
  for (size_t i = first_; blocked.count() < sockets && budget > 0; i = (i + 1) % sockets) {
    if (blocked[i]) continue;
    const Turn result = turn(i, &budget);
    if (result == Turn::kFailed) return result_;
    blocked[i] = result == Turn::kBlocked;
  }
  return kSuccess;
}

Result Comm::fail(Result code, const std::string& what) {
  result_ = code;
  for (FileDescriptor& fd : fds_) fd.reset();
  log_warning("net: the connection with " + peer_ + " failed: " + what);
  return code;
}

void Comm::complete(Request* request) {
  request->done = true;
  while (oldest_ < posted_ && this->request(oldest_).done) ++oldest_;
}

// --- sending ---

SendComm::SendComm(std::vector<FileDescriptor> sockets, std::string peer, size_t piece)
    : Comm(std::move(peer), std::move(sockets)), piece_(piece), sockets_(fds_.size()) {}

Result SendComm::move() {
  const Result result = check_peer();
  return result != kSuccess ? result : take_turns();
}

// Detects that the receiver has closed the connection: the first send on a socket that the peer has
// closed still succeeds. One socket per call is enough, since a peer closes all sockets together.
Result SendComm::check_peer() {
  looked_at_ = (looked_at_ + 1) % fds_.size();
  uint8_t byte;
  const ssize_t n = ::recv(fds_[looked_at_].get(), &byte, sizeof byte, MSG_DONTWAIT);
  if (n == 0)
    return fail(kRemoteError, "the receiver has closed the connection: see that rank's log");
  if (n > 0) return fail(kRemoteError, "the receiver sent bytes, expected none");
  return would_block() ? kSuccess : fail(kRemoteError, error_text(errno));
}

// Prepares the next piece on a socket that has none. The piece is assigned only when the socket
// accepts a byte of it; until then another socket may take the piece.
bool SendComm::offer(Socket* socket) {
  if (next_ == posted_) return false;
  const Request& message = request(next_);
  socket->piece.message = next_;
  socket->piece.total = message.size;
  socket->piece.offset = message.promised;
  socket->piece.length = static_cast<uint32_t>(std::min(piece_, message.size - message.promised));
  pack_piece(socket->piece, socket->header.data());
  return true;
}

int SendComm::prepare(Socket* socket, size_t budget, iovec* parts) {
  int count = 0;
  size_t at = 0;
  if (socket->written < kPieceBytes) {
    parts[count++] = {socket->header.data() + socket->written, kPieceBytes - socket->written};
  } else {
    at = socket->written - kPieceBytes;
  }
  const size_t left = std::min(socket->piece.length - at, budget);
  if (left > 0) {
    parts[count++] = {request(socket->piece.message).data + socket->piece.offset + at, left};
  }
  return count;
}

Comm::Turn SendComm::turn(size_t index, size_t* budget) {
  Socket* socket = &sockets_[index];
  if (socket->written == 0 && !offer(socket)) return Turn::kBlocked;
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(prepare(socket, *budget, parts));
  const size_t asked = bytes_of(parts, static_cast<int>(message.msg_iovlen));
  const ssize_t n = ::sendmsg(fds_[index].get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n < 0 && would_block()) return Turn::kBlocked;
  if (n < 0) {
    fail(kRemoteError, error_text(errno));
    return Turn::kFailed;
  }
  const auto size = static_cast<size_t>(n);
  *budget -= std::min(size, *budget);
  sent(socket, size);
  return size < asked ? Turn::kBlocked : Turn::kMore;
}

void SendComm::sent(Socket* socket, size_t size) {
  Request& message = request(socket->piece.message);
  if (socket->written == 0) {
    message.promised += socket->piece.length;
    if (message.promised == message.size) ++next_;
  }
  socket->written += size;
  if (socket->written < kPieceBytes + socket->piece.length) return;
  socket->written = 0;
  message.moved += socket->piece.length;
  if (message.moved < message.size) return;
  message.total = message.size;
  complete(&message);
}

// --- receiving ---

ReceiveComm::ReceiveComm(std::vector<FileDescriptor> sockets, std::string peer)
    : Comm(std::move(peer), std::move(sockets)), sockets_(fds_.size()) {}

// A sender that closes may have sent whole messages before, so the end of a socket is no failure as
// long as the oldest message can still be completed. A parked socket cannot complete it: a socket
// carries pieces in the order of messages.
Result ReceiveComm::move() {
  if (const Result result = take_turns(); result != kSuccess) return result;
  if (oldest_ == posted_) return kSuccess;
  for (const Socket& socket : sockets_) {
    const bool parked = socket.step == Step::kParked && socket.piece.message >= posted_;
    if (!parked && socket.step != Step::kEnded) return kSuccess;
  }
  return fail(kRemoteError, "the sender is gone, and only " +
                                std::to_string(request(oldest_).moved) + " bytes of message " +
                                std::to_string(oldest_) + " have arrived");
}

// Buffers for the rest of a payload and, if the budget allows, for the header of the next piece.
int ReceiveComm::prepare(Socket* socket, size_t budget, iovec* parts) {
  int count = 0;
  if (socket->step == Step::kPayload) {
    const size_t left = socket->piece.length - socket->got;
    uint8_t* data = request(socket->piece.message).data + socket->piece.offset + socket->got;
    parts[count++] = {data, std::min(left, budget)};
    if (left > budget) return count;
  }
  parts[count++] = {socket->header.data() + socket->header_got, kPieceBytes - socket->header_got};
  return count;
}

Comm::Turn ReceiveComm::turn(size_t index, size_t* budget) {
  Socket* socket = &sockets_[index];
  if (socket->step == Step::kEnded) return Turn::kBlocked;
  if (socket->step == Step::kParked) {
    if (socket->piece.message >= posted_) return Turn::kBlocked;
    return place(socket) ? Turn::kMore : Turn::kFailed;
  }
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(prepare(socket, *budget, parts));
  const size_t asked = bytes_of(parts, static_cast<int>(message.msg_iovlen));
  const ssize_t n = ::recvmsg(fds_[index].get(), &message, MSG_DONTWAIT);
  if (n < 0 && would_block()) return Turn::kBlocked;
  if (n < 0) fail(kRemoteError, error_text(errno));
  if (n <= 0) return n < 0 ? Turn::kFailed : end(socket);
  const auto size = static_cast<size_t>(n);
  *budget -= std::min(size, *budget);
  if (!received(socket, size)) return Turn::kFailed;
  return size < asked ? Turn::kBlocked : Turn::kMore;
}

Comm::Turn ReceiveComm::end(Socket* socket) {
  if (socket->step == Step::kPayload) {
    fail(kRemoteError, "the sender is gone after " + std::to_string(socket->got) +
                           " bytes of a piece: " + shown(socket->piece));
    return Turn::kFailed;
  }
  if (socket->header_got > 0) {
    fail(kRemoteError, "the sender is gone in the middle of a header");
    return Turn::kFailed;
  }
  socket->step = Step::kEnded;
  return Turn::kBlocked;
}

bool ReceiveComm::received(Socket* socket, size_t size) {
  if (socket->step == Step::kPayload) {
    const size_t part = std::min(size, socket->piece.length - socket->got);
    socket->got += part;
    request(socket->piece.message).moved += part;
    size -= part;
    if (socket->got == socket->piece.length) end_piece(socket);
  }
  socket->header_got += size;
  return socket->header_got < kPieceBytes || begin_piece(socket);
}

bool ReceiveComm::begin_piece(Socket* socket) {
  const uint64_t before = socket->piece.message;
  std::string wrong = unpack_piece(socket->header.data(), &socket->piece);
  const uint64_t message = socket->piece.message;
  if (wrong.empty() && (message < before || message < oldest_)) {
    wrong = "the sender sent a piece of an earlier message than expected: " + shown(socket->piece);
  }
  if (wrong.empty() && message >= posted_ && message - posted_ > kMostAhead) {
    wrong = "the sender is " + std::to_string(message - posted_) +
            " messages ahead of the receives, expected at most " + std::to_string(kMostAhead) +
            ": " + shown(socket->piece);
  }
  if (!wrong.empty()) {
    fail(kRemoteError, wrong);
    return false;
  }
  socket->header_got = 0;
  socket->step = Step::kParked;
  return message >= posted_ || place(socket);
}

bool ReceiveComm::place(Socket* socket) {
  const Piece& piece = socket->piece;
  Request& message = request(piece.message);
  if (piece.total > message.size) {
    fail(kInternalError, "message " + std::to_string(piece.message) + " has " +
                             std::to_string(piece.total) + " bytes, its receive has only " +
                             std::to_string(message.size));
    return false;
  }
  if (message.done || (message.announced && message.total != piece.total) ||
      piece.length > piece.total - message.promised) {
    fail(kRemoteError, "the sender's pieces do not fit together: " + shown(piece) + ", after " +
                           std::to_string(message.promised) + " bytes of " +
                           std::to_string(message.total));
    return false;
  }
  message.announced = true;
  message.total = piece.total;
  message.promised += piece.length;
  socket->got = 0;
  socket->step = Step::kPayload;
  if (piece.length == 0) end_piece(socket);
  return true;
}

void ReceiveComm::end_piece(Socket* socket) {
  socket->step = Step::kHeader;
  Request& message = request(socket->piece.message);
  if (message.moved == message.total) complete(&message);
}

}  // namespace ors::nccl
