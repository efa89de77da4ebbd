#include "protocol/failover.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "protocol/messages.h"

namespace ors {

std::optional<Failure> Failover::on_route(Lane* lane, std::string_view payload, double now) {
  Route route;
  if (const std::string wrong = decode_route(payload, &route); !wrong.empty())
    return bad_frame(*lane, "ROUTE", wrong);
  lane->route_known = std::max(lane->route_known, route.order());
  return learn(route, *lane, now);
}

std::optional<Failure> Failover::learn(const Route& route, const Lane& from, double now) {
  if (!news(route)) return std::nullopt;
  if (auto failure = check(route, from.name)) return failure;
  apply(route, now);
  return std::nullopt;
}

std::optional<Failure> Failover::install(std::string_view payload, double now) {
  Route route;
  const std::string wrong = decode_route(payload, &route);
  if (!wrong.empty()) return Failure(ErrorCode::kProtocol, "a view of the registry: " + wrong);
  if (!news(route)) return std::nullopt;
  if (auto failure = check(route, "the registry")) return failure;
  apply(route, now);
  return std::nullopt;
}

bool Failover::news(const Route& route) const {
  const bool is_void = route.epoch() != current_route_.epoch() && route.epoch() < promised_;
  return route.order() > current_route_.route().order() && !is_void;
}

std::optional<Failure> Failover::check(const Route& route, const std::string& from) const {
  const auto wrong = [&](const std::string& what) {
    return Failure(ErrorCode::kProtocol, from + " sent " + what);
  };
  const Route& known = current_route_.route();
  if (route.slots() != lanes_.reducers().size()) {
    return wrong("a route of " + std::to_string(route.slots()) + " slots, expected " +
                 std::to_string(lanes_.reducers().size()));
  }
  const bool fixed = !run_.options.elastic && !route.lost.empty();
  if (fixed || !route.continues(known) || route.lost.size() >= run_.options.world_size)
    return wrong("a view that does not follow from the one before");
  if (route.epoch() == known.epoch() && current_route_.made_by(run_.options.rank)) {
    return wrong("route " + std::to_string(route.number) + ", which rank " +
                 std::to_string(run_.options.rank) + " never made");
  }
  return std::nullopt;
}

Route Failover::without(const std::vector<uint32_t>& ranks, uint32_t epoch) const {
  Route next = current_route_.route().without(ranks, epoch);
  for (const Reducer& reducer : lanes_.reducers()) {  // a hosted reducer ends with its rank
    const auto host = run_.options.host_of(lanes_.index_of(reducer));
    const bool gone = host && next.is_out(*host) && !reducer.reached();
    if (gone && next.live_slots() > 1) next.live[reducer.slot] = 0;
  }
  return next;
}

// Rounds of which a part belongs to each rank cannot go on without a rank.
void Failover::end_uneven(double now) {
  std::vector<RoundRef> uneven;
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& [number, round] : record->rounds) {
      if (!round->over && !shrinks(round->descriptor.collective)) uneven.push_back(round);
    }
  }
  const uint32_t rank = current_route_.route().lost.back().rank;
  for (const RoundRef& round : uneven) {
    Failure failure(ErrorCode::kPeerLost,
                    run_.rank_of_job(rank) +
                        " is lost, and only all_reduce and barrier go on "
                        "without it",
                    "lost", rank);
    failure.key = round->key->name;
    failure.round = static_cast<int64_t>(round->number);
    rounds_.abandon(round, failure, now);
  }
}

Failure Failover::excluded() const {
  return {ErrorCode::kPeerLost,
          "the other ranks took " + run_.rank_of_job(run_.options.rank) +
              ", this process itself, for lost and go on without it: join the job again from a "
              "new process",
          "excluded", run_.options.rank};
}

void Failover::apply(const Route& route, double now) {
  if (route.is_out(run_.options.rank)) return run_.end(excluded());
  const bool new_view = route.epoch() != current_route_.epoch();
  std::vector<bool> moved(route.slots());
  for (uint32_t slot = 0; slot < route.slots(); ++slot) {
    moved[slot] = new_view || route.since[slot] != current_route_.route().since[slot];
  }
  current_route_.take(route);
  for (Reducer& reducer : lanes_.reducers()) {
    const uint32_t index = lanes_.index_of(reducer);
    const uint32_t lanes = current_route_.lanes_in_use(reducer);
    reducer.count = std::max(reducer.count, lanes);
    for (uint32_t number = 0; number < lanes; ++number) want(index, number);
    if (!moved[reducer.slot]) continue;
    for (const auto& lane : reducer.lanes) {
      lane->bind();
      if (lane->welcomed() || !current_route_.live(reducer)) lane->suspicion.clear();
      if (current_route_.live(reducer) && lane->unwelcomed_at >= 0)
        lane->unwelcomed_at = now;  // restart its timeout
    }
    reducer.blocked_at = -1;
  }
  for (Lane* lane : lanes_.all()) {
    current_route_.queue_route(lane);
    lanes_.discard(lane, [&](const Lane::Receiving& result) {
      return moved[current_route_.owners().home(result.round->key->id, result.chunk)];
    });
    if (lane->has_grant && moved[lane->granted_home]) lane->has_grant = false;
  }
  keys_.revive(now);
  for (const auto& [id, record] : keys_.all()) move_key(record.get(), moved, now);
  rebuild_queues(nullptr);
  for (Lane* lane : lanes_.all()) {
    if (lane->usable()) positions_.maybe_heartbeat(lane, now);
  }
  if (!new_view) return;
  end_uneven(now);
  for (Lane* lane : lanes_.all()) {  // a lane where the run forms learns the view from a new HELLO
    if (lane->phase == Lane::Phase::kHello || lane->phase == Lane::Phase::kPending)
      lanes_.drop(lane, "ranks were lost while it formed the run", now);
  }
}

void Failover::move_key(KeyRecord* record, const std::vector<bool>& moved, double now) {
  std::vector<std::pair<Round*, std::vector<uint32_t>>> loose;
  for (const auto& [number, round] : record->rounds) {
    loose.emplace_back(round.get(), remove_shares(round.get(), moved));
  }
  forget_streams(record, moved);
  begin_streams(record, moved);
  for (const auto& [round, chunks] : loose) add_shares(round, chunks);
  for (const auto& entry : record->lanes) {
    if (!moved[entry->home]) continue;
    entry->recount();
    positions_.advance_done(entry.get());
    positions_.mark_changed(entry.get());
  }
  for (const auto& [number, round] : record->rounds) {
    if (!round->over) continue;
    for (uint32_t home = 0; home < moved.size(); ++home) {
      if (!moved[home]) continue;
      for (Lane* lane : current_route_.lanes_of_home(home)) {
        if (lane->usable()) rounds_.queue_abandon(*round, lane, home, now);
      }
    }
  }
}

// Removes the round's shares of moved streams. Returns their chunks that are not stable, ascending.
std::vector<uint32_t> Failover::remove_shares(Round* round, const std::vector<bool>& moved) {
  std::vector<uint32_t> loose;
  std::vector<std::unique_ptr<Share>> kept;
  for (auto& share : round->shares) {
    if (!moved[share->home]) {
      kept.push_back(std::move(share));
      continue;
    }
    for (size_t i = 0; i < share->chunks.size(); ++i) {
      const uint32_t index = share->chunks[i];
      Chunk& chunk = round->chunks[index];
      rounds_.settle(round, index);
      chunk.share = kNoShare;
      chunk.asked = false;
      if (i < share->freed) continue;
      if (chunk.state == Chunk::State::kSent && !round->over) chunk.state = Chunk::State::kReady;
      loose.push_back(index);
    }
  }
  round->shares = std::move(kept);
  for (uint32_t at = 0; at < round->shares.size(); ++at) {
    for (const uint32_t index : round->shares[at]->chunks) round->chunks[index].share = at;
  }
  std::sort(loose.begin(), loose.end());
  return loose;
}

void Failover::add_shares(Round* round, const std::vector<uint32_t>& chunks) {
  const size_t before = round->shares.size();
  rounds_.cut_shares(round, chunks);
  for (size_t at = before; at < round->shares.size(); ++at) {
    Share* share = round->shares[at].get();
    share->key_lane = rounds_.key_lane(round->key, share->lane, share->home, round->number);
    share->key_lane->shares.push_back(share);
    share->advance();
  }
  round->unstable =
      static_cast<size_t>(std::count_if(round->shares.begin(), round->shares.end(),
                                        [](const auto& share) { return !share->all_freed(); }));
}

void Failover::forget_streams(KeyRecord* record, const std::vector<bool>& moved) {
  const auto goes = [&](const auto& entry) { return moved[entry->home]; };
  for (const auto& entry : record->lanes) {
    if (!goes(entry)) continue;
    entry->lane->unreported_cost -= entry->unreported_cost;
    auto& changed = entry->lane->changed;
    if (entry->listed) changed.erase(std::find(changed.begin(), changed.end(), entry.get()));
  }
  auto& lanes = record->lanes;
  lanes.erase(std::remove_if(lanes.begin(), lanes.end(), goes), lanes.end());
}

// Creates the records of moved streams on all lanes of their new home, even without a share there:
// this rank may have to report `done` for results that other ranks still miss.
void Failover::begin_streams(KeyRecord* record, const std::vector<bool>& moved) {
  for (uint32_t home = 0; home < moved.size(); ++home) {
    if (!moved[home]) continue;
    for (Lane* lane : current_route_.lanes_of_home(home)) rounds_.add_stream(record, lane, home);
  }
}

// Rebuilds the send queues of one lane, or of all lanes if `only` is null, in the order of priority
// and submission.
void Failover::rebuild_queues(const Lane* only) {
  const auto concerned = [only](const Lane* lane) { return only == nullptr || only == lane; };
  for (Lane* lane : lanes_.all()) {
    if (!concerned(lane)) continue;
    lane->queue.clear();
    lane->undescribed.clear();
    lane->granted = {};
  }
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& entry : record->lanes) {
      if (!concerned(entry->lane)) continue;
      for (Share* share : entry->shares) {
        if (share->all_sent()) continue;
        entry->lane->queue.push_back({record->rounds.at(share->round->number), share});
      }
    }
  }
  for (Lane* lane : lanes_.all()) {
    if (!concerned(lane)) continue;
    std::sort(lane->queue.begin(), lane->queue.end(),
              [](const Lane::Queued& a, const Lane::Queued& b) {
                if (a.round->priority != b.round->priority) {
                  return a.round->priority > b.round->priority;
                }
                if (a.round->order != b.round->order) return a.round->order < b.round->order;
                return a.share->home < b.share->home;
              });
    for (const Lane::Queued& entry : lane->queue) {
      if (entry.share->sent == 0 && entry.share->chunks.front() == 0) {
        lane->undescribed.push_back(entry);
      }
      const bool granted = lane->has_grant && entry.round->key->id == lane->granted_key &&
                           entry.round->number == lane->granted_round &&
                           entry.share->home == lane->granted_home;
      if (granted) lane->granted = entry;
    }
    lanes_.kick(lane);
  }
}

void Failover::reset_connection(Lane* lane) {
  lane->control.clear();
  lane->has_grant = false;
  lane->granted = {};
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& entry : record->lanes) {
      if (entry->lane != lane) continue;
      for (Share* share : entry->shares) reset_share(share);
      entry->recount();
      entry->announced = false;
      positions_.mark_reported(entry.get());
      entry->reported = 0;
      positions_.mark_changed(entry.get());
    }
  }
  lane->resends = true;
  if (run_.joined) rebuild_queues(lane);
}

// Marks unanswered chunks to be sent again, in order. They stay charged, because the lane may have
// received them.
void Failover::reset_share(Share* share) {
  for (size_t i = share->freed; i < share->chunks.size(); ++i) {
    Chunk& chunk = share->chunk(i);
    if (chunk.charge == Chunk::Charge::kNone) continue;
    chunk.state = Chunk::State::kReady;
    share->sent = std::min(share->sent, i);
  }
}

void Failover::resend_control(Lane* lane, double now) {
  current_route_.queue_route(lane);
  if (lane->stats_waiting) {
    lanes_.queue_frame(lane, {kStats}, {});
  }
  if (!lane->usable()) return;
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& [number, round] : record->rounds) {
      if (!round->over) continue;
      for (uint32_t home = 0; home < current_route_.route().slots(); ++home) {
        if (current_route_.carries(*lane, home)) rounds_.queue_abandon(*round, lane, home, now);
      }
    }
  }
  positions_.queue_heartbeat(lane, now);
  lanes_.kick(lane);
}

Lane* Failover::want(uint32_t reducer, uint32_t number) {
  Lane* lane = lanes_.want(reducer, number);
  // The lane was closed while the reducer had fewer lanes.
  if (run_.joined && lane->phase == Lane::Phase::kClosed) open_again(lane);
  return lane;
}

void Failover::open_again(Lane* lane) {
  const bool left = run_.leaving && rounds_.live_rounds() == 0;
  const bool gone = run_.joined && lane->number >= lanes_.reducer_of(*lane).count;
  if (left || gone) {
    lane->phase = Lane::Phase::kClosed;
  } else {
    lanes_.open(lane);
  }
}

}  // namespace ors
