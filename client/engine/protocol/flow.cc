// What may be sent, and in which order; the positions done and stable (PROTOCOL.md, 7 and 8).
#include <algorithm>
#include <map>
#include <set>

#include "codec/crc.h"
#include "protocol/state.h"

namespace ors {
namespace {

// Shorter than the time after which a lane forgets an idle key's name.
constexpr double kNameLastsSeconds = 1.0;

// What a round may have unanswered on one lane, in bytes and in chunks: more of it only waits in
// queues on the way, before the chunks that others wait for. It binds no other round, so it cannot
// tie ranks that began with different rounds (their room is the lane's credit): the rank that lacks
// a round's lowest open chunk has nothing of that round unanswered.
constexpr uint64_t kRoundWindow = 512 << 10;
constexpr uint64_t kRoundWindowChunks = 4;

// Between two ticks: this process was stopped, or starved. Ten times what the loop lets pass.
constexpr double kLateTick = 0.5;

}  // namespace

void State::kick(Lane* lane) {
  if (lane->kicked) return;
  kicked_.push_back(lane);
  lane->kicked = true;
}

void State::forget_kicked() {
  for (Lane* lane : kicked_) lane->kicked = false;
  kicked_.clear();
}

void State::queue_frame(Lane* lane, const Header& header, std::string_view payload) {
  Header whole = header;
  whole.length = static_cast<uint32_t>(payload.size());
  whole.payload_crc = payload.empty() ? 0 : crc32c(payload.data(), payload.size());
  std::string frame(kHeaderSize, '\0');
  pack_header(whole, reinterpret_cast<uint8_t*>(frame.data()));
  frame.append(payload);
  lane->control.push_back(std::move(frame));
  kick(lane);
}

void State::queue_key(KeyLane* entry, double now) {
  if (entry->named(now, kNameLastsSeconds)) return;
  entry->announced = true;
  entry->used_at = now;
  Header header;
  header.kind = kKey;
  header.route = route_.since[entry->home];
  header.chunk = entry->home;
  header.key = entry->key->id;
  queue_frame(entry->lane, header, encode_key(entry->key->name));
}

// --- sending ---

void State::fill(Lane* lane, double now) {
  Sender& sender = lane->sender;
  bool added = false;
  bool staging = false;
  while (!failure_ && joined_ && lane->usable() && sender.room()) {
    bool on_grant = false;
    Share* share = lane->control.empty() ? next_share(lane, &on_grant) : nullptr;
    staging = share != nullptr && share->to_stage();
    if (staging) break;
    if (share != nullptr) queue_key(share->key_lane, now);
    if (!lane->control.empty()) {
      sender.add(std::move(lane->control.front()));
      lane->control.pop_front();
    } else if (share != nullptr) {
      send_next(lane, share, on_grant, now);
    } else {
      break;
    }
    added = true;
  }
  if (!staging && !failure_ && joined_ && lane->usable() && sender.room()) {
    describe_waiting(lane, now);
  }
  // Before the join, and for the last words, there are only control frames.
  while (!lane->control.empty() && sender.room()) {
    sender.add(std::move(lane->control.front()));
    lane->control.pop_front();
    added = true;
  }
  if (added) lane->last_sent = now;
}

// The next share whose next chunk may go now: first what a lost connection had without an answer,
// whose room is taken already; then the granted round, then by priority and order
// of submission under the credit. Never one whose key has an earlier chunk for this lane.
Share* State::next_share(Lane* lane, bool* on_grant) {
  const auto sendable = [](const Share* share) {
    const KeyLane* entry = share->key_lane;
    const bool can_be = share->ready() || share->to_stage();
    return can_be && entry->shares[entry->first_unsent] == share;
  };
  const auto cost = [](const Share* share) {
    return share->round->plan.cost(share->chunks[share->sent]);
  };
  auto& queue = lane->queue;
  while (!queue.empty() && queue.front().share->all_sent()) queue.pop_front();
  if (lane->resends) {
    for (const Lane::Queued& queued : queue) {
      if (sendable(queued.share) && queued.share->next_is_charged()) return queued.share;
    }
    lane->resends = false;
  }
  Share* granted = lane->granted.share;
  if (granted != nullptr && sendable(granted) && lane->grant.fits(cost(granted))) {
    *on_grant = true;
    return granted;
  }
  const auto in_window = [](const Share* share) {
    const uint64_t window =
        std::max(kRoundWindow, kRoundWindowChunks * share->round->plan.chunk_bytes());
    return share->unanswered < window;
  };
  for (const Lane::Queued& queued : queue) {
    if (!sendable(queued.share)) continue;  // sent on a grant, or its submitter still copies
    if (!in_window(queued.share)) continue;
    *on_grant = false;
    return lane->credit.fits(cost(queued.share)) ? queued.share : nullptr;
  }
  return nullptr;
}

std::optional<std::pair<RoundRef, uint32_t>> State::to_stage(Lane* lane) {
  if (failure_ || !lane->usable()) return std::nullopt;
  if (!lane->sender.empty() || !lane->control.empty()) return std::nullopt;
  bool on_grant = false;
  const Share* share = next_share(lane, &on_grant);
  if (share == nullptr || !share->to_stage()) return std::nullopt;
  const auto& rounds = share->key_lane->key->rounds;
  return std::pair(rounds.at(share->round->number), share->chunks[share->sent]);
}

// What a CONTRIBUTION or DESCRIBE of this rank says of a round.
Header State::round_header(const Round& round, uint32_t chunk, uint8_t kind) const {
  const Descriptor& d = round.descriptor;
  Header header;
  header.kind = kind;
  header.dtype = d.dtype;
  header.op = d.op;
  header.collective = d.collective;
  header.flags = d.wide ? kWide : 0;
  header.rank = static_cast<uint16_t>(options_.rank);
  header.root = d.root;
  header.epoch = epoch_;
  header.route = route_.since[owners_.home(round.key->id, chunk)];
  header.chunk = chunk;
  header.key = round.key->id;
  header.round = round.number;
  header.count = d.count;
  return header;
}

// Rounds whose chunk 0 must wait for credit, or behind others: the verdict on them need not.
void State::describe_waiting(Lane* lane, double now) {
  auto& waiting = lane->undescribed;
  for (size_t left = waiting.size(); left > 0; --left) {
    const Lane::Queued entry = std::move(waiting.front());
    waiting.pop_front();
    if (entry.share->sent > 0) continue;
    const bool copying = !entry.share->ready() && entry.round->source == nullptr;
    if (copying) {  // it may well be sent at once
      waiting.push_back(entry);
      continue;
    }
    queue_key(entry.share->key_lane, now);
    queue_frame(lane, round_header(*entry.round, 0, kDescribe), {});
  }
}

void State::send_next(Lane* lane, Share* share, bool on_grant, double now) {
  Round* round = share->round;
  const uint32_t index = share->chunks[share->sent];
  Chunk& chunk = round->chunks[index];
  if (chunk.sent_before) ++resent_;
  chunk.state = Chunk::State::kSent;
  chunk.asked = chunk.sent_before = true;
  if (round->moments.first_sent == 0) round->moments.first_sent = now;
  if (round->moments.first_result == 0) round->moments.last_sent = now;
  if (chunk.charge == Chunk::Charge::kNone) {
    chunk.charge = on_grant ? Chunk::Charge::kGrant : Chunk::Charge::kCredit;
    const uint64_t cost = round->plan.cost(index);
    (on_grant ? lane->grant : lane->credit).used += cost;
    share->unanswered += cost;
  }
  unanswered_max_ = std::max(unanswered_max_, lane->credit.used + lane->grant.used);
  KeyLane* entry = share->key_lane;
  Header header = round_header(*round, index, kContribution);
  header.done = entry->done;
  header.length = chunk.length;
  header.payload_crc = chunk.crc;
  lane->sender.add(header, chunk.staging);
  entry->used_at = now;
  mark_reported(entry);
  share->advance();
  advance_unsent(entry);
}

void State::advance_unsent(KeyLane* entry) {
  auto& at = entry->first_unsent;
  while (at < entry->shares.size() && entry->shares[at]->all_sent()) {
    Lane* lane = entry->lane;
    if (lane->granted.share == entry->shares[at]) lane->granted = {};
    ++at;
  }
}

void State::on_grant(Lane* lane, const Header& header) {
  uint32_t home = 0;
  if (!current(*lane, header, &home)) return;
  lane->has_grant = true;
  lane->granted_key = header.key;
  lane->granted_round = header.round;
  lane->granted_home = home;
  lane->granted = {};
  const auto key = keys_.find(header.key);
  if (key == keys_.end()) return;
  const auto found = key->second->rounds.find(header.round);
  if (found == key->second->rounds.end()) return;
  for (const auto& share : found->second->shares) {
    if (share->lane == lane && share->home == home && !share->all_sent()) {
      lane->granted = {found->second, share.get()};
    }
  }
  kick(lane);
}

// --- done and stable ---

void State::advance_done(KeyLane* entry) {
  auto& at = entry->first_unheld;
  while (at < entry->shares.size() && entry->shares[at]->all_held()) ++at;
  uint64_t done = entry->done;
  if (at == entry->shares.size()) {
    // Nothing that was submitted is missing here.
    if (at > 0 || done == 0) done = std::max(done, position(entry->key->next_round, 0));
  } else {
    const Share& share = *entry->shares[at];
    done = std::max(done, position(share.round->number, share.chunks[share.prefix]));
  }
  if (done == entry->done) return;
  entry->done = done;
  mark_changed(entry);
}

// The rank has abandoned the round. Where none of its chunks was for this lane, no answer tells so.
void State::pass(KeyLane* entry, uint64_t round) {
  const auto& shares = entry->shares;
  auto& at = entry->first_unheld;
  while (at < shares.size() && shares[at]->all_held()) ++at;
  const uint64_t done = position(round + 1, 0);
  if (at < shares.size() || done <= entry->done) return;
  entry->done = done;
  mark_changed(entry);
}

void State::mark_changed(KeyLane* entry) {
  if (entry->listed) return;
  entry->listed = true;
  entry->lane->changed.push_back(entry);
}

void State::mark_reported(KeyLane* entry) {
  entry->reported = entry->done;
  entry->lane->unreported_cost -= entry->unreported_cost;
  entry->unreported_cost = 0;
}

void State::advance_stable(KeyLane* entry, uint64_t stable) {
  stable = std::min(stable, entry->done);  // nothing is stable that this rank does not hold
  if (stable <= entry->stable) return;
  entry->stable = stable;
  auto& shares = entry->shares;
  while (!shares.empty()) {
    Share* share = shares.front();
    Round* round = share->round;
    while (!share->all_freed() && position(round->number, share->chunks[share->freed]) < stable) {
      const uint32_t index = share->chunks[share->freed++];
      Chunk& chunk = round->chunks[index];
      settle(round, index);
      chunk.state = Chunk::State::kSent;  // nobody needs it again
      chunk.staging.reset();
    }
    share->advance();
    if (!share->all_freed()) break;
    shares.pop_front();
    if (entry->first_unheld > 0) --entry->first_unheld;
    if (entry->first_unsent > 0) --entry->first_unsent;
    if (entry->lane->granted.share == share) entry->lane->granted = {};
    if (--round->unstable == 0) retire(round);
  }
  advance_unsent(entry);
}

void State::on_heartbeat(Lane* lane, const Header& header, const uint8_t* payload) {
  uint32_t home = 0;
  if (header.length == 0 || !joined_ || !lane->usable()) return;
  if (!current(*lane, header, &home)) return;
  for (uint32_t at = 0; at < header.length; at += 16) {
    const auto key = keys_.find(load<uint64_t>(payload + at));
    if (key == keys_.end()) continue;
    KeyLane* entry = find_stream(*key->second, lane, home);
    if (entry != nullptr) advance_stable(entry, load<uint64_t>(payload + at + 8));
  }
}

// What has changed, a frame for each stream; at least one frame.
void State::queue_heartbeat(Lane* lane, double now) {
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
  header.epoch = epoch_;
  if (streams.empty()) queue_frame(lane, header, {});
  for (const auto& [home, payload] : streams) {
    header.chunk = home;
    header.route = route_.since[home];
    queue_frame(lane, header, payload);
  }
}

// At once, unless the last one has not even left.
void State::maybe_heartbeat(Lane* lane, double now) {
  if (lane->usable() && !lane->changed.empty() && lane->control.empty()) queue_heartbeat(lane, now);
}

// --- time and end ---

void State::tick(double now) {
  if (failure_) return;
  begin(now);
  if (ticked_at_ >= 0 && now - ticked_at_ > kLateTick) wake_up(now - ticked_at_, now);
  ticked_at_ = now;
  if (!joined_ && now - started_at_ >= options_.connect_timeout) return fail(not_joined());
  if (joined_ && !bye_queued_) {
    watch_lanes(now);
    watch_reducers(now);
    watch_ranks(now);
    decide(now);
  }
  for (Lane* lane : all_lanes_) maybe_beat(lane, now);
  forget_idle_keys(now);
  compare_digests(now);
  maybe_say_bye(now);
}

void State::maybe_beat(Lane* lane, double now) {
  if (lane->phase != Lane::Phase::kPending && !lane->welcomed()) return;
  if (failure_ || bye_queued_ || !lane->control.empty()) return;
  const bool quiet = now - lane->last_sent >= heartbeat_;
  const bool news = !lane->changed.empty() && now - lane->last_heartbeat >= heartbeat_;
  if (news && lane->usable()) {
    queue_heartbeat(lane, now);
  } else if (quiet) {
    Header header;
    header.kind = kHeartbeat;
    header.epoch = epoch_;
    queue_frame(lane, header, {});
  }
}

void State::leave(double now) {
  leaving_ = true;
  for (Lane* lane : all_lanes_) maybe_heartbeat(lane, now);
  maybe_say_bye(now);
}

// Rank 0 goes last: while others are at work, somebody must be able to make routes.
void State::maybe_say_bye(double now) {
  if (!leaving_ || bye_queued_ || failure_ || live_rounds_ > 0) return;
  if (stable_at_ < 0) stable_at_ = now;
  const bool waits =
      options_.rank == 0 && !others_have_left() && now - stable_at_ < options_.leave_wait;
  if (waits) return;
  bye_queued_ = true;
  Header header;
  header.kind = kBye;
  for (Lane* lane : all_lanes_) {
    if (lane->welcomed()) queue_frame(lane, header, {});
  }
}

// As far as any lane knows; a worker without any lane has nobody to wait for.
bool State::others_have_left() const {
  std::set<uint32_t> left = {options_.rank};
  bool connected = false;
  bool all = false;  // as a lane counts them, which names no more than a list can hold
  for (const Lane* lane : all_lanes_) {
    connected = connected || lane->welcomed();
    all = all || lane->absence.left_count + 1 >= options_.world_size;
    left.insert(lane->absence.left.begin(), lane->absence.left.end());
  }
  return !connected || all || left.size() >= options_.world_size;
}

}  // namespace ors
