// Rounds from submission to stability: the caller's side and the results of the lanes.
#include <algorithm>
#include <cstring>
#include <limits>

#include "cast.h"
#include "crc.h"
#include "state.h"

namespace ors {
namespace {

constexpr double kKeyIdleSeconds = 1.0;  // then its records go; the lanes keep theirs longer

bool moves_only(uint8_t collective) { return collective == kBroadcast || collective == kAllGather; }

uint64_t item_bytes_of_caller(const Descriptor& d) { return d.wide ? 4 : item_size(d.dtype); }

// Elements that this rank gives and takes.
uint64_t source_count(const Descriptor& d, uint32_t rank, uint32_t world_size) {
  if (d.collective == kBarrier || (d.collective == kBroadcast && rank != d.root)) return 0;
  return d.collective == kReduceScatter ? d.count * world_size : d.count;
}

uint64_t target_count(const Descriptor& d, uint32_t world_size) {
  if (d.collective == kBarrier) return 0;
  return d.collective == kAllGather ? d.count * world_size : d.count;
}

std::optional<std::string> check_descriptor(const Descriptor& d, uint32_t world_size) {
  if (d.collective < kAllReduce || d.collective > kBarrier) return "unknown collective";
  if (item_size(d.dtype) == 0) return "unknown dtype " + std::to_string(d.dtype);
  if (d.wide && d.dtype != kFloat16 && d.dtype != kBFloat16) {
    return "a wide tensor is sent as float16 or bfloat16";
  }
  if (d.root >= world_size || (d.root != 0 && d.collective != kBroadcast)) {
    return "root " + std::to_string(d.root) + " is not a rank of this broadcast";
  }
  if (d.collective == kBarrier) {
    const bool plain = d.op == kNone && d.dtype == kUInt8 && d.count == 0;
    return plain ? std::nullopt : std::optional<std::string>("a barrier is uint8, op 0, count 0");
  }
  const bool legal = moves_only(d.collective) ? d.op == kCopy : d.op >= kSum && d.op <= kProd;
  return legal ? std::nullopt
               : std::optional<std::string>("op " + std::to_string(d.op) +
                                            " does not fit collective " +
                                            std::to_string(d.collective));
}

std::optional<std::string> check_buffer(const char* what, bool given, size_t got, uint64_t items,
                                        uint64_t item_bytes, bool required) {
  if (!given) {
    return required ? std::optional<std::string>(std::string("this call needs a ") + what)
                    : std::nullopt;
  }
  if (items > std::numeric_limits<uint64_t>::max() / item_bytes || got != items * item_bytes) {
    return std::string("the ") + what + " has " + std::to_string(got) + " bytes, expected " +
           std::to_string(items) + " elements of " + std::to_string(item_bytes);
  }
  return std::nullopt;
}

void enqueue(std::deque<Lane::Queued>* queue, Lane::Queued entry) {
  auto place = queue->end();
  while (place != queue->begin() && std::prev(place)->round->priority < entry.round->priority) {
    --place;
  }
  queue->insert(place, std::move(entry));
}

}  // namespace

std::optional<std::string> State::check(const Submission& s) const {
  const Descriptor& d = s.descriptor;
  if (auto wrong = check_descriptor(d, options_.world_size)) return wrong;
  if (s.key.empty() || s.key.size() > kMaxKeyBytes || !valid_utf8(s.key)) {
    return "a key is 1 to 512 bytes of UTF-8, got " + std::to_string(s.key.size());
  }
  if (d.count > uint64_t{1} << 50) return "more than 2^50 elements";
  const bool barrier = d.collective == kBarrier;
  const bool root = d.collective == kBroadcast && options_.rank == d.root;
  const bool receiver_only = d.collective == kBroadcast && !root;
  const uint64_t item = item_bytes_of_caller(d);
  if (s.source != nullptr && (barrier || receiver_only)) return "this rank gives nothing here";
  if (auto wrong = check_buffer("source", s.source != nullptr, s.source_bytes,
                                source_count(d, options_.rank, options_.world_size), item,
                                !barrier && !receiver_only)) {
    return wrong;
  }
  return check_buffer("target", s.target != nullptr, s.target_bytes,
                      target_count(d, options_.world_size), item, !barrier && !root);
}

std::optional<Failure> State::key_record(const std::string& name, KeyRecord** record) {
  const uint64_t id = key_id(name);
  auto& slot = keys_[id];
  if (slot == nullptr) {
    slot = std::make_unique<KeyRecord>();
    slot->id = id;
    slot->name = name;
    slot->next_round = forgotten_.get(id);
  } else if (slot->name != name) {
    Failure failure;
    failure.code = ErrorCode::kMismatch;
    failure.message =
        "keys '" + name + "' and '" + slot->name + "' have the same 64-bit id: rename one of them";
    failure.key = name;
    return failure;
  }
  *record = slot.get();
  return std::nullopt;
}

std::optional<Failure> State::submit(const Submission& s, double now, RoundRef* out) {
  Failure failure;
  failure.key = s.key;
  if (failure_) {
    failure = *failure_;
    failure.key = s.key;
    return failure;
  }
  if (!joined_ || leaving_) {
    failure.code = ErrorCode::kUnavailable;
    failure.reason = "closed";
    failure.message = leaving_ ? "this group is closed" : "this group has not joined";
    return failure;
  }
  auto plan = Plan::make(s.descriptor, options_.world_size, chunk_table_, &failure.message);
  if (!plan) {
    failure.code = ErrorCode::kQuota;
    return failure;
  }
  KeyRecord* record = nullptr;
  if (auto collision = key_record(s.key, &record)) return collision;
  last_used_ = now;
  auto round = std::make_shared<Round>(s.descriptor, *plan);
  round->key = record;
  round->number = record->next_round++;
  round->target = s.target;
  round->priority = s.priority;
  const bool in_place = s.source == s.target && s.descriptor.collective == kAllReduce;
  if (in_place && plan->chunks() > 1) round->source = s.source;
  const bool small = plan->chunks() == 1 && plan->bytes(0) <= kSmallBytes;
  round->operation = std::make_shared<Operation>(s.key, round->number, s.notify, small);
  round->chunks.resize(plan->chunks());
  round->unanswered = plan->chunks();
  share_out(round);
  record->rounds.emplace(round->number, round);
  ++open_rounds_;
  ++live_rounds_;
  *out = std::move(round);
  return std::nullopt;
}

KeyLane* State::key_lane(KeyRecord* record, Lane* lane, uint64_t round) {
  for (const auto& entry : record->lanes) {
    if (entry->lane == lane) return entry.get();
  }
  auto fresh = std::make_unique<KeyLane>();
  fresh->lane = lane;
  fresh->key = record;
  // All earlier rounds that this lane had a part of are done, else the record would be here.
  fresh->done = fresh->reported = position(round, 0);
  record->lanes.push_back(std::move(fresh));
  return record->lanes.back().get();
}

// Gives every lane its chunks, behind the rounds of the same priority that wait there.
void State::share_out(const RoundRef& round) {
  constexpr uint32_t kNone = ~uint32_t{0};
  std::vector<uint32_t> share_of(by_owner_.size(), kNone);
  for (uint32_t chunk = 0; chunk < round->chunks.size(); ++chunk) {
    const uint32_t owner = owners_.owner(round->key->id, chunk);
    if (share_of[owner] == kNone) {
      share_of[owner] = static_cast<uint32_t>(round->shares.size());
      round->shares.emplace_back();
      round->shares.back().lane = by_owner_[owner];
    }
    round->chunks[chunk].share = share_of[owner];
    round->shares[share_of[owner]].chunks.push_back(chunk);
  }
  round->unstable = round->shares.size();
  for (Share& share : round->shares) {  // their addresses are final now
    share.round = round.get();
    share.key_lane = key_lane(round->key, share.lane, round->number);
    share.key_lane->shares.push_back(&share);
    if (round->source != nullptr) kick(share.lane);
    enqueue(&share.lane->queue, {round, &share});
    if (share.chunks.front() == 0) share.lane->undescribed.push_back({round, &share});
    if (share.lane->has_grant && share.lane->granted_key == round->key->id &&
        share.lane->granted_round == round->number) {
      share.lane->granted = {round, &share};
    }
  }
}

Staged stage(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* from, uint8_t* to,
             Pool* pool) {
  const Descriptor& d = round.descriptor;
  const Range range = round.plan.range(chunk);
  const size_t item = d.wide ? sizeof(float) : round.plan.item_bytes();
  const bool scatters = d.collective == kReduceScatter;
  const uint64_t first = (scatters ? range.part * round.plan.count() : 0) + range.offset;
  Staged staged;
  if (range.elements == 0 || !sends_bytes(d, round.plan, chunk, rank)) return staged;
  const uint8_t* source = from + first * item;
  staged.length = round.plan.bytes(chunk);
  staged.buffer = pool->take(staged.length);
  if (d.wide) {
    staged.crc = narrow_crc32c(d.dtype, reinterpret_cast<const float*>(source), staged.buffer->data,
                               range.elements);
  } else {
    staged.crc = copy_crc32c(staged.buffer->data, source, staged.length);
  }
  if (moves_only(d.collective) && to != nullptr) {  // no lane sends these back
    const uint64_t part = d.collective == kAllGather ? range.part * round.plan.count() : 0;
    uint8_t* own = to + (part + range.offset) * item;
    if (d.wide) {  // as the other ranks get them: through the 16-bit type
      widen(d.dtype, staged.buffer->data, reinterpret_cast<float*>(own), range.elements);
    } else {
      std::memcpy(own, staged.buffer->data, staged.length);
    }
  }
  return staged;
}

void State::ready(const RoundRef& round, uint32_t index, Staged staged) {
  if (round->over) return;
  Chunk& chunk = round->chunks[index];
  chunk.staging = std::move(staged.buffer);
  chunk.length = staged.length;
  chunk.crc = staged.crc;
  chunk.state = Chunk::State::kReady;
  Share& share = round->shares[chunk.share];
  ++share.ready;
  kick(share.lane);
}

// --- results ---

std::optional<Failure> State::find_chunk(Lane* lane, const Header& h, RoundRef* round) {
  const auto wrong = [&](const char* what) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        std::string("sent ") + what + " (chunk " + std::to_string(h.chunk) +
                            " of round " + std::to_string(h.round) + ")");
  };
  if (lane->phase != Lane::Phase::kWelcomed) return wrong("a result before the welcome");
  if (h.epoch != epoch_) return wrong("a result of another epoch");
  const auto key = keys_.find(h.key);
  if (key == keys_.end()) return std::nullopt;
  const auto found = key->second->rounds.find(h.round);
  if (found == key->second->rounds.end()) {
    return h.round < key->second->next_round ? std::nullopt
                                             : std::optional(wrong("a result of no round of ours"));
  }
  const Round& r = *found->second;
  if (h.chunk >= r.chunks.size()) return wrong("a result of no chunk of the round");
  const Chunk& chunk = r.chunks[h.chunk];
  if (r.shares[chunk.share].lane != lane) return wrong("a result that another lane owns");
  if (chunk.state == Chunk::State::kHeld) return std::nullopt;
  if (chunk.state != Chunk::State::kSent) return wrong("a result that nobody asked for");
  const Descriptor& d = r.descriptor;
  if (h.dtype != d.dtype || h.op != d.op || h.collective != d.collective || h.count != d.count) {
    return wrong("a result of another dtype, op, collective or count");
  }
  const bool full = gets_bytes(d, r.plan, h.chunk, options_.rank);
  if (h.length != (full ? r.plan.bytes(h.chunk) : 0)) return wrong("a result of a wrong length");
  *round = found->second;
  return std::nullopt;
}

std::optional<Failure> State::result_begins(Lane* lane, const Header& h, Target* target) {
  lane->receiving.reset();
  if (failure_) return std::nullopt;
  RoundRef round;
  if (auto failure = find_chunk(lane, h, &round)) return failure;
  if (round == nullptr) {
    ++frames_dropped_;
    return std::nullopt;
  }
  lane->receiving = round;
  if (h.length == 0) return std::nullopt;
  const Descriptor& d = round->descriptor;
  const Range range = round->plan.range(h.chunk);
  const uint64_t part = d.collective == kAllGather ? range.part * d.count : 0;
  uint8_t* place = round->target + (part + range.offset) * item_bytes_of_caller(d);
  if (d.wide) {
    target->wide = reinterpret_cast<float*>(place);
  } else {
    target->bytes = place;
  }
  return std::nullopt;
}

std::optional<Failure> State::result_ends(Lane* lane, const Header& h, double now) {
  lane->last_heard = now;
  if (failure_) return std::nullopt;
  const RoundRef round = std::move(lane->receiving);
  lane->receiving.reset();
  const auto key = keys_.find(h.key);
  if (round == nullptr) {
    if (key == keys_.end()) return std::nullopt;
    for (const auto& entry : key->second->lanes) {
      if (entry->lane == lane) advance_stable(entry.get(), h.stable);
    }
    return std::nullopt;
  }
  Chunk& chunk = round->chunks[h.chunk];
  chunk.state = Chunk::State::kHeld;
  round->flags |= h.flags & (kOverflow | kNan);
  take_back_cost(lane, round.get(), h.chunk);
  Share& share = round->shares[chunk.share];
  while (share.prefix < share.chunks.size() &&
         round->chunks[share.chunks[share.prefix]].state == Chunk::State::kHeld) {
    ++share.prefix;
  }
  KeyLane* entry = share.key_lane;
  const uint64_t cost = round->plan.cost(h.chunk);
  entry->unreported_cost += cost;
  lane->unreported_cost += cost;
  advance_done(entry);
  advance_stable(entry, h.stable);
  if (--round->unanswered == 0) finish(round.get(), std::nullopt);
  if (leaving_ || 2 * lane->unreported_cost >= lane->credit.limit) maybe_heartbeat(lane, now);
  return std::nullopt;
}

void State::take_back_cost(Lane* lane, Round* round, uint32_t index) {
  const Chunk& chunk = round->chunks[index];
  const uint64_t cost = round->plan.cost(index);
  (chunk.on_grant ? lane->grant : lane->credit).used -= cost;
  round->shares[chunk.share].unanswered -= cost;
  kick(lane);
}

// Ends the caller's operation; the round itself stays until it is stable.
void State::finish(Round* round, std::optional<Failure> failure) {
  if (round->operation->done()) return;
  round->source = round->target = nullptr;
  --open_rounds_;
  round->operation->finish(std::move(failure), round->flags);
  if (on_finished) on_finished(round->operation);
}

// --- refusal ---

std::optional<Failure> State::on_refused(Lane* lane, const Header& h, std::string_view payload,
                                         double now) {
  Failure failure;
  if (const char* wrong = decode_refused(payload, &failure)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad REFUSED: ") + wrong);
  }
  const auto key = keys_.find(h.key);
  if (key == keys_.end()) return std::nullopt;
  const auto found = key->second->rounds.find(h.round);
  if (found != key->second->rounds.end()) {
    failure.key = key->second->name;
    failure.round = static_cast<int64_t>(h.round);
    abandon(found->second, failure, now);
  } else if (h.round >= key->second->next_round) {
    return lane_failure(ErrorCode::kProtocol, *lane, "refused a round that was never submitted");
  }
  return std::nullopt;
}

void State::abandon(const RoundRef& keep, const Failure& failure, double now) {
  const RoundRef round = keep;  // outlives its place in the map
  round->over = true;
  for (Lane* lane : all_lanes_) {
    if (lane->receiving != round) continue;
    lane->receiving.reset();
    lane->receiver.discard();
  }
  for (Share& share : round->shares) {
    for (size_t i = 0; i < share.sent; ++i) {
      if (round->chunks[share.chunks[i]].state != Chunk::State::kHeld) {
        take_back_cost(share.lane, round.get(), share.chunks[i]);
      }
    }
    drop_share(&share);
  }
  Header header;
  header.kind = kAbandon;
  header.rank = static_cast<uint16_t>(options_.rank);
  header.epoch = epoch_;
  header.route = route_;
  header.key = round->key->id;
  header.round = round->number;
  for (Lane* lane : all_lanes_) {
    queue_key(key_lane(round->key, lane, round->number + 1), now);
    queue_frame(lane, header, {});
  }
  for (Chunk& chunk : round->chunks) chunk.staging.reset();
  finish(round.get(), failure);
  retire(round.get());
}

// The share's chunks count as held and stable: PROTOCOL.md, section 8.
void State::drop_share(Share* share) {
  KeyLane* entry = share->key_lane;
  share->ready = share->sent = share->prefix = share->freed = share->chunks.size();
  advance_done(entry);
  entry->shares.erase(std::find(entry->shares.begin(), entry->shares.end(), share));
  entry->first_unheld = entry->first_unsent = 0;
  while (entry->first_unheld < entry->shares.size() &&
         entry->shares[entry->first_unheld]->all_held()) {
    ++entry->first_unheld;
  }
  while (entry->first_unsent < entry->shares.size() &&
         entry->shares[entry->first_unsent]->all_sent()) {
    ++entry->first_unsent;
  }
  if (share->lane->granted.share == share) share->lane->granted = {};
}

// --- the end of rounds and keys ---

void State::retire(Round* round) {
  KeyRecord* record = round->key;
  --live_rounds_;
  record->rounds.erase(round->number);  // may destroy the round
  if (record->rounds.empty()) {
    record->idle_since = last_used_;
    idle_keys_.emplace_back(last_used_, record->id);
  }
}

void State::forget_idle_keys(double now) {
  for (size_t left = idle_keys_.size(); left > 0; --left) {
    const auto [since, id] = idle_keys_.front();
    if (now - since < kKeyIdleSeconds) return;
    idle_keys_.pop_front();
    const auto found = keys_.find(id);
    if (found == keys_.end()) continue;
    KeyRecord* record = found->second.get();
    if (!record->rounds.empty() || record->idle_since != since) continue;
    const bool told = std::none_of(record->lanes.begin(), record->lanes.end(),
                                   [](const auto& entry) { return entry->listed; });
    if (!told) {  // a heartbeat is still to carry its positions
      record->idle_since = now;
      idle_keys_.emplace_back(now, id);
      continue;
    }
    forgotten_.put(id, record->next_round);
    keys_.erase(found);
  }
}

}  // namespace ors
