// Routes, and the streams that they move (PROTOCOL.md, section 11).
//
// Law: after apply_route() nothing of a stream that moved is left: no share, position or charge.
// What of it is not stable is sent to its new owner, whether this rank holds its result or not.
#include <algorithm>

#include "protocol/state.h"

namespace ors {

std::optional<Failure> State::on_route(Lane* lane, std::string_view payload, double now) {
  Route route;
  if (const char* wrong = decode_route(payload, &route)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad ROUTE: ") + wrong);
  }
  lane->route_known = std::max(lane->route_known, route.number);
  return learn_route(route, *lane, now);
}

std::optional<Failure> State::learn_route(const Route& route, const Lane& from, double now) {
  if (route.number <= route_.number) return std::nullopt;
  if (route.slots() != reducers_.size()) {
    return lane_failure(ErrorCode::kProtocol, from,
                        "names a route of " + std::to_string(route.slots()) + " slots, expected " +
                            std::to_string(reducers_.size()));
  }
  if (options_.rank == 0) {
    return lane_failure(
        ErrorCode::kProtocol, from,
        "names route " + std::to_string(route.number) + ", which rank 0 never made");
  }
  apply_route(route, now);
  return std::nullopt;
}

// Before the first frame under it.
void State::tell_route(Lane* lane) {
  if (!lane->welcomed() || lane->route_known >= route_.number) return;
  lane->route_known = route_.number;
  Header header;
  header.kind = kRoute;
  queue_frame(lane, header, encode_route(route_));
}

void State::apply_route(const Route& route, double now) {
  std::vector<bool> moved(route.slots());
  for (uint32_t slot = 0; slot < route.slots(); ++slot) {
    moved[slot] = route.since[slot] != route_.since[slot];
  }
  route_ = route;
  owners_ = Owners(route_);
  for (Reducer& reducer : reducers_) {
    const auto index = static_cast<uint32_t>(&reducer - reducers_.data());
    const uint32_t lanes = live(reducer) ? route_.lanes_by_slot[reducer.slot] : 0;
    reducer.count = std::max(reducer.count, lanes);
    for (uint32_t number = 0; number < lanes; ++number) want(index, number);
    if (!moved[reducer.slot]) continue;
    for (const auto& lane : reducer.lanes) {
      bind(lane.get());
      if (lane->welcomed() || !live(reducer)) lane->suspicion.clear();
      if (live(reducer) && lane->lost_at >= 0) lane->lost_at = now;  // a new chance
    }
    reducer.blocked_at = -1;
  }
  for (Lane* lane : all_lanes_) {
    tell_route(lane);
    if (lane->receiving != nullptr &&
        moved[owners_.home(lane->receiving->key->id, lane->receiving_chunk)]) {
      lane->receiving.reset();
      lane->receiver.discard();
    }
    if (lane->has_grant && moved[lane->granted_home]) lane->has_grant = false;
  }
  revive_keys(now);
  for (const auto& [id, record] : keys_) move_key(record.get(), moved, now);
  rebuild_queues(nullptr);
  for (Lane* lane : all_lanes_) {
    if (lane->usable()) maybe_heartbeat(lane, now);
  }
}

// Keys that this rank has just forgotten may be unstable to others: they need its `done` anew.
void State::revive_keys(double now) {
  for (const auto& [at, id] : recent_) {
    auto& record = keys_[id];
    if (record != nullptr) continue;
    record = std::make_unique<KeyRecord>();
    record->id = id;
    record->next_round = forgotten_.get(id);
    record->idle_since = now;
    idle_keys_.emplace_back(now, id);
  }
}

void State::move_key(KeyRecord* record, const std::vector<bool>& moved, double now) {
  std::vector<std::pair<Round*, std::vector<uint32_t>>> loose;
  for (const auto& [number, round] : record->rounds) {
    loose.emplace_back(round.get(), take_out(round.get(), moved));
  }
  forget_streams(record, moved);
  begin_streams(record, moved);
  for (const auto& [round, chunks] : loose) put_in(round, chunks);
  for (const auto& entry : record->lanes) {
    if (!moved[entry->home]) continue;
    entry->recount();
    advance_done(entry.get());
    mark_changed(entry.get());
  }
  for (const auto& [number, round] : record->rounds) {
    if (!round->over) continue;
    for (uint32_t home = 0; home < moved.size(); ++home) {
      if (!moved[home]) continue;
      for (Lane* lane : lanes_of_home(home)) {
        if (lane->usable()) tell_abandoned(*round, lane, home, now);
      }
    }
  }
}

// Takes a round's shares of streams that move away from their lanes; returns what of them is not
// stable, ascending.
std::vector<uint32_t> State::take_out(Round* round, const std::vector<bool>& moved) {
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
      settle(round, index);
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

void State::put_in(Round* round, const std::vector<uint32_t>& chunks) {
  const size_t before = round->shares.size();
  cut_shares(round, chunks);
  for (size_t at = before; at < round->shares.size(); ++at) {
    Share* share = round->shares[at].get();
    share->key_lane = key_lane(round->key, share->lane, share->home, round->number);
    share->key_lane->shares.push_back(share);
    share->advance();
  }
  round->unstable =
      static_cast<size_t>(std::count_if(round->shares.begin(), round->shares.end(),
                                        [](const auto& share) { return !share->all_freed(); }));
}

void State::forget_streams(KeyRecord* record, const std::vector<bool>& moved) {
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

// On every lane that may own a chunk of them: this rank may hold what others send there again.
void State::begin_streams(KeyRecord* record, const std::vector<bool>& moved) {
  for (uint32_t home = 0; home < moved.size(); ++home) {
    if (!moved[home]) continue;
    for (Lane* lane : lanes_of_home(home)) {
      auto fresh = std::make_unique<KeyLane>();
      fresh->lane = lane;
      fresh->key = record;
      fresh->home = home;
      record->lanes.push_back(std::move(fresh));
    }
  }
}

std::vector<Lane*> State::lanes_of_home(uint32_t home) {
  std::vector<Lane*> lanes;
  for (uint32_t slot = 0; slot < route_.slots(); ++slot) {
    if (route_.live[slot] == 0 || (route_.live[home] != 0 && slot != home)) continue;
    for (uint32_t number = 0; number < route_.lanes_by_slot[slot]; ++number) {
      lanes.push_back(at_slot(slot).lanes[number].get());
    }
  }
  return lanes;
}

// Whether the lane has the stream of this home slot.
bool State::carries(const Lane& lane, uint32_t home) const {
  const Reducer& reducer = reducers_[lane.reducer];
  if (!live(reducer) || lane.number >= route_.lanes_by_slot[reducer.slot]) return false;
  return home == reducer.slot || route_.live[home] == 0;
}

// Whether a frame is of a stream that is still where it was; and of which home slot.
bool State::current(const Lane& lane, const Header& header, uint32_t* home) const {
  *home = header.chunk;
  return *home < route_.slots() && carries(lane, *home) && header.route == route_.since[*home];
}

// What waits for its turn, in the order of submission and priority: of one lane or of all.
void State::rebuild_queues(const Lane* only) {
  const auto concerned = [only](const Lane* lane) { return only == nullptr || only == lane; };
  for (Lane* lane : all_lanes_) {
    if (!concerned(lane)) continue;
    lane->queue.clear();
    lane->undescribed.clear();
    lane->granted = {};
  }
  for (const auto& [id, record] : keys_) {
    for (const auto& entry : record->lanes) {
      if (!concerned(entry->lane)) continue;
      for (Share* share : entry->shares) {
        if (share->all_sent()) continue;
        entry->lane->queue.push_back({record->rounds.at(share->round->number), share});
      }
    }
  }
  for (Lane* lane : all_lanes_) {
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
    kick(lane);
  }
}

}  // namespace ors
