// Joining a run: PROTOCOL.md, section 4, and the control frames of a lane.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "protocol/state.h"

namespace ors {
namespace {

using Phase = Lane::Phase;

constexpr size_t kMaxRanksShown = 16;

// Or is it an error of one connection?
bool ends_the_run(const Failure& failure) {
  return failure.rank >= 0 || failure.code == ErrorCode::kPeerLost ||
         failure.code == ErrorCode::kMismatch || failure.code == ErrorCode::kIntegrity;
}

uint32_t in_ms(double value) { return static_cast<uint32_t>(std::lround(value * 1000)); }

// A setting, with the digits that it was given.
std::string as_set(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", value);
  return text;
}

}  // namespace

std::optional<std::string> check_options(const Options& o) {
  if (o.addresses.empty()) return "no reducer address";
  if (o.job.empty() || o.job.size() > kMaxJobBytes) return "a job name has 1 to 128 bytes";
  if (o.run_id.size() > kMaxRunIdBytes) return "a run id has at most 128 bytes";
  if (!valid_utf8(o.job) || !valid_utf8(o.run_id)) return "job and run id must be UTF-8";
  if (o.world_size < 1 || o.world_size > kMaxWorldSize) return "world size must be 1 to 8192";
  if (o.rank >= o.world_size) {
    return "rank " + std::to_string(o.rank) + " is outside world size " +
           std::to_string(o.world_size);
  }
  if (const char* wrong = check_chunk_table(o.chunk_table)) return wrong;
  if (!(o.worker_silence >= 1 && o.worker_silence * 1000 <= kMaxSilenceMs)) {
    return "worker_silence must be 1 to 3600 seconds, got " + as_set(o.worker_silence);
  }
  if (o.incarnation.size() != 16) return "an incarnation has 16 bytes";
  return std::nullopt;
}

void State::begin(double now) {
  if (started_at_ >= 0) return;
  started_at_ = now;
  last_used_ = now;
}

Lane* State::want(uint32_t reducer, uint32_t number) {
  Reducer& owner = reducers_[reducer];
  if (owner.lanes.size() <= number) owner.lanes.resize(number + 1);
  if (owner.lanes[number] == nullptr) {
    owner.lanes[number] = std::make_unique<Lane>(reducer, number, owner.address);
    all_lanes_.push_back(owner.lanes[number].get());
    to_open_.push_back(owner.lanes[number].get());
  } else if (joined_ && owner.lanes[number]->phase == Phase::kClosed) {
    want_again(owner.lanes[number].get());  // the reducer had fewer lanes meanwhile
  }
  return owner.lanes[number].get();
}

std::vector<Lane*> State::wanted() {
  std::vector<Lane*> lanes;
  if (!failure_) lanes.swap(to_open_);
  for (Lane* lane : lanes) {
    lane->phase = Phase::kOpening;
    ++lane->attempts;
  }
  return lanes;
}

Lane* State::find(uint32_t reducer, uint32_t number) {
  if (reducer >= reducers_.size() || number >= reducers_[reducer].lanes.size()) return nullptr;
  return reducers_[reducer].lanes[number].get();
}

void State::opened(Lane* lane, double now) {
  if (failure_) return;
  begin(now);
  lane->phase = Phase::kHello;
  lane->last_heard = lane->last_sent = lane->last_heartbeat = now;
  lane->control.clear();
  say_hello(lane);
}

void State::say_hello(Lane* lane) {
  Hello hello;
  hello.job = options_.job;
  hello.run_id = joined_ ? run_id_ : options_.run_id;
  hello.rank = options_.rank;
  hello.world_size = options_.world_size;
  hello.incarnation = options_.incarnation;
  hello.slot = lane->reducer;
  hello.reducers = static_cast<uint32_t>(reducers_.size());
  if (options_.rank == 0) {
    hello.chunk_table = options_.chunk_table;
    hello.digest_every = options_.digest_every;
    hello.worker_silence_ms = in_ms(options_.worker_silence);
  }
  hello.client = "open-reduction-server engine";
  hello.rejoin = joined_;
  Header header;
  header.kind = kHello;
  queue_frame(lane, header, encode_hello(hello));
}

void State::unreachable(Lane* lane, const std::string& why, double now) {
  lane->trouble = why;
  if (failure_ || bye_queued_) {
    lane->phase = Phase::kClosed;
    return;
  }
  reset_connection(lane);
  want_again(lane);
  if (joined_) suspect(lane, why, now);
}

void State::closed(Lane* lane, const std::string& why, double now) {
  if (lane->phase == Phase::kClosed) return;
  // Before the welcome only an ERROR is an answer. A proxy or a listener that is just starting ends
  // connections, and a lane that dies and is started again. A reducer that is listed under two
  // names ends the first connection for the second, whose answer tells the reason.
  if (!failure_ && !joined_ && lane->phase < Phase::kWelcomed) return unreachable(lane, why, now);
  if (joined_ && !failure_ && !bye_queued_) return lose(lane, why, now);
  lane->phase = Phase::kClosed;
  if (failure_ || bye_queued_) return;
  fail(lane_failure(ErrorCode::kUnavailable, *lane, "the connection has ended: " + why));
}

Failure State::lane_failure(ErrorCode code, const Lane& lane, const std::string& what) const {
  Failure failure;
  failure.code = code;
  failure.message = lane.name + ": " + what;
  return failure;
}

std::optional<Failure> State::control(Lane* lane, const Header& header, const uint8_t* payload,
                                      double now) {
  lane->last_heard = now;
  if (failure_ || bye_queued_ || lane->phase == Phase::kDropped) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(payload), header.length);
  const bool welcomed = lane->welcomed();
  switch (header.kind) {
    case kPending:
      if (!welcomed) return on_pending(lane, text, now);
      break;
    case kWelcome:
      if (!welcomed) return on_welcome(lane, text, now);
      break;
    case kError:
      return on_error(lane, text, now);
    case kHeartbeat:
      if (welcomed) on_heartbeat(lane, header, payload);
      return std::nullopt;
    case kGoaway:
      return on_goaway(lane, text, now);
    default:
      if (welcomed) return run_control(lane, header, text, now);
      break;
  }
  return unexpected(*lane, header);
}

// The frames about a run that is complete.
std::optional<Failure> State::run_control(Lane* lane, const Header& header, std::string_view text,
                                          double now) {
  switch (header.kind) {
    case kStats:
      return on_stats(lane, text);
    case kStall:
      return on_stall(text, *lane, now);
    case kRefused:
      return on_refused(lane, header, text, now);
    case kGrant:
      return on_grant(lane, header), std::nullopt;
    case kRoute:
      return on_route(lane, text, now);
    case kSuspect:
      return on_suspect(lane, text, now);
    case kAbsent:
      return on_absent(lane, text, now);
    default:
      return unexpected(*lane, header);
  }
}

Failure State::unexpected(const Lane& lane, const Header& header) const {
  return lane_failure(
      ErrorCode::kProtocol, lane,
      "sent a frame of kind " + std::to_string(header.kind) + " that it may not send now");
}

// Open rounds go on until a route leads around the lane.
std::optional<Failure> State::on_goaway(Lane* lane, std::string_view payload, double now) {
  std::string reason;
  if (const char* wrong = decode_goaway(payload, &reason)) {
    return lane_failure(ErrorCode::kProtocol, *lane, wrong);
  }
  lane->drains = true;
  if (joined_) suspect(lane, "it drains: " + reason, now);
  return std::nullopt;
}

std::optional<Failure> State::on_pending(Lane* lane, std::string_view payload, double now) {
  Pending pending;
  if (const char* wrong = decode_pending(payload, &pending)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad PENDING: ") + wrong);
  }
  if (pending.lane != lane->number) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        "says that it is lane " + std::to_string(pending.lane));
  }
  lane->phase = Phase::kPending;
  const uint32_t lanes = pending.lanes;
  const std::string incarnation = pending.incarnation;
  lane->pending = std::move(pending);
  if (joined_ && lane->bound) suspect(lane, "it has lost its state of the run", now);
  return learn_lanes(lane, lanes, incarnation);
}

// The arbiter has answered: open the other reducers; any lane 0: open its other lanes.
std::optional<Failure> State::learn_lanes(Lane* lane, uint32_t lanes,
                                          const std::string& incarnation) {
  if (lane->number >= lanes) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        "has only " + std::to_string(lanes) + " lanes");
  }
  if (lane->number != 0) return std::nullopt;
  reducers_[lane->reducer].count = lanes;
  for (const Reducer& other : reducers_) {
    if (other.incarnation == incarnation && &other != &reducers_[lane->reducer]) {
      Failure failure;
      failure.code = ErrorCode::kJoin;
      failure.message = "addresses " + other.address + " and " + reducers_[lane->reducer].address +
                        " are the same reducer: name each reducer once";
      return failure;
    }
  }
  reducers_[lane->reducer].incarnation = incarnation;
  for (uint32_t number = 1; number < lanes; ++number) want(lane->reducer, number);
  if (lane->reducer != 0) return std::nullopt;
  for (uint32_t reducer = 1; reducer < reducers_.size(); ++reducer) want(reducer, 0);
  return std::nullopt;
}

std::optional<Failure> State::check_welcome(const Lane& lane, const Welcome& w) const {
  const auto differs = [&](const std::string& what, const std::string& got,
                           const std::string& expected) {
    return lane_failure(ErrorCode::kJoin, lane,
                        "names " + what + " " + got + ", expected " + expected);
  };
  if (w.lane != lane.number) {
    return differs("lane", std::to_string(w.lane), std::to_string(lane.number));
  }
  if (w.world_size != options_.world_size) {
    return differs("world size", std::to_string(w.world_size), std::to_string(options_.world_size));
  }
  if (w.reducers != reducers_.size() || w.slot >= w.reducers) {
    return differs("slot", std::to_string(w.slot) + " of " + std::to_string(w.reducers),
                   "one of " + std::to_string(reducers_.size()));
  }
  if (w.route.slots() != 0 && w.route.slots() != w.reducers) {
    return differs("a route of", std::to_string(w.route.slots()), std::to_string(w.reducers));
  }
  if (!options_.run_id.empty() && w.run_id != options_.run_id) {
    return differs("run id", "'" + w.run_id + "'", "'" + options_.run_id + "'");
  }
  if (joined_ && w.slot != reducers_[lane.reducer].slot) {
    return differs("slot", std::to_string(w.slot), std::to_string(reducers_[lane.reducer].slot));
  }
  if (joined_ && (w.run_id != run_id_ || !(w.chunk_table == chunk_table_) || w.epoch != epoch_)) {
    return differs("run", "'" + w.run_id + "'", "'" + run_id_ + "' as it was");
  }
  for (const Lane* other : all_lanes_) {
    if (other->phase != Phase::kWelcomed) continue;
    if (other->welcome.run_id != w.run_id) {
      return differs("run id", "'" + w.run_id + "'",
                     "'" + other->welcome.run_id + "' of " + other->name +
                         ": rank 0 was started again when the run had begun on a part of the "
                         "lanes; start all ranks again");
    }
    if (!(other->welcome.chunk_table == w.chunk_table) || other->welcome.epoch != w.epoch) {
      return differs("another chunk table or epoch", "here", "that of " + other->name);
    }
    if ((other->welcome.slot == w.slot) != (other->reducer == lane.reducer)) {
      return differs("slot", std::to_string(w.slot), "another than " + other->name);
    }
  }
  for (const ChunkRow& row : w.chunk_table) {
    if (std::min(w.credit, w.grant) < std::max<uint64_t>(row.chunk_bytes, kMinChunkCost)) {
      return differs("credit or grant", std::to_string(std::min(w.credit, w.grant)),
                     "at least a chunk of " + std::to_string(row.chunk_bytes));
    }
  }
  return std::nullopt;
}

std::optional<Failure> State::on_welcome(Lane* lane, std::string_view payload, double now) {
  Welcome welcome;
  if (const char* wrong = decode_welcome(payload, &welcome)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad WELCOME: ") + wrong);
  }
  // First: a reducer that is named twice would only look like a wrong slot.
  if (auto failure = learn_lanes(lane, welcome.lanes, welcome.incarnation)) return failure;
  if (auto failure = check_welcome(*lane, welcome)) return failure;
  lane->phase = Phase::kWelcomed;
  lane->credit.limit = welcome.credit;
  lane->grant.limit = welcome.grant;
  lane->welcome = std::move(welcome);
  if (!joined_) return maybe_join(now);
  welcomed_again(lane, now);
  if (auto failure = learn_route(lane->welcome.route, *lane, now)) return failure;
  if (lane->restarted) suspect(lane, "it was restarted and has lost its state of the run", now);
  tell_again(lane, now);
  decide(now);
  return std::nullopt;
}

std::optional<Failure> State::maybe_join(double now) {
  std::vector<uint32_t> lanes_by_slot(reducers_.size(), 0);
  for (const Reducer& reducer : reducers_) {
    if (reducer.lanes.empty()) return std::nullopt;
    for (const auto& lane : reducer.lanes) {
      if (lane == nullptr || !lane->welcomed()) return std::nullopt;
    }
    const Welcome& welcome = reducer.lanes[0]->welcome;
    if (reducer.lanes.size() != welcome.lanes) return std::nullopt;
    lanes_by_slot[welcome.slot] = welcome.lanes;
  }
  if (auto failure = take_rules()) return failure;
  const Welcome& welcome = reducers_[0].lanes[0]->welcome;
  run_id_ = welcome.run_id;
  chunk_table_ = welcome.chunk_table;
  epoch_ = welcome.epoch;
  heartbeat_ = welcome.heartbeat_ms / 1000.0;
  route_ = Route::first(lanes_by_slot);
  owners_ = Owners(route_);
  by_slot_.resize(reducers_.size());
  for (uint32_t at = 0; at < reducers_.size(); ++at) {
    reducers_[at].slot = reducers_[at].lanes[0]->welcome.slot;
    by_slot_[reducers_[at].slot] = at;
  }
  joined_ = true;
  for (Lane* lane : all_lanes_) {
    bind(lane);
    lane->attempts = 0;
    lane->complete_since = now;
    lane->last_heard = now;
  }
  for (size_t i = 0; i < all_lanes_.size(); ++i) {  // others may have joined, and lost one, before
    if (auto failure = learn_route(all_lanes_[i]->welcome.route, *all_lanes_[i], now)) {
      return failure;
    }
    if (all_lanes_[i]->drains) suspect(all_lanes_[i], "it drains", now);
  }
  return std::nullopt;
}

// What rank 0 has said for all ranks, as the lanes pass it on.
std::optional<Failure> State::take_rules() {
  const auto less = [](const Lane* a, const Lane* b) {
    return a->welcome.digest_every < b->welcome.digest_every;
  };
  const Lane* least = *std::min_element(all_lanes_.begin(), all_lanes_.end(), less);
  digests_.compare_every(least->welcome.digest_every);
  worker_silence_ = all_lanes_[0]->welcome.worker_silence_ms / 1000.0;
  if (options_.rank != 0) return std::nullopt;
  const auto older = [this](const Lane& lane, const std::string& setting) {
    return lane_failure(ErrorCode::kVersion, lane,
                        "does not pass " + setting +
                            " on: it is of an older release; install the same one everywhere, or "
                            "leave " +
                            setting + " at its default");
  };
  if (least->welcome.digest_every != options_.digest_every) return older(*least, "digest_every");
  for (const Lane* lane : all_lanes_) {
    if (lane->welcome.worker_silence_ms != in_ms(options_.worker_silence)) {
      return older(*lane, "worker_silence");
    }
  }
  return std::nullopt;
}

// Who has not come: the reducers that do not answer, else the ranks that are absent.
Failure State::not_joined() const {
  Failure failure;
  const std::string within = " within " + as_set(options_.connect_timeout);
  std::string silent;
  std::set<uint32_t> absent;
  uint64_t absent_count = 0;
  for (const Lane* lane : all_lanes_) {
    if (lane->phase < Phase::kPending) {
      if (!silent.empty()) silent += ", ";
      silent += reducers_[lane->reducer].address;
      if (lane->number != 0) silent += " (lane " + std::to_string(lane->number) + ")";
      if (!lane->trouble.empty()) silent += " (" + lane->trouble + ")";
    } else if (lane->phase == Phase::kPending) {
      absent.insert(lane->pending.absent.begin(), lane->pending.absent.end());
      absent_count = std::max(absent_count, lane->pending.absent_count);
    }
  }
  if (!silent.empty()) {
    failure.code = ErrorCode::kUnavailable;
    failure.reason = "unreachable";
    failure.message =
        "no reducer answered at " + silent + within + ": is `reducer serve` running there?";
    return failure;
  }
  failure.code = ErrorCode::kJoin;
  failure.reason = "absent";
  std::string ranks;
  size_t shown = 0;
  for (const uint32_t rank : absent) {
    if (shown++ == kMaxRanksShown) break;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  absent_count = std::max<uint64_t>(absent_count, absent.size());
  if (absent_count > kMaxRanksShown) {
    ranks += " and " + std::to_string(absent_count - kMaxRanksShown) + " more";
  }
  failure.message = (absent_count == 1 ? "rank " : "ranks ") + ranks + " of " +
                    std::to_string(options_.world_size) + (absent_count == 1 ? " has" : " have") +
                    " not joined job '" + options_.job + "'" + within +
                    ": were all workers started with the same addresses and job?";
  if (absent_count == 1 && !absent.empty()) failure.rank = *absent.begin();
  return failure;
}

std::optional<Failure> State::on_error(Lane* lane, std::string_view payload, double now) {
  Failure failure;
  if (const char* wrong = decode_error(payload, &failure)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad ERROR: ") + wrong);
  }
  failure.message += " (from " + lane->name + ")";
  if (joined_ && !ends_the_run(failure)) {
    strike(lane, failure, now);
    return std::nullopt;
  }
  lane->phase = Phase::kClosed;
  fail(failure);
  return std::nullopt;
}

std::optional<Failure> State::on_stats(Lane* lane, std::string_view payload) {
  Value value;
  const char* wrong = msgpack_decode(payload, &value);
  if (wrong == nullptr && value.type != Value::Type::kMap) wrong = "no map";
  if (wrong != nullptr) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("bad STATS: ") + wrong);
  }
  lane->stats = std::move(value);
  lane->stats_waiting = false;
  return std::nullopt;
}

std::optional<Failure> State::on_stall(std::string_view payload, const Lane& lane, double now) {
  std::vector<StalledRound> rounds;
  if (const char* wrong = decode_stall(payload, &rounds)) {
    return lane_failure(ErrorCode::kProtocol, lane, std::string("a bad STALL: ") + wrong);
  }
  stalls_.add(rounds, options_.world_size, now);
  return std::nullopt;
}

void State::ask_stats() {
  Header header;
  header.kind = kStats;
  for (Lane* lane : all_lanes_) {
    if (lane->phase != Phase::kWelcomed || lane->stats_waiting) continue;
    lane->stats_waiting = true;
    queue_frame(lane, header, {});
  }
}

// A lane that is lost has its last word, and is asked again when it is back.
bool State::stats_waiting() const {
  return std::any_of(all_lanes_.begin(), all_lanes_.end(),
                     [](const Lane* lane) { return lane->stats_waiting && lane->welcomed(); });
}

}  // namespace ors
