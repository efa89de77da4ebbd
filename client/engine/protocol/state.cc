#include "protocol/state.h"

#include <algorithm>

#include "protocol/messages.h"

namespace ors {
namespace {

// Seconds between two ticks that count as a pause of this process (stopped or starved). Ten times
// the tick of the loop.
constexpr double kLateTick = 0.5;

Failure unexpected(const Lane& lane, const Header& header) {
  return lane_failure(
      ErrorCode::kProtocol, lane,
      "sent a frame of kind " + std::to_string(header.kind) + " that it may not send now");
}

}  // namespace

State::State(Options options)
    : run_(std::move(options)), lanes_(run_.options.addresses, run_.options.loops) {
  lanes_.want(0, 0);  // the arbiter first: PROTOCOL.md, section 4
}

// --- connections ---

void State::begin(double now) {
  if (started_at_ >= 0) return;
  started_at_ = now;
  rounds_.used(now);
}

std::vector<Lane*> State::take_wanted(uint32_t loop) {
  return run_.failure ? std::vector<Lane*>() : lanes_.take_wanted(loop);
}

void State::opened(Lane* lane, double now) {
  if (run_.failure) return;
  begin(now);
  joining_.opened(lane, now);
}

void State::unreachable(Lane* lane, const std::string& why, double now) {
  recovery_.unreachable(lane, why, now);
  end_if_over();
}

void State::closed(Lane* lane, const std::string& why, double now) {
  results_.forget_begun(lane);
  recovery_.closed(lane, why, now);
  end_if_over();
}

void State::broken(Lane* lane, const Failure& failure, double now) {
  recovery_.broken(lane, failure, now);
  end_if_over();
}

// --- rounds ---

// Returns why nothing, or nothing like this, can be submitted now.
std::optional<Failure> State::refuse(const Submission& s) const {
  if (run_.failure) return run_.failure;
  if (run_.leaving) return Failure(ErrorCode::kUnavailable, "this group is closed", "closed");
  if (!run_.joined) return Failure(ErrorCode::kUnavailable, "this group has not joined", "closed");
  const auto& lost = current_route_.route().lost;
  if (!lost.empty() && !shrinks(s.descriptor.collective)) {
    return Failure(ErrorCode::kPeerLost,
                   run_.rank_of_job(lost.back().rank) +
                       " is lost: until the next era, only all_reduce and barrier go on without it",
                   "lost", lost.back().rank);
  }
  if (is_bitwise(s.descriptor.op)) return too_old(kBitwiseMinor, "band, bor and bxor need");
  if (is_blocks(s.descriptor.dtype)) return too_old(kBlocksMinor, "a quantised wire_dtype needs");
  return std::nullopt;
}

// Returns a failure if a lane speaks an older minor version than this.
std::optional<Failure> State::too_old(uint32_t minor, const std::string& what) const {
  const std::string major = std::to_string(kProtocolMajor) + ".";
  for (const Lane* lane : lanes_.all()) {
    if (!lane->welcomed() || lane->welcome.minor >= minor) continue;
    std::string text = lane->name + " speaks protocol " + major;
    text += std::to_string(lane->welcome.minor) + "; " + what;
    text += " " + major + std::to_string(minor) + ": upgrade that reducer to this release";
    return Failure(ErrorCode::kVersion, text);
  }
  return std::nullopt;
}

std::optional<Failure> State::submit(const Submission& s, double now, RoundRef* out) {
  auto failure = refuse(s);
  if (!failure) return rounds_.open(s, now, out);
  failure->key = s.key;
  return failure;
}

// --- frames in ---

std::optional<Failure> State::receive(Lane* lane, IncomingBatch* frames, double now) {
  bool begun = false;
  for (size_t i = 0; i < frames->size(); ++i) {
    Incoming& frame = (*frames)[i];
    std::optional<Failure> failure;
    switch (frame.event) {
      case Incoming::Event::kControl:
        failure = dispatch(lane, frame.header, frame.payload, now);
        end_if_over();
        break;
      case Incoming::Event::kResultBegins:
        // All that has begun before has ended, unless memory ran out in between.
        if (!std::exchange(begun, true)) results_.forget_begun(lane);
        failure = results_.begins(lane, frame.header, &frame.target);
        break;
      case Incoming::Event::kResultEnds:
        results_.ends(lane, frame.header, now);
        comparisons_.begin_due(now);
        end_if_over();
        break;
    }
    if (!failure) continue;
    frames->resize(i);
    return failure;
  }
  return std::nullopt;
}

std::optional<Failure> State::dispatch(Lane* lane, const Header& header, const uint8_t* payload,
                                       double now) {
  lane->last_heard = now;
  if (run_.failure || run_.bye_queued || lane->phase == Lane::Phase::kDropped) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(payload), header.length);
  const bool welcomed = lane->welcomed();
  switch (header.kind) {
    case kPending:
      if (!welcomed) return joining_.on_pending(lane, text, now);
      break;
    case kWelcome:
      if (!welcomed) return joining_.on_welcome(lane, text, now);
      break;
    case kError:
      return recovery_.on_error(lane, text, now);
    case kHeartbeat:
      if (welcomed) results_.on_heartbeat(lane, header, payload);
      maybe_say_bye(now);
      return std::nullopt;
    case kGoaway:
      return recovery_.on_goaway(lane, text, now);
    default:
      if (welcomed) return run_control(lane, header, text, now);
      break;
  }
  return unexpected(*lane, header);
}

// Handles the frames that may only come after WELCOME.
std::optional<Failure> State::run_control(Lane* lane, const Header& header, std::string_view text,
                                          double now) {
  switch (header.kind) {
    case kStats:
      return on_stats(lane, text);
    case kStall:
      return on_stall(text, *lane, now);
    case kRefused:
      return results_.on_refused(lane, header, text, now);
    case kGrant:
      return sending_.on_grant(lane, header), std::nullopt;
    case kRoute:
      return run_.joined ? failover_.on_route(lane, text, now) : joining_.on_route(lane, text, now);
    case kSuspect:
      return suspicions_.on_suspect(lane, text, now);
    case kAbsent:
      return lost_ranks_.on_absent(lane, text, now);
    default:
      return unexpected(*lane, header);
  }
}

std::optional<Failure> State::on_stats(Lane* lane, std::string_view payload) {
  Value value;
  const char* wrong = msgpack_decode(payload, &value);
  if (wrong == nullptr && value.type != Value::Type::kMap) wrong = "no map";
  if (wrong != nullptr) return bad_frame(*lane, "STATS", wrong);
  lane->stats = std::move(value);
  lane->stats_waiting = false;
  return std::nullopt;
}

std::optional<Failure> State::on_stall(std::string_view payload, const Lane& lane, double now) {
  std::vector<StalledRound> rounds;
  if (const std::string wrong = decode_stall(payload, &rounds); !wrong.empty())
    return bad_frame(lane, "STALL", wrong);
  reports_.add(rounds, run_.options.world_size, now);
  return std::nullopt;
}

// --- frames out ---

std::optional<ChunkToCopy> State::fill(Lane* lane, double now, OutgoingBatch* batch) {
  auto next = sending_.fill(lane, now, batch);
  if (next) rounds_.use(next->round.get());
  return next;
}

void State::copied(const ChunkToCopy& chunk, ChunkCopy copy) {
  (void)rounds_.ready(chunk.round, chunk.chunk, std::move(copy));
  rounds_.let_go(chunk.round.get());
}

// --- time and end ---

void State::tick(double now) {
  if (run_.failure) return;
  begin(now);
  looked(now);
  if (run_.ticked_at >= 0 && now - run_.ticked_at > kLateTick)
    suspicions_.after_pause(now - run_.ticked_at, now);
  run_.ticked_at = now;
  if (!run_.joined) {
    if (now - started_at_ >= run_.options.connect_timeout) return fail(joining_.not_joined());
    if (const auto failure = joining_.watch(now)) return fail(*failure);
  }
  if (run_.joined && !run_.bye_queued) {
    suspicions_.watch_lanes(now);
    suspicions_.watch_reducers(now);
    lost_ranks_.watch(now);
    lost_reducers_.decide(now);
  }
  for (Lane* lane : lanes_.all()) positions_.keep_alive(lane, now);
  keys_.forget_idle(now);
  comparisons_.begin_due(now);
  maybe_say_bye(now);
  end_if_over();
}

void State::leave(double now) {
  run_.leaving = true;
  for (Lane* lane : lanes_.all()) positions_.maybe_heartbeat(lane, now);
  maybe_say_bye(now);
}

// Queues BYE when all rounds are stable. The rank that makes the routes waits until the others have
// left (or leave_wait has passed). In an elastic run the others may go on, and then make the
// routes.
void State::maybe_say_bye(double now) {
  if (!run_.leaving || run_.bye_queued || run_.over() || rounds_.live_rounds() > 0) return;
  if (stable_at_ < 0) stable_at_ = now;
  const bool waits = !run_.options.elastic && current_route_.made_by(run_.options.rank) &&
                     !lost_ranks_.others_have_left() && now - stable_at_ < run_.options.leave_wait;
  if (waits) return;
  run_.bye_queued = true;
  lanes_.queue_on_welcomed({kBye}, {});
}

void State::end_if_over() {
  if (run_.cause && !run_.failure) fail(*run_.cause);
}

void State::fail(const Failure& cause) {
  if (run_.failure) return;
  run_.failure = cause;
  for (Lane* lane : lanes_.all()) {
    lanes_.discard(lane);
    lane->has_grant = false;
    lane->granted = {};
    lane->queue.clear();
    lane->undescribed.clear();
    lane->changed.clear();
    lane->stats_waiting = false;
    lanes_.kick(lane);
  }
  if (cause.reason != "closed" && cause.reason != "excluded") queue_error(cause);
  rounds_.fail_all(cause);
}

// Sends ERROR to all lanes, which ends the run for all ranks with the same text.
void State::queue_error(const Failure& cause) {
  Failure said = cause;
  said.key.clear();
  said.round = -1;
  if (said.rank < 0) said.rank = run_.options.rank;  // a rank marks an error of the whole run
  const std::string payload = encode_error(said);
  for (Lane* lane : lanes_.all()) {
    if (!lane->welcomed()) continue;
    lane->control.clear();
    lanes_.queue_frame(lane, {kError}, payload);
  }
}

bool State::idle_for(double seconds, double now) const {
  return rounds_.live_rounds() == 0 && now - rounds_.last_used() >= seconds;
}

// --- the view ---

std::string State::view_without(const std::vector<uint32_t>& ranks, uint32_t epoch) const {
  return encode_route(failover_.without(ranks, epoch));
}

std::string State::view() const { return encode_route(current_route_.route()); }

std::optional<Failure> State::install(std::string_view view, double now) {
  if (run_.failure) return run_.failure;
  auto failure = failover_.install(view, now);
  lost_ranks_.watch(now);
  end_if_over();
  return failure;
}

// --- questions ---

void State::ask_stats() {
  for (Lane* lane : lanes_.all()) {
    if (!lane->welcomed() || lane->stats_waiting) continue;
    lane->stats_waiting = true;
    lanes_.queue_frame(lane, {kStats}, {});
  }
}

// Lost lanes are not waited for. They are asked again after they reconnect.
bool State::stats_waiting() const {
  return std::any_of(lanes_.all().begin(), lanes_.all().end(),
                     [](const Lane* lane) { return lane->stats_waiting && lane->welcomed(); });
}

std::map<std::string, uint64_t> State::counters() const {
  uint64_t queued = 0;
  uint64_t unanswered = 0;
  for (const Lane* lane : lanes_.all()) {
    queued += lane->queue.size();
    unanswered += lane->credit.used + lane->grant.used;
  }
  return {{"copy_bytes", pool->used_bytes()},
          {"pool_idle_bytes", pool->idle_bytes()},
          {"open_rounds", rounds_.open_rounds()},
          {"live_rounds", rounds_.live_rounds()},
          {"keys", keys_.all().size()},
          {"remembered_keys", keys_.remembered()},
          {"queued", queued},
          {"unanswered", unanswered},
          {"unanswered_max", sending_.unanswered_max()},
          {"frames_dropped", results_.frames_dropped()},
          {"resent", sending_.resent()},
          {"reconnects", recovery_.reconnects()},
          {"route", current_route_.route().number},
          {"epoch", current_route_.epoch()},
          {"suspicions", suspicions_.count()},
          {"nonfinite_rounds", rounds_.nonfinite()},
          {"connections", lanes_.all().size()}};
}

}  // namespace ors
