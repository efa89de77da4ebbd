// Rounds from submission to stability: the caller's side and the results of the lanes.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "codec/cast.h"
#include "codec/crc.h"
#include "protocol/state.h"

namespace ors {
namespace {

constexpr double kKeyIdleSeconds = 1.0;  // then its records go; the lanes keep theirs longer

// A chunk that is stable here may not be stable on a rank that has lost a lane, or stands still,
// until a route moves the chunk. Records of keys are kept for this long, and for the worker
// silence.
constexpr double kKeyRecentSeconds = 25.0;

bool moves_only(uint8_t collective) { return collective == kBroadcast || collective == kAllGather; }

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
  if (is_bitwise(d.op) && !is_integer(d.dtype)) {
    return "op " + std::to_string(d.op) + " combines bits: it is of integers, got dtype " +
           std::to_string(d.dtype);
  }
  const bool reduces = (d.op >= kSum && d.op <= kProd) || is_bitwise(d.op);
  const bool legal = moves_only(d.collective) ? d.op == kCopy : reduces;
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
  const uint64_t item = caller_item_bytes(d);
  if (s.source != nullptr && (barrier || receiver_only)) return "this rank gives nothing here";
  if (auto wrong = check_buffer("source", s.source != nullptr, s.source_bytes,
                                source_count(d, options_.rank, options_.world_size), item,
                                !barrier && !receiver_only)) {
    return wrong;
  }
  return check_buffer("target", s.target != nullptr, s.target_bytes,
                      target_count(d, options_.world_size), item, !barrier && !root);
}

std::optional<Failure> State::key_record(const std::string& name, double now, KeyRecord** record) {
  const uint64_t id = key_id(name);
  auto found = keys_.find(id);
  if (found == keys_.end()) {
    auto fresh = std::make_unique<KeyRecord>();
    fresh->id = id;
    fresh->name = name;
    fresh->next_round = forgotten_.get(id);
    fresh->idle_since = now;
    idle_keys_.emplace_back(now, id);  // until it has a round
    found = keys_.emplace(id, std::move(fresh)).first;
  }
  KeyRecord* known = found->second.get();
  if (known->name.empty()) known->name = name;
  if (known->name != name) {
    Failure failure;
    failure.code = ErrorCode::kMismatch;
    failure.message =
        "keys '" + name + "' and '" + known->name + "' have the same 64-bit id: rename one of them";
    failure.key = name;
    return failure;
  }
  *record = known;
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
  if (is_bitwise(s.descriptor.op)) {
    for (const Lane* lane : all_lanes_) {
      if (!lane->welcomed() || lane->welcome.minor >= 1) continue;
      failure.code = ErrorCode::kVersion;
      failure.message = lane->name + " speaks protocol " + std::to_string(kProtocolMajor) + "." +
                        std::to_string(lane->welcome.minor) +
                        ", and band, bor and bxor are of 1.1: install this release there, too";
      return failure;
    }
  }
  return open_round(s, now, out);
}

std::optional<Failure> State::open_round(const Submission& s, double now, RoundRef* out) {
  Failure failure;
  failure.key = s.key;
  auto plan = Plan::make(s.descriptor, options_.world_size, chunk_table_, &failure.message);
  if (!plan) {
    failure.code = ErrorCode::kQuota;
    return failure;
  }
  KeyRecord* record = nullptr;
  if (auto collision = key_record(s.key, now, &record)) return collision;
  auto round = std::make_shared<Round>(s.descriptor, *plan);
  round->key = record;
  round->number = record->next_round;
  round->target = s.target;
  round->moments.submitted = now;
  round->priority = s.priority;
  round->order = submitted_;
  const bool in_place = s.source == s.target && s.descriptor.collective == kAllReduce;
  if ((s.lent || in_place) && plan->chunks() > 1) round->source = s.source;
  round->operation = s.operation ? s.operation : std::make_shared<Operation>(s.key, s.notify);
  round->chunks.resize(plan->chunks());
  round->unanswered = plan->chunks();
  try {
    share_out(round);
    record->rounds.emplace(round->number, round);
  } catch (...) {
    take_back(*round);
    throw;
  }
  // From here on nothing can fail: the round is taken.
  round->operation->begin(round->number, plan->chunks() == 1 && plan->bytes(0) <= kSmallBytes);
  last_used_ = now;
  ++record->next_round;
  ++submitted_;
  ++open_rounds_;
  ++live_rounds_;
  *out = std::move(round);
  return std::nullopt;
}

KeyLane* State::find_stream(const KeyRecord& record, const Lane* lane, uint32_t home) const {
  for (const auto& entry : record.lanes) {
    if (entry->lane == lane && entry->home == home) return entry.get();
  }
  return nullptr;
}

KeyLane* State::key_lane(KeyRecord* record, Lane* lane, uint32_t home, uint64_t round) {
  if (KeyLane* known = find_stream(*record, lane, home)) return known;
  auto fresh = std::make_unique<KeyLane>();
  fresh->lane = lane;
  fresh->key = record;
  fresh->home = home;
  // All earlier rounds that this lane had a part of are done, else the record would be here.
  fresh->done = fresh->reported = position(round, 0);
  record->lanes.push_back(std::move(fresh));
  return record->lanes.back().get();
}

// Gives each chunk, of those that have no share, to its owner. `chunks` ascend.
void State::cut_shares(Round* round, const std::vector<uint32_t>& chunks) {
  std::vector<uint32_t> share_of(owners_.streams(), kNoShare);
  for (const uint32_t index : chunks) {
    const Place place = owners_.place(round->key->id, index);
    uint32_t& at = share_of[place.stream];
    if (at == kNoShare) {
      at = static_cast<uint32_t>(round->shares.size());
      round->shares.push_back(std::make_unique<Share>());
      Share& share = *round->shares.back();
      share.lane = at_slot(place.slot).lanes[place.lane].get();
      share.round = round;
      share.home = place.home;
    }
    round->chunks[index].share = at;
    round->shares[at]->chunks.push_back(index);
  }
}

// Gives every lane its chunks, behind the rounds of the same priority that wait there.
void State::share_out(const RoundRef& round) {
  std::vector<uint32_t> chunks(round->chunks.size());
  std::iota(chunks.begin(), chunks.end(), 0u);
  cut_shares(round.get(), chunks);
  round->unstable = round->shares.size();
  for (const auto& owned : round->shares) {
    Share* share = owned.get();
    Lane* lane = share->lane;
    share->key_lane = key_lane(round->key, lane, share->home, round->number);
    share->key_lane->shares.push_back(share);
    if (round->source != nullptr) kick(lane);
    enqueue(&lane->queue, {round, share});
    if (share->chunks.front() == 0) lane->undescribed.push_back({round, share});
    if (lane->has_grant && lane->granted_key == round->key->id &&
        lane->granted_round == round->number && lane->granted_home == share->home) {
      lane->granted = {round, share};
    }
  }
}

// Undoes a share_out() that has found no memory, as far as it came.
void State::take_back(const Round& round) {
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
  kick(round->shares[chunk.share]->lane);
}

// --- results ---

// No round: the result is of no use any more. That is no fault of the lane.
std::optional<Failure> State::find_chunk(Lane* lane, const Header& h, RoundRef* round) {
  const auto wrong = [&](const char* what) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        std::string("sent ") + what + " (chunk " + std::to_string(h.chunk) +
                            " of round " + std::to_string(h.round) + ")");
  };
  if (!joined_ || !lane->welcomed()) return wrong("a result before the welcome");
  if (h.epoch != epoch_) return wrong("a result of another epoch");
  if (h.route != route_.since[owners_.home(h.key, h.chunk)]) return std::nullopt;
  const auto key = keys_.find(h.key);
  if (key == keys_.end()) return std::nullopt;
  const auto found = key->second->rounds.find(h.round);
  if (found == key->second->rounds.end()) {
    return h.round < key->second->next_round ? std::nullopt
                                             : std::optional(wrong("a result of no round of ours"));
  }
  const Round& r = *found->second;
  if (const char* what = check_result(*lane, r, h)) return wrong(what);
  const Chunk& chunk = r.chunks[h.chunk];
  if (!r.over && !chunk.held && chunk.share != kNoShare) *round = found->second;
  return std::nullopt;
}

const char* State::check_result(const Lane& lane, const Round& r, const Header& h) const {
  if (h.chunk >= r.chunks.size()) return "a result of no chunk of the round";
  const Chunk& chunk = r.chunks[h.chunk];
  if (chunk.share != kNoShare && r.shares[chunk.share]->lane != &lane) {
    return "a result that another lane owns";
  }
  if (chunk.held || r.over) return nullptr;
  if (!chunk.asked) return "a result that nobody asked for";
  const Descriptor& d = r.descriptor;
  if (h.dtype != d.dtype || h.op != d.op || h.collective != d.collective || h.count != d.count) {
    return "a result of another dtype, op, collective or count";
  }
  if (h.rank != kNoRank && h.rank >= options_.world_size) return "a result that blames no rank";
  const bool full = gets_bytes(d, r.plan, h.chunk, options_.rank);
  return h.length == (full ? r.plan.bytes(h.chunk) : 0) ? nullptr : "a result of a wrong length";
}

std::optional<Failure> State::result_begins(Lane* lane, const Header& h, Target* target) {
  lane->receiving.reset();
  if (failure_ || lane->phase == Lane::Phase::kDropped) return std::nullopt;
  RoundRef round;
  if (auto failure = find_chunk(lane, h, &round)) return failure;
  if (round == nullptr) {
    ++frames_dropped_;
    return std::nullopt;
  }
  lane->receiving = round;
  lane->receiving_chunk = h.chunk;
  if (h.length == 0) return std::nullopt;
  const Descriptor& d = round->descriptor;
  const Range range = round->plan.range(h.chunk);
  const uint64_t part = d.collective == kAllGather ? range.part * d.count : 0;
  uint8_t* place = round->target + (part + range.offset) * caller_item_bytes(d);
  if (d.wide) {
    target->wide = reinterpret_cast<float*>(place);
  } else {
    target->bytes = place;
  }
  target->reread = digests_.on() && rereads(*round);
  return std::nullopt;
}

std::optional<Failure> State::result_ends(Lane* lane, const Header& h, double now) {
  lane->last_heard = now;
  const RoundRef round = std::move(lane->receiving);
  lane->receiving.reset();
  if (failure_ || !lane->usable()) return std::nullopt;
  lane->strikes = 0;
  if (round == nullptr) {
    late_result(lane, h);
    return std::nullopt;
  }
  Chunk& chunk = round->chunks[h.chunk];
  settle(round.get(), h.chunk);
  if (round->moments.first_result == 0) round->moments.first_result = now;
  round->moments.last_result = now;
  chunk.held = true;
  chunk.state = Chunk::State::kSent;  // it has come before it was sent again: no need to
  round->flags |= h.flags & (kOverflow | kNan | kNonFinite);
  if (h.rank != kNoRank) round->culprit = std::min(round->culprit, Culprit{h.rank, h.chunk});
  if (digests_.on()) digest_result(round.get(), h);
  Share& share = *round->shares[chunk.share];
  share.advance();
  KeyLane* entry = share.key_lane;
  advance_unsent(entry);
  const uint64_t cost = round->plan.cost(h.chunk);
  entry->unreported_cost += cost;
  lane->unreported_cost += cost;
  advance_done(entry);
  advance_stable(entry, h.stable);
  if (--round->unanswered == 0) finish(round.get(), std::nullopt);
  if (leaving_ || 2 * lane->unreported_cost >= lane->credit.limit) maybe_heartbeat(lane, now);
  compare_digests(now);
  return std::nullopt;
}

// The answer to a chunk that is held: it settles the charge, and carries `stable`.
void State::late_result(Lane* lane, const Header& h) {
  const auto key = keys_.find(h.key);
  const uint32_t home = owners_.home(h.key, h.chunk);
  if (key == keys_.end() || h.route != route_.since[home]) return;
  const auto found = key->second->rounds.find(h.round);
  if (found != key->second->rounds.end() && h.chunk < found->second->chunks.size()) {
    const Chunk& chunk = found->second->chunks[h.chunk];
    if (chunk.held && chunk.share != kNoShare) settle(found->second.get(), h.chunk);
  }
  if (KeyLane* entry = find_stream(*key->second, lane, home)) advance_stable(entry, h.stable);
}

// The chunk is answered, or its answer is not waited for any more.
void State::settle(Round* round, uint32_t index) {
  Chunk& chunk = round->chunks[index];
  if (chunk.charge == Chunk::Charge::kNone) return;
  Share& share = *round->shares[chunk.share];
  const uint64_t cost = round->plan.cost(index);
  (chunk.charge == Chunk::Charge::kGrant ? share.lane->grant : share.lane->credit).used -= cost;
  share.unanswered -= cost;
  chunk.charge = Chunk::Charge::kNone;
  kick(share.lane);
}

// Ends the caller's operation; the round itself stays until it is stable.
void State::finish(Round* round, std::optional<Failure> failure) {
  if (round->operation->done()) return;
  round->source = round->target = nullptr;
  --open_rounds_;
  if ((round->flags & kNonFinite) != 0 && !failure) ++nonfinite_;
  if (digests_.on() && !failure_) digest_round(*round, !failure);
  round->operation->finish(std::move(failure), round->flags, round->culprit);
  if (on_finished) on_finished(round->operation);
  if (traced_) trace(*round, round->operation->failure());  // last: it may find no memory
}

void State::trace(const Round& round, const std::optional<Failure>& failure) {
  const Descriptor& d = round.descriptor;
  RoundTrace found{round.key->name, round.number,  d.count * item_size(d.dtype),
                   d.collective,    round.moments, failure ? failure->message : ""};
  if (failure) found.moments.last_result = std::max(found.moments.last_result, ticked_at_);
  traces_.push_back(std::move(found));
}

void State::trace_rounds(bool wanted) {
  traced_ = wanted;
  traces_.clear();
}

// --- refusal ---

std::optional<Failure> State::on_refused(Lane* lane, const Header& h, std::string_view payload,
                                         double now) {
  Failure failure;
  if (const char* wrong = decode_refused(payload, &failure)) {
    return lane_failure(ErrorCode::kProtocol, *lane, std::string("a bad REFUSED: ") + wrong);
  }
  uint32_t home = 0;
  const auto key = keys_.find(h.key);
  if (key == keys_.end() || !current(*lane, h, &home)) return std::nullopt;
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

// The round counts as held from now on (PROTOCOL.md, section 8). It stays until it is stable: a
// lane may have to be told again.
void State::abandon(const RoundRef& round, const Failure& failure, double now) {
  if (round->over) return;
  round->over = true;
  round->verdict = failure;
  for (Lane* lane : all_lanes_) {
    if (lane->receiving != round) continue;
    lane->receiving.reset();
    lane->receiver.discard();
  }
  for (uint32_t index = 0; index < round->chunks.size(); ++index) {
    Chunk& chunk = round->chunks[index];
    settle(round.get(), index);
    chunk.held = true;
    chunk.state = Chunk::State::kSent;
    chunk.staging.reset();
  }
  finish(round.get(), failure);
  for (Lane* lane : all_lanes_) {
    if (!lane->usable()) continue;
    for (uint32_t home = 0; home < route_.slots(); ++home) {
      if (carries(*lane, home)) tell_abandoned(*round, lane, home, now);
    }
  }
  for (const auto& owned : round->shares) {
    Share* share = owned.get();
    share->advance();
    if (share->all_freed()) continue;
    share->key_lane->recount();
    advance_done(share->key_lane);
    if (share->lane->granted.share == share) share->lane->granted = {};
  }
}

void State::tell_abandoned(const Round& round, Lane* lane, uint32_t home, double now) {
  KeyLane* entry = key_lane(round.key, lane, home, round.number);
  queue_key(entry, now);
  pass(entry, round.number);
  Header header;
  header.kind = kAbandon;
  header.rank = static_cast<uint16_t>(options_.rank);
  header.epoch = epoch_;
  header.route = route_.since[home];
  header.chunk = home;
  header.key = round.key->id;
  header.round = round.number;
  queue_frame(lane, header, encode_abandon(round.verdict));
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
  const double recent = kKeyRecentSeconds + worker_silence_;
  while (!recent_.empty() && now - recent_.front().first > recent) recent_.pop_front();
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
    recent_.emplace_back(now, id);
    keys_.erase(found);
  }
}

}  // namespace ors
