#include "protocol/rounds.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "protocol/messages.h"

namespace ors {
namespace {

void enqueue(std::deque<Lane::Queued>* queue, Lane::Queued entry) {
  auto place = queue->end();
  while (place != queue->begin() && std::prev(place)->round->priority < entry.round->priority) {
    --place;
  }
  queue->insert(place, std::move(entry));
}

bool is(const KeyLane& entry, const Lane* lane, uint32_t home) {
  return entry.lane == lane && entry.home == home;
}

using Streams = std::vector<std::unique_ptr<KeyLane>>;

// Returns where the stream is, or where it is to be inserted. A job of 25 reducers with 16 lanes
// has 400 streams of one key, and each round looks for all of them.
Streams::const_iterator place_of(const Streams& streams, const Lane& lane, uint32_t home) {
  const auto rank = [](const Lane& on, uint32_t slot) {
    return std::tuple(slot, on.reducer, on.number);
  };
  return std::partition_point(streams.begin(), streams.end(), [&](const auto& entry) {
    return rank(*entry->lane, entry->home) < rank(lane, home);
  });
}

}  // namespace

std::optional<Failure> Rounds::open(const Submission& s, double now, RoundRef* out) {
  Failure failure;
  failure.key = s.key;
  auto plan =
      ChunkPlan::make(s.descriptor, run_.options.world_size, run_.chunk_table, &failure.message);
  if (!plan) {
    failure.code = ErrorCode::kQuota;
    return failure;
  }
  KeyRecord* record = nullptr;
  if (auto collision = keys_.record(s.key, now, &record)) return collision;
  auto round = std::make_shared<Round>(s.descriptor, *plan);
  round->key = record;
  round->key_id = record->id;
  round->number = record->next_round;
  round->target = s.target;
  round->moments.submitted = now;
  round->priority = s.priority;
  round->stochastic = s.stochastic;
  round->order = submitted_;
  const bool in_place = s.source == s.target && s.descriptor.collective == kAllReduce;
  // A chunk with a residual is copied by the submitter, exactly once. Of two senders each could
  // copy it, if it moves to another lane.
  const uint64_t filled = s.words.slices == nullptr ? s.filled : 0;
  const bool fills = filled < s.descriptor.count;
  const bool later = (s.lent || in_place) && s.residual == nullptr && (plan->chunks() > 1 || fills);
  if (later) round->source = s.source;
  if (fills) round->filled = filled;
  round->part = s.part;
  round->gate = s.words.gate;
  round->operation = s.operation ? s.operation : std::make_shared<Operation>(s.key, s.notify);
  round->chunks.resize(plan->chunks());
  round->unanswered = plan->chunks();
  try {
    share_out(round);
    record->rounds.emplace(round->number, round);
  } catch (...) {
    undo_share_out(*round);
    throw;
  }
  // Nothing below can fail: the round is submitted.
  const bool small = plan->chunks() == 1 && plan->contribution_bytes(0) <= kSmallBytes &&
                     plan->result_bytes(0) <= kSmallBytes;
  round->operation->begin(round->number, small, round->shares.front()->lane->loop);
  last_used_ = now;
  ++record->next_round;
  ++submitted_;
  ++open_rounds_;
  ++live_rounds_;
  *out = std::move(round);
  return std::nullopt;
}

KeyLane* Rounds::find_stream(const KeyRecord& record, const Lane* lane, uint32_t home) {
  const auto at = place_of(record.lanes, *lane, home);
  return at != record.lanes.end() && is(**at, lane, home) ? at->get() : nullptr;
}

KeyLane* Rounds::add_stream(KeyRecord* record, Lane* lane, uint32_t home) {
  auto fresh = std::make_unique<KeyLane>(lane, record, home);
  return record->lanes.insert(place_of(record->lanes, *lane, home), std::move(fresh))->get();
}

KeyLane* Rounds::key_lane(KeyRecord* record, Lane* lane, uint32_t home, uint64_t round) {
  if (KeyLane* known = find_stream(*record, lane, home)) return known;
  KeyLane* fresh = add_stream(record, lane, home);
  // This rank holds all earlier rounds of the stream; otherwise the stream would still be here.
  fresh->done = fresh->reported = position(round, 0);
  return fresh;
}

// Assigns each of the chunks to a share of the lane that owns it. `chunks` ascend and have no
// share.
void Rounds::cut_shares(Round* round, const std::vector<uint32_t>& chunks) {
  std::vector<uint32_t> share_of(current_route_.owners().streams(), kNoShare);
  for (const uint32_t index : chunks) {
    const Place place = current_route_.owners().place(round->key->id, index);
    uint32_t& at = share_of[place.stream];
    if (at == kNoShare) {
      at = static_cast<uint32_t>(round->shares.size());
      round->shares.push_back(std::make_unique<Share>());
      Share& share = *round->shares.back();
      share.lane = current_route_.at_slot(place.slot).lanes[place.lane].get();
      share.round = round;
      share.home = place.home;
    }
    round->chunks[index].share = at;
    round->shares[at]->chunks.push_back(index);
  }
}

// Assigns the round's chunks to their lanes and queues them there, behind rounds of the same or a
// higher priority.
void Rounds::share_out(const RoundRef& round) {
  std::vector<uint32_t> chunks(round->chunks.size());
  std::iota(chunks.begin(), chunks.end(), 0u);
  cut_shares(round.get(), chunks);
  round->unstable = round->shares.size();
  for (const auto& owned : round->shares) {
    Share* share = owned.get();
    Lane* lane = share->lane;
    share->key_lane = key_lane(round->key, lane, share->home, round->number);
    share->key_lane->shares.push_back(share);
    if (round->source != nullptr) lanes_.kick(lane);
    enqueue(&lane->queue, {round, share});
    if (share->chunks.front() == 0) lane->undescribed.push_back({round, share});
    if (lane->has_grant && lane->granted_key == round->key->id &&
        lane->granted_round == round->number && lane->granted_home == share->home) {
      lane->granted = {round, share};
    }
  }
}

// Undoes a share_out() that ran out of memory halfway.
void Rounds::undo_share_out(const Round& round) {
  for (const auto& owned : round.shares) {
    const auto is_it = [&](const Lane::Queued& entry) { return entry.share == owned.get(); };
    for (auto* queue : {&owned->lane->queue, &owned->lane->undescribed}) {
      queue->erase(std::remove_if(queue->begin(), queue->end(), is_it), queue->end());
    }
    if (owned->lane->granted.share == owned.get()) owned->lane->granted = {};
    if (owned->key_lane == nullptr) continue;
    auto& shares = owned->key_lane->shares;
    if (!shares.empty() && shares.back() == owned.get()) shares.pop_back();
  }
}

const Lane* Rounds::ready(const RoundRef& round, uint32_t index, ChunkCopy copy) {
  Chunk& chunk = round->chunks[index];
  // A chunk that moved to another loop's lane while it was copied is copied twice: take the first.
  if (round->over || chunk.state != Chunk::State::kCopying) return nullptr;
  chunk.copy = std::move(copy.buffer);
  chunk.length = copy.length;
  chunk.crc = copy.crc;
  chunk.state = Chunk::State::kReady;
  Lane* lane = round->shares[chunk.share]->lane;
  lanes_.kick(lane);
  return lane;
}

void Rounds::fill(const Operation& operation, uint64_t elements) {
  const KeyRecord* key = keys_.find(key_id(operation.key()));
  if (key == nullptr) return;
  const auto found = key->rounds.find(operation.round());
  if (found == key->rounds.end() || found->second->operation.get() != &operation) return;
  fill(found->second.get(), elements);
}

void Rounds::fill(Round* round, uint64_t elements) {
  round->filled = std::max(round->filled, elements);
  for (const auto& share : round->shares) {
    if (share->to_copy()) lanes_.kick(share->lane);
  }
}

// A chunk is held. Tells the caller if a part of the result has arrived since the last sign.
void Rounds::progress(Round* round) {
  if (round->part == 0 || round->finished) return;
  const auto& chunks = round->chunks;
  uint32_t& open = round->first_open;
  while (open < chunks.size() && chunks[open].held) ++open;
  if (open == chunks.size()) return;  // finish() tells it
  const uint64_t arrived = round->plan.range(open).offset;
  Operation& operation = *round->operation;
  if (arrived - operation.arrived() < round->part) return;
  operation.arrive(arrived);
  if (on_progress) on_progress(round->operation);
}

void Rounds::let_go(Round* round) {
  if (--round->users == 0 && round->finished) give_back(round);
}

// Called when the chunk is answered, or when this rank no longer waits for the answer.
void Rounds::settle(Round* round, uint32_t index) {
  Chunk& chunk = round->chunks[index];
  if (chunk.charge == Chunk::Charge::kNone) return;
  Share& share = *round->shares[chunk.share];
  const uint64_t cost = round->plan.cost(index);
  (chunk.charge == Chunk::Charge::kGrant ? share.lane->grant : share.lane->credit).used -= cost;
  share.unanswered -= cost;
  chunk.charge = Chunk::Charge::kNone;
  lanes_.kick(share.lane);
}

void Rounds::finish(Round* round, std::optional<Failure> failure) {
  if (round->finished) return;
  round->finished = true;
  --open_rounds_;
  if ((round->flags & kNonFinite) != 0 && !failure) ++nonfinite_;
  if (digests_.on() && !run_.failure) digest_round(*round, !failure);
  round->failure = std::move(failure);
  if (round->users == 0) give_back(round);
}

// Whose contributions the result holds, in the order of its elements; nothing in a fixed run.
std::vector<SumSet> Rounds::sets_of(const Round& round) {
  std::vector<SumSet> sets;
  for (uint32_t index = 0; index < round.chunks.size(); ++index) {
    const auto& origin = round.chunks[index].origin;
    if (!origin) continue;
    if (sets.empty() || sets.back().epoch != origin->epoch) sets.push_back({0, origin->epoch});
    sets.back().elements += round.plan.range(index).elements;
  }
  return sets;
}

// Ends the operation: the memory is the caller's again.
void Rounds::give_back(Round* round) {
  if (round->gate != nullptr) {
    round->gate->store(round->failure ? DeviceWords::kFailed : DeviceWords::kDone,
                       std::memory_order_release);
  }
  round->source = round->target = nullptr;
  round->operation->finish(std::move(round->failure), round->flags, round->culprit,
                           sets_of(*round));
  if (on_finished) on_finished(round->operation);
  if (traced_) trace(*round, round->operation->failure());  // last: it may find no memory
}

void Rounds::trace(const Round& round, const std::optional<Failure>& failure) {
  RoundTrace found{round.operation->key(),      round.number,  round.plan.vector_bytes(),
                   round.descriptor.collective, round.moments, failure ? failure->message : ""};
  if (failure) found.moments.last_result = std::max(found.moments.last_result, run_.ticked_at);
  traces_.push_back(std::move(found));
}

// From now on all results of the round count as held (PROTOCOL.md, section 8). The record stays
// until the round is stable, because ABANDON may have to be sent again.
void Rounds::abandon(const RoundRef& round, const Failure& failure, double now) {
  if (round->over) return;
  round->over = true;
  round->verdict = failure;
  for (Lane* lane : lanes_.all()) {
    lanes_.discard(lane, [&](const Lane::Receiving& result) { return result.round == round; });
  }
  for (uint32_t index = 0; index < round->chunks.size(); ++index) {
    Chunk& chunk = round->chunks[index];
    settle(round.get(), index);
    chunk.held = true;
    chunk.state = Chunk::State::kSent;
    chunk.copy.reset();
  }
  finish(round.get(), failure);
  for (Lane* lane : lanes_.all()) {
    if (!lane->usable()) continue;
    for (uint32_t home = 0; home < current_route_.route().slots(); ++home) {
      if (current_route_.carries(*lane, home)) queue_abandon(*round, lane, home, now);
    }
  }
  for (const auto& owned : round->shares) {
    Share* share = owned.get();
    share->advance();
    if (share->all_freed()) continue;
    share->key_lane->recount();
    positions_.advance_done(share->key_lane);
    if (share->lane->granted.share == share) share->lane->granted = {};
  }
}

void Rounds::queue_abandon(const Round& round, Lane* lane, uint32_t home, double now) {
  KeyLane* entry = key_lane(round.key, lane, home, round.number);
  positions_.queue_key(entry, now);
  positions_.pass(entry, round.number);
  Header header;
  header.kind = kAbandon;
  header.rank = static_cast<uint16_t>(run_.options.rank);
  header.epoch = current_route_.epoch();
  header.route = current_route_.route().since[home];
  header.chunk = home;
  header.key = round.key->id;
  header.round = round.number;
  lanes_.queue_frame(lane, header, encode_abandon(round.verdict));
}

void Rounds::retire(Round* round) {
  KeyRecord* record = round->key;
  --live_rounds_;
  record->rounds.erase(round->number);  // may destroy the round
  if (record->rounds.empty()) {
    keys_.note_idle(record, last_used_);
  }
}

void Rounds::advance_stable(KeyLane* entry, uint64_t stable) {
  stable =
      std::min(stable, entry->done);  // ignore positions beyond the results that this rank holds
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
      chunk.state = Chunk::State::kSent;  // never to be sent again
      chunk.copy.reset();
    }
    share->advance();
    if (!share->all_freed()) break;
    shares.pop_front();
    if (entry->first_unheld > 0) --entry->first_unheld;
    if (entry->first_unsent > 0) --entry->first_unsent;
    if (entry->lane->granted.share == share) entry->lane->granted = {};
    if (--round->unstable == 0) retire(round);
  }
  positions_.advance_unsent(entry);
}

void Rounds::trace_rounds(bool wanted) {
  traced_ = wanted;
  traces_.clear();
}

void Rounds::digest_round(const Round& round, bool well) {
  if (round.comparison != nullptr) {
    if (well && !mismatch_) {
      std::vector<uint32_t> members(run_.options.world_size);
      std::iota(members.begin(), members.end(), 0u);
      const auto is_out = [this](uint32_t rank) { return current_route_.route().is_out(rank); };
      members.erase(std::remove_if(members.begin(), members.end(), is_out), members.end());
      mismatch_ = verdict_on(*round.comparison, members);
    }
    return;
  }
  digests_.add(round.key->id, round.key->name, round.number, well ? round.digest : 0);
}

void Rounds::fail_all(const Failure& cause) {
  std::vector<RoundRef> rounds;
  for (const auto& [id, record] : keys_.all()) {
    for (const auto& [number, round] : record->rounds) rounds.push_back(round);
  }
  for (const RoundRef& round : rounds) {
    round->over = true;
    Failure own = cause;
    own.key = round->operation->key();
    own.round = static_cast<int64_t>(round->number);
    finish(round.get(), own);
    for (Chunk& chunk : round->chunks) chunk.copy.reset();
  }
  live_rounds_ = 0;
  keys_.clear();
}

}  // namespace ors
