#include "protocol/joining.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "protocol/messages.h"
#include "protocol/texts.h"

namespace ors {
namespace {

using Phase = Lane::Phase;

constexpr size_t kMaxRanksShown = 16;

uint32_t in_ms(double value) { return static_cast<uint32_t>(std::lround(value * 1000)); }

}  // namespace

void Joining::say_hello(Lane* lane) {
  Hello hello;
  hello.job = run_.options.job;
  hello.run_id = run_.joined ? run_.run_id : run_.options.run_id;
  hello.rank = run_.options.rank;
  hello.world_size = run_.options.world_size;
  hello.incarnation = run_.options.incarnation;
  hello.slot = lane->reducer;
  hello.reducers = static_cast<uint32_t>(lanes_.reducers().size());
  if (run_.options.rank == 0) {
    hello.chunk_table = run_.options.chunk_table;
    hello.digest_every = run_.options.digest_every;
    hello.worker_silence_ms = in_ms(run_.options.worker_silence);
    hello.weights = run_.options.weights;
  }
  hello.client = "open-reduction-server engine";
  hello.rejoin = run_.joined;
  lanes_.queue_frame(lane, {kHello}, encode_hello(hello));
}

void Joining::opened(Lane* lane, double now) {
  lane->phase = Phase::kHello;
  lane->last_heard = lane->last_sent = lane->last_heartbeat = now;
  lane->control.clear();
  say_hello(lane);
}

std::optional<Failure> Joining::on_pending(Lane* lane, std::string_view payload, double now) {
  Pending pending;
  if (const std::string wrong = decode_pending(payload, &pending); !wrong.empty())
    return bad_frame(*lane, "PENDING", wrong);
  if (pending.lane != lane->number) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        "says that it is lane " + std::to_string(pending.lane));
  }
  lane->phase = Phase::kPending;
  const uint32_t lanes = pending.lanes;
  const std::string incarnation = pending.incarnation;
  lane->pending = std::move(pending);
  if (run_.joined && lane->bound)
    suspicions_.suspect(lane, "it has lost its state of the run", now);
  return learn_lanes(lane, lanes, incarnation);
}

// A lane answered. On lane 0, opens the other lanes of its reducer; if the reducer is the arbiter
// (the first address), also opens all other reducers.
std::optional<Failure> Joining::learn_lanes(Lane* lane, uint32_t lanes,
                                            const std::string& incarnation) {
  if (lane->number >= lanes) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        "has only " + std::to_string(lanes) +
                            " lanes now: was it restarted with fewer --lanes while the job joined? "
                            "Start the job again");
  }
  if (lane->number != 0) return std::nullopt;
  lanes_.reducer_of(*lane).count = lanes;
  for (const Reducer& other : lanes_.reducers()) {
    if (other.incarnation == incarnation && &other != &lanes_.reducer_of(*lane)) {
      return Failure(ErrorCode::kJoin, "addresses " + other.address + " and " +
                                           lanes_.reducer_of(*lane).address +
                                           " are the same reducer: name each reducer once");
    }
  }
  lanes_.reducer_of(*lane).incarnation = incarnation;
  for (uint32_t number = 1; number < lanes; ++number) failover_.want(lane->reducer, number);
  if (lane->reducer != 0) return std::nullopt;
  for (uint32_t reducer = 1; reducer < lanes_.reducers().size(); ++reducer)
    failover_.want(reducer, 0);
  return std::nullopt;
}

std::optional<Failure> Joining::check_welcome(const Lane& lane, const Welcome& w) const {
  const auto differs = [&](const std::string& what, const std::string& got,
                           const std::string& expected) {
    return lane_failure(ErrorCode::kJoin, lane,
                        "sent a WELCOME for " + what + " " + got + ", expected " + expected);
  };
  if (w.lane != lane.number) {
    return differs("lane", std::to_string(w.lane), std::to_string(lane.number));
  }
  if (w.world_size != run_.options.world_size) {
    return differs("world size", std::to_string(w.world_size),
                   std::to_string(run_.options.world_size));
  }
  if (w.reducers != lanes_.reducers().size() || w.slot >= w.reducers) {
    return differs("slot", std::to_string(w.slot) + " of " + std::to_string(w.reducers),
                   "one of " + std::to_string(lanes_.reducers().size()));
  }
  if (w.route.slots() != 0 && w.route.slots() != w.reducers) {
    return differs("a route of", std::to_string(w.route.slots()) + " slots",
                   std::to_string(w.reducers));
  }
  if (!run_.options.run_id.empty() && w.run_id != run_.options.run_id) {
    return differs("run id", "'" + w.run_id + "'", "'" + run_.options.run_id + "'");
  }
  if (run_.joined && w.slot != lanes_.reducer_of(lane).slot) {
    return differs("slot", std::to_string(w.slot), std::to_string(lanes_.reducer_of(lane).slot));
  }
  if (run_.joined && (w.run_id != run_.run_id || !(w.chunk_table == run_.chunk_table) ||
                      w.epoch != run_.epoch || w.weights != current_route_.weights())) {
    const char* how =
        w.run_id == run_.run_id ? " with another epoch, chunk table or other weights" : "";
    return differs("run", "'" + w.run_id + "'" + how, "'" + run_.run_id + "' of this group");
  }
  if (run_.options.rank == 0 && !run_.joined && w.weights != run_.options.weights) {
    Preface theirs;
    theirs.minor = static_cast<uint8_t>(w.minor);
    return lane_failure(ErrorCode::kJoin, lane,
                        "did not take the weights of the reducers: it speaks protocol " +
                            version(theirs) + ", this worker " + version(Preface()) +
                            ": install the same release on all reducers");
  }
  for (const Lane* other : lanes_.all()) {
    if (other->phase != Phase::kWelcomed) continue;
    if (other->welcome.run_id != w.run_id) {
      return differs("run id", "'" + w.run_id + "'",
                     "'" + other->welcome.run_id + "' of " + other->name +
                         ": rank 0 was started again when the run had begun on a part of the "
                         "lanes; start all ranks again");
    }
    if (!(other->welcome.chunk_table == w.chunk_table) || other->welcome.epoch != w.epoch ||
        other->welcome.weights != w.weights) {
      return differs("another chunk table, epoch or other weights", "than " + other->name,
                     "the same: start all ranks again");
    }
    if ((other->welcome.slot == w.slot) != (other->reducer == lane.reducer)) {
      const bool same = other->reducer == lane.reducer;
      return differs("slot", std::to_string(w.slot),
                     (same ? "slot " : "any slot but ") + std::to_string(other->welcome.slot) +
                         ", which " + other->name + " has");
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

std::optional<Failure> Joining::on_welcome(Lane* lane, std::string_view payload, double now) {
  Welcome welcome;
  if (const std::string wrong = decode_welcome(payload, &welcome); !wrong.empty())
    return bad_frame(*lane, "WELCOME", wrong);
  // Before check_welcome(), which would report a reducer that is listed twice as a wrong slot.
  if (auto failure = learn_lanes(lane, welcome.lanes, welcome.incarnation)) return failure;
  if (auto failure = check_welcome(*lane, welcome)) return failure;
  lane->phase = Phase::kWelcomed;
  lane->credit.limit = welcome.credit;
  lane->grant.limit = welcome.grant;
  lane->welcome = std::move(welcome);
  if (!run_.joined) return maybe_join(now);
  return recovery_.welcomed(lane, now);
}

std::optional<Failure> Joining::maybe_join(double now) {
  std::vector<uint32_t> lanes_by_slot(lanes_.reducers().size(), 0);
  for (const Reducer& reducer : lanes_.reducers()) {
    if (reducer.lanes.empty()) return std::nullopt;
    for (const auto& lane : reducer.lanes) {
      if (lane == nullptr || !lane->welcomed()) return std::nullopt;
    }
    const Welcome& welcome = reducer.lanes[0]->welcome;
    if (reducer.lanes.size() != welcome.lanes) return std::nullopt;
    lanes_by_slot[welcome.slot] = welcome.lanes;
  }
  if (auto failure = take_rules()) return failure;
  const Welcome& welcome = lanes_.reducers()[0].lanes[0]->welcome;
  run_.run_id = welcome.run_id;
  run_.chunk_table = welcome.chunk_table;
  run_.epoch = welcome.epoch;
  run_.heartbeat = welcome.heartbeat_ms / 1000.0;
  for (Reducer& reducer : lanes_.reducers()) reducer.slot = reducer.lanes[0]->welcome.slot;
  current_route_.begin(std::move(lanes_by_slot), welcome.weights);
  run_.joined = true;
  for (Lane* lane : lanes_.all()) {
    lane->bind();
    lane->attempts = 0;
    lane->none_absent_since = now;
    lane->last_heard = now;
  }
  for (size_t i = 0; i < lanes_.all().size();
       ++i) {  // other ranks may have changed the route already
    if (auto failure = failover_.learn(lanes_.all()[i]->welcome.route, *lanes_.all()[i], now)) {
      return failure;
    }
    if (lanes_.all()[i]->drains) suspicions_.suspect(lanes_.all()[i], "it drains", now);
  }
  return std::nullopt;
}

// Applies the settings that rank 0 chose for all ranks. The lanes passed them on in WELCOME.
std::optional<Failure> Joining::take_rules() {
  const auto less = [](const Lane* a, const Lane* b) {
    return a->welcome.digest_every < b->welcome.digest_every;
  };
  const Lane* least = *std::min_element(lanes_.all().begin(), lanes_.all().end(), less);
  rounds_.digests().compare_every(least->welcome.digest_every);
  run_.worker_silence = lanes_.all()[0]->welcome.worker_silence_ms / 1000.0;
  if (run_.options.rank != 0) return std::nullopt;
  const auto older = [](const Lane& lane, const std::string& setting) {
    return lane_failure(ErrorCode::kVersion, lane,
                        "does not pass " + setting +
                            " on: it runs an older release; install the same release everywhere, "
                            "or leave " +
                            setting + " at its default");
  };
  if (least->welcome.digest_every != run_.options.digest_every)
    return older(*least, "digest_every");
  for (const Lane* lane : lanes_.all()) {
    if (lane->welcome.worker_silence_ms != in_ms(run_.options.worker_silence)) {
      return older(*lane, "worker_silence");
    }
  }
  return std::nullopt;
}

// The failure of a join that timed out. Names the reducers that did not answer; if all did, the
// ranks that did not come.
Failure Joining::not_joined() const {
  const std::string within = " within " + as_set(run_.options.connect_timeout);
  std::string silent;
  std::set<uint32_t> absent;
  uint64_t absent_count = 0;
  for (const Lane* lane : lanes_.all()) {
    if (lane->phase < Phase::kPending) {
      if (!silent.empty()) silent += ", ";
      silent += lanes_.reducer_of(*lane).address;
      if (lane->number != 0) silent += " (lane " + std::to_string(lane->number) + ")";
      if (!lane->trouble.empty()) silent += " (" + lane->trouble + ")";
    } else if (lane->phase == Phase::kPending) {
      absent.insert(lane->pending.absent.begin(), lane->pending.absent.end());
      absent_count = std::max(absent_count, lane->pending.absent_count);
    }
  }
  if (!silent.empty()) {
    return {ErrorCode::kUnavailable,
            "no reducer answered at " + silent + within + ": is `reducer serve` running there?",
            "unreachable"};
  }
  const std::vector<uint32_t> ranks(absent.begin(), absent.end());
  absent_count = std::max<uint64_t>(absent_count, ranks.size());
  const bool one = absent_count == 1;
  return {ErrorCode::kJoin,
          rank_names(ranks, absent_count, kMaxRanksShown) + " of " +
              std::to_string(run_.options.world_size) + (one ? " has" : " have") +
              " not joined job '" + run_.options.job + "'" + within +
              ": were all workers started with the same addresses and job?",
          "absent", one && !ranks.empty() ? int64_t{ranks.front()} : -1};
}

}  // namespace ors
