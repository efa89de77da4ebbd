// Moves the bytes of open connections: from State to the sockets and back.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <utility>

#include "io/connection.h"
#include "io/fork.h"

namespace ors {
namespace {

constexpr size_t kReadTurn = 2 << 20;  // bytes read from one connection per turn
// Bytes written to one connection per turn. Turns are short so that all lanes get the first chunks
// of a round early: writing a whole window to one lane delays the results of all lanes after it.
constexpr size_t kWriteTurn = OutgoingBatch::kMaxBytes;

}  // namespace

// Passes the frames of one lane to State, a batch under Shared::mutex.
struct Loop::Sink final : FrameSink {
  Sink(Loop* to, Lane* from, double at) : loop(to), lane(from), now(at) {}

  std::optional<Failure> take(IncomingBatch* frames) override {
    const Change change(&loop->shared_, loop);
    auto failure = loop->state_.receive(lane, frames, now);
    for (const Incoming& frame : *frames) {
      const uint8_t kind = frame.header.kind;
      if (kind == kWelcome || kind == kRoute || kind == kStats || kind == kError || kind == kAbsent)
        loop->shared_.changed.notify_all();
    }
    return failure;
  }

  Loop* loop;
  Lane* lane;
  double now;
};

void Loop::watch(Connection* c, bool write) {
  if (c->watches_write == write) return;
  c->watches_write = write;
  epoll_event wish{};
  wish.events = EPOLLIN | EPOLLRDHUP | EPOLLET | (write ? EPOLLOUT : 0u);
  wish.data.ptr = c;
  (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, c->fd, &wish);
}

void Loop::pump_kicked(double now) {
  due_.clear();
  {
    const auto lock = shared_.lock();
    if (!has_work()) return;
    const size_t n = connections_.size();
    for (size_t i = 0; i < n; ++i) {  // each rank starts at a different connection
      Connection* c = connections_[(i + state_.options().rank) % n].get();
      if (c->step != Connection::Step::kOpen) continue;
      // A connection with a full socket buffer is pumped on its next EPOLLOUT. That pump may end
      // its turn before the buffer is full again: then no further EPOLLOUT comes.
      if (c->unsent || (c->lane->kicked && !c->watches_write)) due_.push_back(c);
    }
    state_.forget_kicked(number_);
  }
  unsent_ = false;
  for (Connection* c : due_) pump(c, now);
}

// Takes the next frames from State. Copies a chunk first if it has to be copied.
void Loop::fill(Connection* c, double now) {
  std::optional<ChunkToCopy> next;
  ChunkCopy copy;
  batch_.clear();  // not empty if memory ran out
  for (;;) {
    {
      const Change change(&shared_, this);
      if (next) state_.copied(*next, std::exchange(copy, {}));
      next = state_.fill(c->lane, now, &batch_);
    }
    if (!next) break;
    const Round& round = *next->round;
    try {
      copy = copy_chunk(round, next->chunk, state_.options().rank, round.source, round.target,
                        nullptr, state_.pool.get());
    } catch (...) {
      const Change change(&shared_, this);
      state_.not_copied(*next);
      throw;
    }
  }
  c->sender.add(&batch_);
}

// Returns the text of the last I/O error: of TLS for a TLS error, of errno otherwise.
std::string Loop::io_error_text(const Connection& c) {
  const int error = errno;
  return c.tls && error == EPROTO ? "TLS: " + c.tls->failure().message : error_text(error);
}

void Loop::pump(Connection* c, double now) {
  Sender& sender = c->sender;
  c->unsent = false;
  for (size_t moved = 0; c->fd >= 0 && !c->half_closed;) {
    if (sender.empty()) fill(c, now);
    if (c->drained()) return watch(c, false);
    if (moved >= kWriteTurn) {
      c->unsent = unsent_ = true;
      return;
    }
    struct iovec parts[Sender::kMaxPieces];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(sender.prepare(parts, Sender::kMaxPieces));
    const ssize_t size = c->tls ? c->tls->send(c->fd, parts, static_cast<int>(message.msg_iovlen))
                                : ::sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return watch(c, true);
      const std::string why = io_error_text(*c);
      c->hung_up = true;
      read(c, now);  // an ERROR frame may give the reason
      if (c->step == Connection::Step::kOpen) disconnect(c, why, now);
      return;
    }
    moved += static_cast<size_t>(size);
    shared_.bytes_sent.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    sender.sent(static_cast<size_t>(size));
  }
}

// Continues connections whose read() ended its turn early: epoll reports no new edge for old bytes.
void Loop::continue_reads(double now) {
  if (!std::exchange(unread_, false)) return;
  for (const auto& c : connections_) {
    if (c->unread && c->step == Connection::Step::kOpen) read(c.get(), now);
  }
}

void Loop::read(Connection* c, double now) {
  c->unread = false;
  Sink sink(this, c->lane, now);
  for (size_t moved = 0; moved < kReadTurn;) {
    struct iovec parts[2];
    const int n = c->receiver.prepare(parts);
    const size_t room = parts[0].iov_len + (n > 1 ? parts[1].iov_len : 0);
    const ssize_t size = c->tls ? c->tls->receive(c->fd, parts, n) : ::readv(c->fd, parts, n);
    if (size < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return disconnect(c, io_error_text(*c), now);
    }
    if (size == 0) return disconnect(c, "closed by the reducer", now);
    moved += static_cast<size_t>(size);
    shared_.bytes_received.fetch_add(static_cast<uint64_t>(size), std::memory_order_relaxed);
    c->last_heard = now;
    if (auto failure = c->receiver.received(static_cast<size_t>(size), &sink)) {
      const Change change(&shared_, this);
      state_.broken(c->lane, *failure, now);
      shared_.changed.notify_all();
      return;
    }
    if (c->tls && c->tls->ended()) c->hung_up = true;  // these bytes may end with close_notify
    if (static_cast<size_t>(size) < room && !c->hung_up) return;
  }
  c->unread = unread_ = true;
}

void Loop::disconnect(Connection* c, const std::string& why, double now) {
  close_socket(c);
  shared_.connections.fetch_sub(1, std::memory_order_relaxed);
  if (c->local) shared_.local_connections.fetch_sub(1, std::memory_order_relaxed);
  c->step = Connection::Step::kDone;
  c->receiver = Receiver(c->lane->name);
  c->sender = Sender();
  const Change change(&shared_, this);
  state_.closed(c->lane, why, now);
  shared_.changed.notify_all();
}

void Loop::close_socket(Connection* c) {
  c->unread = false;
  c->hung_up = false;
  c->handshake.reset();  // it holds the key
  c->tls.reset();
  close_guarded(std::exchange(c->fd, -1));
  c->watches_write = false;
}

}  // namespace ors
