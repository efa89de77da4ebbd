#include "protocol/sending.h"

#include <algorithm>

namespace ors {
namespace {

// Limit of the unanswered bytes that one round may have in flight on one lane: the larger of this
// number of bytes and this number of chunks. More bytes would only wait in network queues, in front
// of chunks that other ranks wait for. The limit cannot deadlock ranks that started with different
// rounds, because it holds for each round separately (the lane's credit limits all rounds
// together): the rank that has not sent a round's lowest open chunk has nothing of that round in
// flight, so it is below the limit.
constexpr uint64_t kRoundInFlight = 512 << 10;
constexpr uint64_t kRoundInFlightChunks = 4;
// The same if the reducers have different weights. This is the limit of the heaviest reducers; that
// of the others is smaller, in proportion. All reducers then get their chunks at the rates of their
// shares. With larger limits, the chunks of light reducers fill the queues of the NICs first, and
// the heavy reducers wait. (4 workers with hosted reducers and 2 dedicated ones, 300 Mbit/s, least
// time 1.254 N/BW: 1.265 with this limit, 1.310 with 512 KiB, 1.626 with 1 MiB, and 1.645 with 512
// KiB for every reducer.)
constexpr uint64_t kWeightedInFlight = 256 << 10;

}  // namespace

std::optional<ChunkToCopy> Sending::fill(Lane* lane, double now, OutgoingBatch* batch) {
  const auto more = [&] { return !run_.over() && run_.joined && lane->usable() && batch->room(); };
  const Share* uncopied = nullptr;
  while (more()) {
    bool on_grant = false;
    Share* share = lane->control.empty() ? next_share(lane, &on_grant) : nullptr;
    if (share != nullptr && share->to_copy()) {
      uncopied = share;
      break;
    }
    if (share != nullptr) positions_.queue_key(share->key_lane, now);
    if (!lane->control.empty()) {
      batch->add(std::move(lane->control.front()));
      lane->control.pop_front();
    } else if (share != nullptr) {
      send_next(lane, share, on_grant, now, batch);
    } else {
      break;
    }
  }
  if (uncopied == nullptr && more()) describe_waiting(lane, now);
  // Before the join and after the end, only control frames are sent.
  while (!lane->control.empty() && batch->room()) {
    batch->add(std::move(lane->control.front()));
    lane->control.pop_front();
  }
  if (!batch->empty()) lane->last_sent = now;
  if (!batch->empty() || uncopied == nullptr) return std::nullopt;
  const auto& rounds = uncopied->key_lane->key->rounds;
  return ChunkToCopy{rounds.at(uncopied->round->number), uncopied->chunks[uncopied->sent]};
}

// Returns the share whose next chunk may be sent now. First come retransmits after an ended
// connection, which are charged already; then the granted round; then rounds by priority and
// submission, within the credit. Chunks of one key are sent to a lane in order, so later shares of
// the key wait.
Share* Sending::next_share(Lane* lane, bool* on_grant) {
  const auto sendable = [](const Share* share) {
    const KeyLane* entry = share->key_lane;
    const bool can_be = share->ready() || share->to_copy();
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
  const uint32_t slot = lanes_.reducer_of(*lane).slot;
  const auto below_limit = [&](const Share* share) {
    const uint64_t least = current_route_.weights().empty() ? kRoundInFlight : kWeightedInFlight;
    const uint64_t chunks = kRoundInFlightChunks * share->round->plan.chunk_bytes();
    const uint64_t limit = current_route_.part_of(slot, std::max(least, chunks));
    return share->unanswered + cost(share) <= std::max(limit, cost(share));
  };
  for (const Lane::Queued& queued : queue) {
    if (!sendable(queued.share)) continue;  // sent on a grant, or not copied yet
    if (!below_limit(queued.share)) continue;
    *on_grant = false;
    return lane->credit.fits(cost(queued.share)) ? queued.share : nullptr;
  }
  return nullptr;
}

// The header of a CONTRIBUTION or DESCRIBE frame.
Header Sending::round_header(const Round& round, uint32_t chunk, uint8_t kind) const {
  const Descriptor& d = round.descriptor;
  Header header;
  header.kind = kind;
  header.dtype = d.dtype;
  header.op = d.op;
  header.collective = d.collective;
  header.flags = d.wide ? kWide : 0;
  header.rank = static_cast<uint16_t>(run_.options.rank);
  header.root = d.root;
  header.epoch = current_route_.epoch();
  header.route = current_route_.route().since[current_route_.owners().home(round.key->id, chunk)];
  header.chunk = chunk;
  header.key = round.key->id;
  header.round = round.number;
  header.count = d.count;
  return header;
}

// Sends DESCRIBE for rounds whose chunk 0 waits for credit or behind other rounds, so that the
// reducer can detect mismatches between ranks now.
void Sending::describe_waiting(Lane* lane, double now) {
  auto& waiting = lane->undescribed;
  for (size_t left = waiting.size(); left > 0; --left) {
    const Lane::Queued entry = std::move(waiting.front());
    waiting.pop_front();
    if (entry.share->sent > 0) continue;
    const bool copying = !entry.share->ready() && entry.round->source == nullptr;
    if (copying) {  // chunk 0 may be sent very soon
      waiting.push_back(entry);
      continue;
    }
    positions_.queue_key(entry.share->key_lane, now);
    lanes_.queue_frame(lane, round_header(*entry.round, 0, kDescribe), {});
  }
}

void Sending::send_next(Lane* lane, Share* share, bool on_grant, double now, OutgoingBatch* batch) {
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
  if (chunk.held && chunk.origin) {
    header.flags |= kHeld | chunk.origin->flags;
    header.stable = chunk.origin->epoch | uint64_t{chunk.origin->culprit} << 32;
  }
  header.length = chunk.length;
  header.payload_crc = chunk.crc;
  batch->add(header, chunk.copy);
  entry->used_at = now;
  positions_.mark_reported(entry);
  share->advance();
  positions_.advance_unsent(entry);
}

void Sending::on_grant(Lane* lane, const Header& header) {
  uint32_t home = 0;
  if (!current_route_.current(*lane, header, &home)) return;
  lane->has_grant = true;
  lane->granted_key = header.key;
  lane->granted_round = header.round;
  lane->granted_home = home;
  lane->granted = {};
  const KeyRecord* key = keys_.find(header.key);
  if (key == nullptr) return;
  const auto found = key->rounds.find(header.round);
  if (found == key->rounds.end()) return;
  for (const auto& share : found->second->shares) {
    if (share->lane == lane && share->home == home && !share->all_sent()) {
      lane->granted = {found->second, share.get()};
    }
  }
  lanes_.kick(lane);
}

}  // namespace ors
