#include "protocol/results.h"

#include <algorithm>

#include "protocol/messages.h"

namespace ors {

// Finds the round that waits for a result. Leaves *round null if this rank no longer needs the
// result, which is normal (for instance after a retransmit). Returns a failure if the lane broke
// the protocol.
std::optional<Failure> Results::find_chunk(Lane* lane, const Header& h, RoundRef* round) {
  const auto wrong = [&](const char* what) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        std::string("sent ") + what + " (chunk " + std::to_string(h.chunk) +
                            " of round " + std::to_string(h.round) + ")");
  };
  if (!run_.joined || !lane->welcomed()) return wrong("a result before the welcome");
  if (h.epoch > current_route_.epoch()) return wrong("a result of an epoch without its route");
  if (h.epoch < current_route_.epoch()) return std::nullopt;
  if (h.route != current_route_.route().since[current_route_.owners().home(h.key, h.chunk)])
    return std::nullopt;
  const KeyRecord* key = keys_.find(h.key);
  if (key == nullptr) return std::nullopt;
  const auto found = key->rounds.find(h.round);
  if (found == key->rounds.end()) {
    return h.round < key->next_round
               ? std::nullopt
               : std::optional(wrong("a result of a round that was never submitted"));
  }
  const Round& r = *found->second;
  if (const char* what = check_result(*lane, r, h)) return wrong(what);
  const Chunk& chunk = r.chunks[h.chunk];
  if (!r.over && !chunk.held && chunk.share != kNoShare) *round = found->second;
  return std::nullopt;
}

const char* Results::check_result(const Lane& lane, const Round& r, const Header& h) const {
  if (h.chunk >= r.chunks.size()) return "a result of a chunk that the round does not have";
  const Chunk& chunk = r.chunks[h.chunk];
  if (chunk.share != kNoShare && r.shares[chunk.share]->lane != &lane) {
    return "a result that another lane owns";
  }
  if (chunk.held || r.over) return nullptr;
  if (!chunk.asked) return "a result of a chunk that was not sent to this lane";
  const Descriptor& d = r.descriptor;
  if (h.dtype != d.dtype || h.op != d.op || h.collective != d.collective || h.count != d.count) {
    return "a result of another dtype, op, collective or count";
  }
  if (h.rank != kNoRank && h.rank >= run_.options.world_size)
    return "a result with a rank outside the world size";
  if (h.done > h.epoch) return "a result of a later origin than its epoch";
  const bool full = gets_bytes(d, r.plan, h.chunk, run_.options.rank);
  const uint32_t expected = full ? r.plan.result_bytes(h.chunk) : 0;
  return h.length == expected ? nullptr : "a result of the wrong length";
}

std::optional<Failure> Results::begins(Lane* lane, const Header& h, Target* target) {
  Lane::Receiving& result = lane->receiving.emplace_back();
  if (run_.over() || lane->phase == Lane::Phase::kDropped) return std::nullopt;
  RoundRef round;
  if (auto failure = find_chunk(lane, h, &round)) return failure;
  if (round != nullptr && round->chunks[h.chunk].arriving) {
    const auto twice = [&](const Lane::Receiving& other) {
      return other.wanted && other.round == round && other.chunk == h.chunk;
    };
    // The receiver of the chunk's former lane has not let go of the target yet, because its loop is
    // busy. Reconnecting gives it time, and brings the result again.
    if (std::none_of(lane->receiving.begin(), lane->receiving.end(), twice)) {
      return lane_failure(ErrorCode::kUnavailable, *lane,
                          "sent a result while the chunk's former lane was still receiving it");
    }
    round.reset();
  }
  if (round == nullptr) {
    ++frames_dropped_;
    return std::nullopt;
  }
  result.round = round;
  result.chunk = h.chunk;
  result.wanted = true;
  round->chunks[h.chunk].arriving = true;
  rounds_.use(round.get());
  if (h.length == 0) return std::nullopt;
  const Descriptor& d = round->descriptor;
  const Range range = round->plan.range(h.chunk);
  const uint64_t first = d.collective == kAllGather ? range.vector * d.count : 0;
  uint8_t* place = round->target + (first + range.offset) * caller_item_bytes(d);
  if (d.wide) {
    target->wide = reinterpret_cast<float*>(place);
    target->elements = range.elements;
  } else {
    target->bytes = place;
  }
  target->reread = rounds_.digests().on() && rereads(*round);
  if (keeps(*round)) {
    target->kept = result.kept = pool_.take(h.length);
    result.crc = h.payload_crc;
  }
  return std::nullopt;
}

void Results::ends(Lane* lane, const Header& h, double now) {
  lane->last_heard = now;
  const bool wanted = lane->receiving.front().wanted;
  const uint32_t crc = lane->receiving.front().crc;
  BufferRef kept = std::move(lane->receiving.front().kept);
  const RoundRef round = let_go(&lane->receiving.front());
  lane->receiving.pop_front();
  if (run_.over() || !lane->usable()) return;
  lane->strikes = 0;
  if (!wanted) return late_result(lane, h);
  Chunk& chunk = round->chunks[h.chunk];
  rounds_.settle(round.get(), h.chunk);
  if (round->moments.first_result == 0) round->moments.first_result = now;
  round->moments.last_result = now;
  chunk.held = true;
  chunk.state = Chunk::State::kSent;  // the result came first: cancel a pending retransmit
  if (keeps(*round)) {
    chunk.origin = Origin{static_cast<uint32_t>(h.done),
                          static_cast<uint16_t>(h.flags & (kOverflow | kNan | kNonFinite)), h.rank};
    chunk.copy = std::move(kept);
    chunk.length = h.length;
    chunk.crc = crc;
  }
  round->flags |= h.flags & (kOverflow | kNan | kNonFinite);
  if (h.rank != kNoRank) round->culprit = std::min(round->culprit, Culprit{h.rank, h.chunk});
  if (rounds_.digests().on()) digest_result(round.get(), h);
  Share& share = *round->shares[chunk.share];
  share.advance();
  KeyLane* entry = share.key_lane;
  positions_.advance_unsent(entry);
  const uint64_t cost = round->plan.cost(h.chunk);
  entry->unreported_cost += cost;
  lane->unreported_cost += cost;
  positions_.advance_done(entry);
  rounds_.advance_stable(entry, h.stable);
  rounds_.progress(round.get());
  if (--round->unanswered == 0) rounds_.finish(round.get(), std::nullopt);
  const uint64_t most = entry->sends_next() ? lane->credit.limit : lane->credit.limit / 2;
  if (run_.leaving || lane->unreported_cost >= most) positions_.maybe_heartbeat(lane, now);
}

// Returns the round whose memory the receiver has used until now, if any.
RoundRef Results::let_go(Lane::Receiving* result) {
  RoundRef round = std::move(result->round);
  if (round == nullptr) return nullptr;
  round->chunks[result->chunk].arriving = false;
  rounds_.let_go(round.get());
  return round;
}

void Results::forget_begun(Lane* lane) {
  for (Lane::Receiving& result : lane->receiving) (void)let_go(&result);
  lane->receiving.clear();
}

// Handles the answer to a chunk whose result this rank already holds: releases the charge and takes
// the stable position.
void Results::late_result(Lane* lane, const Header& h) {
  const KeyRecord* key = keys_.find(h.key);
  const uint32_t home = current_route_.owners().home(h.key, h.chunk);
  if (key == nullptr || h.route != current_route_.route().since[home]) return;
  const auto found = key->rounds.find(h.round);
  if (found != key->rounds.end() && h.chunk < found->second->chunks.size()) {
    const Chunk& chunk = found->second->chunks[h.chunk];
    if (chunk.held && chunk.share != kNoShare) rounds_.settle(found->second.get(), h.chunk);
  }
  if (KeyLane* entry = rounds_.find_stream(*key, lane, home))
    rounds_.advance_stable(entry, h.stable);
}

std::optional<Failure> Results::on_refused(Lane* lane, const Header& h, std::string_view payload,
                                           double now) {
  Failure failure;
  if (const std::string wrong = decode_refused(payload, &failure); !wrong.empty())
    return bad_frame(*lane, "REFUSED", wrong);
  uint32_t home = 0;
  const KeyRecord* key = keys_.find(h.key);
  if (key == nullptr || !current_route_.current(*lane, h, &home)) return std::nullopt;
  const auto found = key->rounds.find(h.round);
  if (found != key->rounds.end()) {
    failure.key = key->name;
    failure.round = static_cast<int64_t>(h.round);
    rounds_.abandon(found->second, failure, now);
  } else if (h.round >= key->next_round) {
    return lane_failure(ErrorCode::kProtocol, *lane,
                        "refused round " + std::to_string(h.round) + " of key '" + key->name +
                            "', which this rank has not submitted");
  }
  return std::nullopt;
}

void Results::on_heartbeat(Lane* lane, const Header& header, const uint8_t* payload) {
  uint32_t home = 0;
  if (header.length == 0 || !run_.joined || !lane->usable()) return;
  if (!current_route_.current(*lane, header, &home)) return;
  for (uint32_t at = 0; at < header.length; at += 16) {
    const KeyRecord* key = keys_.find(load<uint64_t>(payload + at));
    if (key == nullptr) continue;
    KeyLane* entry = rounds_.find_stream(*key, lane, home);
    if (entry != nullptr) rounds_.advance_stable(entry, load<uint64_t>(payload + at + 8));
  }
}

// Whether this rank keeps the results of the round: another view may need them (PROTOCOL.md,
// section 16).
bool Results::keeps(const Round& round) const {
  return run_.options.elastic && shrinks(round.descriptor.collective);
}

// Whether the round's digest covers the results as they are in the caller's memory, so that
// corruption after the receive is found. The thread that reads the socket computes these CRCs
// without a lock.
bool Results::rereads(const Round& round) {
  return round.descriptor.collective == kAllReduce && round.comparison == nullptr &&
         rounds_.digests().ends_span(round.number);
}

// Adds a result to the round's digest. Reduce-scatter is skipped: each rank gets a different
// vector.
void Results::digest_result(Round* round, const Header& h) {
  if (round->descriptor.collective == kReduceScatter || round->comparison != nullptr) return;
  if (run_.options.elastic && !shrinks(round->descriptor.collective)) return;  // may end unevenly
  const uint32_t crc = h.length > 0 ? h.payload_crc : round->chunks[h.chunk].crc;
  round->digest += digest_of(h.key, position(h.round, h.chunk), crc);
}

}  // namespace ors
