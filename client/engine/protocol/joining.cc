#include "protocol/joining.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "protocol/messages.h"
#include "protocol/texts.h"

namespace ors {
namespace {

using Phase = Lane::Phase;

constexpr size_t kMaxRanksShown = 16;
// A reducer that answers has proved that all ranks are here. The others then have this many seconds
// at least.
constexpr double kLeastGrace = 1.0;
// Seconds of waiting for others before a worker says so, and until it says so again.
constexpr double kTellAfter = 3.0;
constexpr double kTellEvery = 10.0;
constexpr uint32_t kElasticMinor = 3;  // the minor version that brought runs that lose ranks

uint32_t in_ms(double value) { return static_cast<uint32_t>(std::lround(value * 1000)); }

}  // namespace

void Joining::say_hello(Lane* lane) {
  Hello hello;
  hello.job = run_.options.job;
  hello.run_id = run_.joined ? run_.run_id : run_.options.run_id;
  hello.rank = run_.options.rank;
  hello.world_size = run_.options.world_size;
  hello.incarnation = run_.options.incarnation;
  hello.slot = run_.joined ? lanes_.reducer_of(*lane).slot : lane->reducer;
  hello.reducers = static_cast<uint32_t>(lanes_.reducers().size());
  hello.elastic = run_.options.elastic;
  if (run_.joined) {
    hello.lost = current_route_.route().lost;
    if (current_route_.made_by(run_.options.rank)) {
      hello.chunk_table = run_.chunk_table;
      hello.digest_every = rounds_.digests().every();
      hello.worker_silence_ms = in_ms(run_.worker_silence);
      hello.weights = current_route_.weights();
    }
  } else if (run_.options.rank == 0) {
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
  lane->pending_at = now;
  if (run_.joined && lane->bound)
    suspicions_.suspect(lane, "it has lost its state of the run", now);
  return learn_lanes(lane, lanes, incarnation);
}

// A lane answered. On lane 0, opens the other lanes of its reducer; if the reducer is the arbiter
// (the first address that answers), also opens all other reducers.
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
  if (lane->reducer > arbiter_) return std::nullopt;
  for (uint32_t reducer = 0; reducer < lanes_.reducers().size(); ++reducer)
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
  if (w.epoch != w.route.epoch()) {
    return differs("epoch", std::to_string(w.epoch),
                   std::to_string(w.route.epoch()) + " of its lost ranks");
  }
  if (run_.options.elastic && w.minor < kElasticMinor) {
    Preface theirs;
    theirs.minor = static_cast<uint8_t>(w.minor);
    return lane_failure(ErrorCode::kJoin, lane,
                        "ends the run when a rank is lost: it speaks protocol " + version(theirs) +
                            ", this worker " + version(Preface()) +
                            ": install the same release on all reducers");
  }
  if (run_.joined && (w.run_id != run_.run_id || !(w.chunk_table == run_.chunk_table) ||
                      w.weights != current_route_.weights())) {
    const char* how = w.run_id == run_.run_id ? " with another chunk table or other weights" : "";
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
    if (!(other->welcome.chunk_table == w.chunk_table) || other->welcome.weights != w.weights) {
      return differs("another chunk table or other weights", "than " + other->name,
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
  if (run_.joined) correct_slot(&lanes_.reducer_of(*lane), welcome.slot);
  if (auto failure = check_welcome(*lane, welcome)) return failure;
  lane->phase = Phase::kWelcomed;
  lane->credit.limit = welcome.credit;
  lane->grant.limit = welcome.grant;
  lane->welcome = std::move(welcome);
  if (!run_.joined) return maybe_join(now);
  return recovery_.welcomed(lane, now);
}

// Whether all its lanes have welcomed this worker.
bool Joining::complete(const Reducer& reducer) {
  if (reducer.lanes.empty()) return false;
  for (const auto& lane : reducer.lanes) {
    if (lane == nullptr || !lane->welcomed()) return false;
  }
  return reducer.lanes.size() == reducer.lanes[0]->welcome.lanes;
}

// Returns the route that rank 0 has made meanwhile; null if it has not made any.
const Route* Joining::newest_route() const {
  const Route* newest = nullptr;
  for (const Lane* lane : lanes_.all()) {
    const Route& route = lane->welcome.route;
    if (!lane->welcomed() || route.slots() != lanes_.reducers().size()) continue;
    if (newest == nullptr || route.order() > newest->order()) newest = &route;
  }
  return newest;
}

// A WELCOME tells the slot of a reducer. The others get the slots that are left, in their order,
// until their WELCOME tells more (see on_welcome()).
void Joining::take_slots() {
  std::vector<bool> taken(lanes_.reducers().size());
  std::vector<Reducer*> unknown;
  for (Reducer& reducer : lanes_.reducers()) {
    const auto& lanes = reducer.lanes;
    const auto found = std::find_if(lanes.begin(), lanes.end(), [](const auto& lane) {
      return lane != nullptr && lane->welcomed();
    });
    if (found == lanes.end()) {
      unknown.push_back(&reducer);
    } else {
      reducer.slot = (*found)->welcome.slot;
      taken[reducer.slot] = true;
    }
  }
  uint32_t slot = 0;
  for (Reducer* reducer : unknown) {
    while (taken[slot]) ++slot;
    reducer->slot = slot++;
  }
}

// Joins as soon as every reducer has welcomed this worker. Rank 0 does without reducers that do not
// answer in time, and makes a route without them. The other ranks do without the slots that this
// route puts out.
std::optional<Failure> Joining::maybe_join(double now) {
  take_slots();
  const Route* route = newest_route();
  uint32_t missing = 0;
  for (const Reducer& reducer : lanes_.reducers()) {
    if (complete(reducer)) continue;
    if (run_.options.rank != 0 && (route == nullptr || route->live[reducer.slot] != 0))
      return std::nullopt;
    ++missing;
  }
  const size_t answering = lanes_.reducers().size() - missing;
  if (answering > 0 && complete_at_ < 0) complete_at_ = now;
  if (missing > 0 && run_.options.rank == 0) {
    const bool waited = opened_at_ >= 0 && now - opened_at_ >= run_.options.grace &&
                        now - complete_at_ >= kLeastGrace;
    if (!waited || answering < std::max<size_t>(run_.options.min_reducers, 1)) return std::nullopt;
  }
  return answering > 0 ? join(now) : std::nullopt;
}

std::optional<Failure> Joining::join(double now) {
  if (auto failure = take_rules()) return failure;
  const Welcome& welcome =
      (*std::find_if(lanes_.all().begin(), lanes_.all().end(), [](const Lane* lane) {
        return lane->welcomed();
      }))->welcome;
  run_.run_id = welcome.run_id;
  run_.chunk_table = welcome.chunk_table;
  run_.heartbeat = welcome.heartbeat_ms / 1000.0;
  std::vector<uint32_t> lanes_by_slot(lanes_.reducers().size());
  for (uint32_t index = 0; index < lanes_.reducers().size(); ++index) {
    lanes_.want(index, 0);
    Reducer& reducer = lanes_.reducers()[index];
    reducer.count = std::max(reducer.count, 1U);  // unknown before lane 0 has answered
    lanes_by_slot[reducer.slot] = reducer.count;
  }
  current_route_.begin(std::move(lanes_by_slot), welcome.weights);
  run_.joined = true;
  for (Lane* lane : lanes_.all()) {
    lane->bind();
    lane->attempts = 0;
    lane->none_absent_since = lane->welcomed() ? now : -1;
    lane->last_heard = now;
  }
  for (size_t i = 0; i < lanes_.all().size(); ++i) {  // a route may add some
    Lane* lane = lanes_.all()[i];
    if (!lane->welcomed()) continue;
    if (auto failure = failover_.learn(lane->welcome.route, *lane, now)) return failure;
    if (lane->drains) suspicions_.suspect(lane, "it drains", now);
  }
  begin_without(now);
  return std::nullopt;
}

// Lanes that have not welcomed this worker get a hello of a run that has formed.
void Joining::begin_without(double now) {
  for (size_t i = 0; i < lanes_.all().size(); ++i) {
    Lane* lane = lanes_.all()[i];
    if (lane->welcomed()) continue;
    const std::string why = lane->trouble.empty() ? "it did not answer" : lane->trouble;
    if (lane->phase == Phase::kHello || lane->phase == Phase::kPending)
      lanes_.drop(lane, "the run has begun without it", now);
    if (lane->unwelcomed_at < 0) lane->unwelcomed_at = now;
    suspicions_.suspect(lane, "the job starts without it, since " + why, now);
  }
}

// Before the join: tries the next address if nobody answers, and stops waiting in the end.
std::optional<Failure> Joining::watch(double now) {
  if (opened_at_ < 0) opened_at_ = arbiter_at_ = now;
  const bool last = arbiter_ + 1 == lanes_.reducers().size();
  if (!last && now - arbiter_at_ >= run_.options.grace &&
      lanes_.want(arbiter_, 0)->phase < Phase::kPending) {
    arbiter_at_ = now;
    lanes_.want(++arbiter_, 0);
  }
  tell_for_whom(now);
  return run_.options.rank == 0 ? maybe_join(now) : std::nullopt;
}

std::optional<Failure> Joining::on_route(Lane* lane, std::string_view payload, double now) {
  Route route;
  if (const std::string wrong = decode_route(payload, &route); !wrong.empty())
    return bad_frame(*lane, "ROUTE", wrong);
  lane->route_known = route.order();
  lane->welcome.route = std::move(route);
  return maybe_join(now);
}

// A reducer that joins late may have another slot than take_slots() guessed.
void Joining::correct_slot(Reducer* reducer, uint32_t slot) {
  if (slot == reducer->slot || slot >= lanes_.reducers().size()) return;
  Reducer* other = &current_route_.at_slot(slot);
  if (!current_route_.live(*reducer) && !current_route_.live(*other))
    current_route_.exchange_slots(reducer, other);
}

// Applies the settings that rank 0 chose for all ranks. The lanes passed them on in WELCOME.
std::optional<Failure> Joining::take_rules() {
  std::vector<const Lane*> lanes;
  std::copy_if(lanes_.all().begin(), lanes_.all().end(), std::back_inserter(lanes),
               [](const Lane* lane) { return lane->welcomed(); });
  const auto less = [](const Lane* a, const Lane* b) {
    return a->welcome.digest_every < b->welcome.digest_every;
  };
  const Lane* least = *std::min_element(lanes.begin(), lanes.end(), less);
  rounds_.digests().compare_every(least->welcome.digest_every);
  run_.worker_silence = lanes[0]->welcome.worker_silence_ms / 1000.0;
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
  for (const Lane* lane : lanes) {
    if (lane->welcome.worker_silence_ms != in_ms(run_.options.worker_silence)) {
      return older(*lane, "worker_silence");
    }
  }
  return std::nullopt;
}

Joining::Missing Joining::missing() const {
  Missing found;
  std::set<uint32_t> absent, answered;
  for (const Lane* lane : lanes_.all()) {
    if (lane->phase < Phase::kPending) {
      if (!found.reducers.empty()) found.reducers += ", ";
      found.reducers += lanes_.reducer_of(*lane).address;
      found.host = run_.options.host_of(lane->reducer);
      if (lane->number != 0) found.reducers += " (lane " + std::to_string(lane->number) + ")";
      if (!lane->trouble.empty()) found.reducers += " (" + lane->trouble + ")";
      continue;
    }
    answered.insert(lane->reducer);
    if (lane->phase == Phase::kPending) {
      absent.insert(lane->pending.absent.begin(), lane->pending.absent.end());
      found.rank_count = std::max(found.rank_count, lane->pending.absent_count);
    }
  }
  found.answered = static_cast<uint32_t>(answered.size());
  found.ranks.assign(absent.begin(), absent.end());
  found.rank_count = std::max<uint64_t>(found.rank_count, absent.size());
  return found;
}

// Tells the user from time to time whom the worker waits for. The job does not wait long for more
// reducers than it needs. If ranks are missing, rank 0 tells, or all others if rank 0 is missing.
void Joining::tell_for_whom(double now) {
  if (now - opened_at_ < kTellAfter || (told_at_ >= 0 && now - told_at_ < kTellEvery)) return;
  const Missing found = missing();
  std::string whom;
  if (!found.reducers.empty() && found.answered < run_.options.min_reducers) {
    whom = "reducer " + found.reducers;
  } else if (found.rank_count != 0 &&
             (run_.options.rank == 0 || (!found.ranks.empty() && found.ranks.front() == 0))) {
    whom = rank_names(found.ranks, found.rank_count, kMaxRanksShown) + " of " +
           std::to_string(run_.options.world_size);
  }
  if (whom.empty()) return;
  told_at_ = now;
  const double left = std::ceil(run_.options.connect_timeout - (now - opened_at_));
  reports_.push("job '" + run_.options.job + "' waits for " + whom + "; " + as_set(left) + " left");
}

// The failure of a join that timed out. Names the reducers that did not answer; if all did, the
// ranks that did not come.
Failure Joining::not_joined() const {
  const std::string within = " within " + as_set(run_.options.connect_timeout);
  const Missing found = missing();
  if (!found.reducers.empty()) {
    return {
        ErrorCode::kUnavailable,
        "no reducer answered at " + found.reducers + within +
            (found.host ? ": is rank " + std::to_string(*found.host) + ", which starts it, running?"
                        : ": is `reducer serve` running there?"),
        "unreachable"};
  }
  const bool one = found.rank_count == 1;
  return {ErrorCode::kJoin,
          rank_names(found.ranks, found.rank_count, kMaxRanksShown) + " of " +
              std::to_string(run_.options.world_size) + (one ? " has" : " have") +
              " not joined job '" + run_.options.job + "'" + within +
              ": were all workers started with the same addresses and job?",
          "absent", one && !found.ranks.empty() ? int64_t{found.ranks.front()} : -1};
}

}  // namespace ors
