// The receiving end: the bytes of each socket go to the place that the piece's header names.
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "net_comm.h"

namespace ors::nccl {
namespace {

// How many messages a sender may be ahead of the last request: more than the kernel buffers of 64
// sockets can hold, even if each message is only a header.
constexpr uint64_t kMostAhead = uint64_t{1} << 28;

std::string shown(const Piece& piece) {
  return std::to_string(piece.length) + " bytes at " + std::to_string(piece.offset) +
         " of message " + std::to_string(piece.message) + " of " + std::to_string(piece.total);
}

}  // namespace

ReceiveComm::ReceiveComm(std::vector<FileDescriptor> sockets, std::string peer, size_t threads)
    : Comm(std::move(peer), std::move(sockets), threads), sockets_(fds_.size()) {}

// The sender decides which socket carries a message, so the threads read even for small receives.
bool ReceiveComm::needs_helpers(const Request&) const { return true; }

// The sockets that wait for this message may read on.
void ReceiveComm::posted(Request*) {
  for (size_t i = 0; i < sockets_.size() && parked_ > 0; ++i) {
    Socket* socket = &sockets_[i];
    if (socket->step != Step::kParked || socket->piece.message >= posted_) continue;
    --parked_;
    if (!place(socket)) return;
    if (is_helped(i)) helpers_->wake_owner(i);
  }
}

// A sender that closes may have sent whole messages before, so the end of a socket is no failure as
// long as the oldest message can still be completed. A parked socket cannot complete it: a socket
// carries pieces in the order of messages.
void ReceiveComm::move() {
  take_turns();
  if (!sockets_[0].stands()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto stands = [](const Socket& socket) { return socket.stands(); };
  if (failed() || oldest_ == posted_ || !std::all_of(sockets_.begin(), sockets_.end(), stands)) {
    return;
  }
  fail(kRemoteError, "the sender is gone, and only " + std::to_string(request(oldest_).moved) +
                         " bytes of message " + std::to_string(oldest_) + " have arrived");
}

short ReceiveComm::wanted(size_t socket) { return sockets_[socket].stands() ? 0 : POLLIN; }

void ReceiveComm::serve(size_t socket, short) {
  size_t budget = kMaxNetBytes;
  turn(socket, &budget);
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
  if (socket->stands()) return Turn::kBlocked;
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(prepare(socket, *budget, parts));
  const size_t asked = bytes_of(parts, static_cast<int>(message.msg_iovlen));
  const ssize_t n = ::recvmsg(fds_[index].get(), &message, MSG_DONTWAIT);
  if (n < 0 && would_block()) return Turn::kBlocked;
  const int error = errno;
  const std::lock_guard<std::mutex> lock(mutex);
  if (failed()) return Turn::kFailed;
  if (n < 0) fail(kRemoteError, error_text(error));
  if (n <= 0) return n < 0 ? Turn::kFailed : end(socket);
  const auto size = static_cast<size_t>(n);
  charge(size, budget);
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
  if (message < posted_) return place(socket);
  socket->step = Step::kParked;
  ++parked_;
  return true;
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
