#include "protocol/positions.h"

#include <algorithm>
#include <map>

namespace ors {
namespace {

// Shorter than the time after which a lane forgets an idle key's name.
constexpr double kNameLastsSeconds = 1.0;

}  // namespace

void Positions::queue_key(KeyLane* entry, double now) {
  if (entry->named(now, kNameLastsSeconds)) return;
  entry->announced = true;
  entry->used_at = now;
  Header header;
  header.kind = kKey;
  header.epoch = current_route_.epoch();
  header.route = current_route_.route().since[entry->home];
  header.chunk = entry->home;
  header.key = entry->key->id;
  lanes_.queue_frame(entry->lane, header, encode_key(entry->key->name));
}

void Positions::advance_unsent(KeyLane* entry) {
  auto& at = entry->first_unsent;
  while (at < entry->shares.size() && entry->shares[at]->all_sent()) {
    Lane* lane = entry->lane;
    if (lane->granted.share == entry->shares[at]) lane->granted = {};
    ++at;
  }
}

void Positions::advance_done(KeyLane* entry) {
  auto& at = entry->first_unheld;
  while (at < entry->shares.size() && entry->shares[at]->all_held()) ++at;
  uint64_t done = entry->done;
  if (at == entry->shares.size()) {
    // This rank holds all that it has submitted.
    if (at > 0 || done == 0) done = std::max(done, position(entry->key->next_round, 0));
  } else {
    const Share& share = *entry->shares[at];
    done = std::max(done, position(share.round->number, share.chunks[share.prefix]));
  }
  if (done == entry->done) return;
  entry->done = done;
  mark_changed(entry);
}

// Advances `done` over an abandoned round if this rank holds all earlier rounds. Needed on lanes
// that own no chunk of the round, where no result would advance `done`.
void Positions::pass(KeyLane* entry, uint64_t round) {
  const auto& shares = entry->shares;
  auto& at = entry->first_unheld;
  while (at < shares.size() && shares[at]->all_held()) ++at;
  const uint64_t done = position(round + 1, 0);
  if (at < shares.size() || done <= entry->done) return;
  entry->done = done;
  mark_changed(entry);
}

void Positions::mark_changed(KeyLane* entry) {
  if (entry->listed) return;
  entry->listed = true;
  entry->lane->changed.push_back(entry);
}

void Positions::mark_reported(KeyLane* entry) {
  entry->reported = entry->done;
  entry->lane->unreported_cost -= entry->unreported_cost;
  entry->unreported_cost = 0;
}

// Queues HEARTBEAT frames with the changed positions, one frame per home slot; an empty one if
// nothing changed.
void Positions::queue_heartbeat(Lane* lane, double now) {
  std::map<uint32_t, std::string> streams;
  auto& changed = lane->changed;
  for (size_t entries = 0; !changed.empty() && entries < kMaxHeartbeatEntries; ++entries) {
    KeyLane* entry = changed.back();
    changed.pop_back();
    entry->listed = false;
    if (entry->done == entry->reported) continue;
    uint8_t pair[16];
    store(pair, entry->key->id);
    store(pair + 8, entry->done);
    streams[entry->home].append(reinterpret_cast<const char*>(pair), sizeof pair);
    mark_reported(entry);
  }
  lane->last_heartbeat = now;
  Header header;
  header.kind = kHeartbeat;
  header.epoch = current_route_.epoch();
  if (streams.empty()) lanes_.queue_frame(lane, header, {});
  for (const auto& [home, payload] : streams) {
    header.chunk = home;
    header.route = current_route_.route().since[home];
    lanes_.queue_frame(lane, header, payload);
  }
}

// Queues a heartbeat now, unless frames are still waiting.
void Positions::maybe_heartbeat(Lane* lane, double now) {
  if (lane->usable() && !lane->changed.empty() && lane->control.empty()) queue_heartbeat(lane, now);
}

void Positions::keep_alive(Lane* lane, double now) {
  if (lane->phase != Lane::Phase::kPending && !lane->welcomed()) return;
  if (run_.over() || run_.bye_queued || !lane->control.empty()) return;
  const bool quiet = now - lane->last_sent >= run_.heartbeat;
  const bool news = !lane->changed.empty() && now - lane->last_heartbeat >= run_.heartbeat;
  if (news && lane->usable()) {
    queue_heartbeat(lane, now);
  } else if (quiet) {
    Header header;
    header.kind = kHeartbeat;
    header.epoch = current_route_.epoch();
    lanes_.queue_frame(lane, header, {});
  }
}

}  // namespace ors
