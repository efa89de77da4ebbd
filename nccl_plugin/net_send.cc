// The sending end: which piece goes to which socket.
#include <sys/socket.h>

#include <algorithm>
#include <string>
#include <utility>

#include "net_comm.h"

namespace ors::nccl {

SendComm::SendComm(std::vector<FileDescriptor> sockets, std::string peer, size_t piece,
                   size_t threads)
    : Comm(std::move(peer), std::move(sockets), threads), piece_(piece), sockets_(fds_.size()) {}

bool SendComm::needs_helpers(const Request& request) const { return request.size > kCallersBytes; }

void SendComm::posted(Request* request) {
  if (!request->helped) {
    ++callers_messages_;
  } else if (helpers_ != nullptr) {
    helpers_->wake_idle(request->size / piece_ + 1);
  }
}

// If the caller's sockets have nothing to send, the threads notice that the peer is gone.
void SendComm::move() {
  if (callers_messages_ == 0) return;
  looked_at_ = (looked_at_ + 1) % callers_;
  if (peer_is_there(looked_at_)) take_turns();
}

// Detects that the receiver has closed the connection: the first send on a socket that the peer has
// closed still succeeds. One socket per call is enough, since a peer closes all sockets together.
bool SendComm::peer_is_there(size_t index) {
  uint8_t byte;
  const ssize_t n = ::recv(fds_[index].get(), &byte, sizeof byte, MSG_DONTWAIT);
  if (n < 0 && would_block()) return true;
  const int error = errno;
  const std::lock_guard<std::mutex> lock(mutex);
  fail(kRemoteError, n == 0  ? "the receiver has closed the connection: see that rank's log"
                     : n > 0 ? "the receiver sent bytes, expected none"
                             : error_text(error));
  return false;
}

short SendComm::wanted(size_t socket) {
  const bool sends = sockets_[socket].loaded || advance(true);
  return static_cast<short>(POLLIN | (sends ? POLLOUT : 0));
}

// A thread offers a piece only to a socket that accepts bytes, since it could not always take the
// piece back.
void SendComm::serve(size_t socket, short events) {
  if ((events & ~POLLOUT) != 0 && !peer_is_there(socket)) return;
  size_t budget = piece_ + kPieceBytes;
  if ((events & POLLOUT) != 0) turn(socket, &budget);
}

// Moves a queue to its next message with bytes to offer. Returns whether there is one. Messages
// before the oldest have lost their place in requests_.
bool SendComm::advance(bool helped) {
  uint64_t& next = queues_[helped ? 1 : 0].next;
  next = std::max(next, oldest_);
  while (next < posted_ && request(next).helped != helped) ++next;
  return next < posted_;
}

// Gives the next piece to a socket that has none.
bool SendComm::offer(size_t index) {
  const bool helped = is_helped(index);
  if (!advance(helped)) return false;
  Queue& queue = queues_[helped ? 1 : 0];
  Socket* socket = &sockets_[index];
  Request& message = request(queue.next);
  socket->piece.message = queue.next;
  socket->piece.total = message.size;
  socket->piece.offset = message.promised;
  socket->piece.length = static_cast<uint32_t>(std::min(piece_, message.size - message.promised));
  pack_piece(socket->piece, socket->header.data());
  socket->loaded = true;
  socket->written = 0;
  message.promised += socket->piece.length;
  if (message.promised == message.size) ++queue.next;
  queue.newest = socket;
  return true;
}

// The socket has accepted nothing: another one may take the piece. Only the last piece that was
// offered can be taken back, so with one thread it always can.
void SendComm::take_back(size_t index) {
  Queue& queue = queues_[is_helped(index) ? 1 : 0];
  Socket* socket = &sockets_[index];
  if (queue.newest != socket) return;
  queue.newest = nullptr;
  queue.next = socket->piece.message;
  request(queue.next).promised -= socket->piece.length;
  socket->loaded = false;
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
  if (!socket->loaded) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (failed()) return Turn::kFailed;
    if (!offer(index)) return Turn::kBlocked;
  }
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(prepare(socket, *budget, parts));
  const size_t asked = bytes_of(parts, static_cast<int>(message.msg_iovlen));
  const ssize_t n = ::sendmsg(fds_[index].get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  const int error = errno;
  const bool blocks = n < 0 && would_block();
  const std::lock_guard<std::mutex> lock(mutex);
  if (blocks) {
    if (socket->written == 0) take_back(index);
    return Turn::kBlocked;
  }
  if (n < 0) {
    fail(kRemoteError, error_text(error));
    return Turn::kFailed;
  }
  const auto size = static_cast<size_t>(n);
  charge(size, budget);
  sent(socket, size);
  return size < asked ? Turn::kBlocked : Turn::kMore;
}

void SendComm::sent(Socket* socket, size_t size) {
  socket->written += size;
  if (socket->written < kPieceBytes + socket->piece.length) return;
  socket->loaded = false;
  Request& message = request(socket->piece.message);
  message.moved += socket->piece.length;
  if (message.moved < message.size) return;
  message.total = message.size;
  if (!message.helped) --callers_messages_;
  complete(&message);
}

}  // namespace ors::nccl
