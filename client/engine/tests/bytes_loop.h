// All loops of an engine without sockets and threads: its caller brings and takes the bytes. For
// the simulator and for tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "io/receiver.h"
#include "io/sender.h"
#include "protocol/state.h"

namespace ors {

class BytesLoop {
 public:
  explicit BytesLoop(Options options) : state(std::move(options)) {}

  // Handles bytes that came from the lane. Does not handle the rest after a failure.
  void incoming(Lane* lane, std::string_view bytes, double now) {
    Sink sink(this, lane, now);
    Receiver& receiver = connection(lane).receiver;
    while (!bytes.empty()) {
      struct iovec parts[2];
      const int n = receiver.prepare(parts);
      size_t size = 0;
      for (int i = 0; i < n && !bytes.empty(); ++i) {
        const size_t part = std::min(parts[i].iov_len, bytes.size());
        std::memcpy(parts[i].iov_base, bytes.data(), part);
        bytes.remove_prefix(part);
        size += part;
      }
      state.heard(lane, now);
      if (const auto failure = receiver.received(size, &sink)) {
        state.broken(lane, *failure, now);
        bytes = {};
      }
      discard_unwanted();
    }
  }

  // Returns the next bytes for the lane, at most `limit`.
  std::string outgoing(Lane* lane, size_t limit, double now) {
    Sender& sender = connection(lane).sender;
    std::string out;
    while (out.size() < limit) {
      if (sender.empty()) fill(lane, &sender, now);
      if (sender.empty()) break;
      struct iovec parts[Sender::kMaxPieces];
      const int n = sender.prepare(parts, Sender::kMaxPieces);
      size_t size = 0;
      for (int i = 0; i < n && out.size() < limit; ++i) {
        const size_t part = std::min(parts[i].iov_len, limit - out.size());
        out.append(static_cast<const char*>(parts[i].iov_base), part);
        size += part;
      }
      sender.sent(size);
    }
    return out;
  }

  void closed(Lane* lane, const std::string& why, double now) {
    connections_.erase(lane);
    state.closed(lane, why, now);
    discard_unwanted();
  }

  // To be called after every change of the state that does not come through this class.
  void discard_unwanted() {
    for (uint32_t loop = 0; loop < state.options().loops; ++loop) {
      for (Lane* lane : state.take_discards(loop)) {
        connection(lane).receiver.discard();
        state.discarded(lane);
      }
    }
  }

  State state;

 private:
  struct Connection {
    Receiver receiver;
    Sender sender;
  };

  struct Sink final : FrameSink {
    Sink(BytesLoop* to, Lane* from, double at) : loop(to), lane(from), now(at) {}
    std::optional<Failure> take(IncomingBatch* frames) override {
      return loop->state.receive(lane, frames, now);
    }
    BytesLoop* loop;
    Lane* lane;
    double now;
  };

  Connection& connection(const Lane* lane) {
    const auto found = connections_.find(lane);
    if (found != connections_.end()) return found->second;
    return connections_.emplace(lane, Connection{Receiver(lane->name), Sender()}).first->second;
  }

  void fill(Lane* lane, Sender* sender, double now) {
    OutgoingBatch batch;
    while (const auto next = state.fill(lane, now, &batch)) {
      const Round& round = *next->round;
      state.copied(*next, copy_chunk(round, next->chunk, state.options().rank, round.source,
                                     round.target, nullptr, state.pool.get()));
    }
    sender->add(&batch);
  }

  std::map<const Lane*, Connection> connections_;
};

}  // namespace ors
