#include "protocol/state.h"

#include <algorithm>

namespace ors {

State::State(Options options) : options_(std::move(options)) {
  for (const std::string& address : options_.addresses) {
    reducers_.emplace_back();
    reducers_.back().address = address;
  }
  want(0, 0);  // the arbiter first: PROTOCOL.md, section 4
}

State::~State() = default;

// The lane broke the protocol, or bytes were changed on the way. Before the join that ends it all;
// after it a new connection is tried.
void State::broken(Lane* lane, Failure failure, double now) {
  if (failure_ || lane->phase == Lane::Phase::kDropped || lane->phase == Lane::Phase::kClosed)
    return;
  if (joined_) return strike(lane, failure, now);
  Header header;
  header.kind = kError;
  lane->control.clear();
  queue_frame(lane, header, encode_error(failure));
  lane->phase = Lane::Phase::kClosed;  // it is told in its own words
  fail(failure);
}

void State::fail(const Failure& cause) {
  if (failure_) return;
  failure_ = cause;
  for (Lane* lane : all_lanes_) {
    if (lane->receiving != nullptr) lane->receiver.discard();
    lane->receiving.reset();
    lane->has_grant = false;
    lane->granted = {};
    lane->queue.clear();
    lane->undescribed.clear();
    lane->changed.clear();
    lane->stats_waiting = false;
    kick(lane);
  }
  if (cause.reason != "closed") tell_failure();
  std::vector<RoundRef> rounds;
  for (const auto& [id, record] : keys_) {
    for (const auto& [number, round] : record->rounds) rounds.push_back(round);
  }
  for (const RoundRef& round : rounds) {
    round->over = true;
    Failure own = cause;
    own.key = round->operation->key();
    own.round = static_cast<int64_t>(round->number);
    finish(round.get(), own);
    for (Chunk& chunk : round->chunks) chunk.staging.reset();
  }
  live_rounds_ = 0;
  idle_keys_.clear();
  recent_.clear();
  keys_.clear();
}

bool State::idle_for(double seconds, double now) const {
  return live_rounds_ == 0 && now - last_used_ >= seconds;
}

std::map<std::string, uint64_t> State::counters() const {
  uint64_t queued = 0;
  uint64_t unanswered = 0;
  for (const Lane* lane : all_lanes_) {
    queued += lane->queue.size();
    unanswered += lane->credit.used + lane->grant.used;
  }
  return {{"staging_bytes", pool->used_bytes()},
          {"pool_idle_bytes", pool->idle_bytes()},
          {"open_rounds", open_rounds_},
          {"live_rounds", live_rounds_},
          {"keys", keys_.size()},
          {"remembered_keys", forgotten_.size()},
          {"queued", queued},
          {"unanswered", unanswered},
          {"unanswered_max", unanswered_max_},
          {"frames_dropped", frames_dropped_},
          {"resent", resent_},
          {"reconnects", reconnects_},
          {"route", route_.number},
          {"suspicions", suspicions_},
          {"nonfinite_rounds", nonfinite_},
          {"connections", all_lanes_.size()}};
}

}  // namespace ors
