// Tests the protocol state with tiny lanes in memory: joining, sums, credit, stability, refusals,
// failures, and arbitrary bytes from a lane.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "bytes_loop.h"
#include "check.h"
#include "failing_new.h"
#include "tiny_lane.h"

namespace {

constexpr uint32_t kWorld = 3;
constexpr uint32_t kReducers = 2;
constexpr uint32_t kLanes = 2;
constexpr uint32_t kLoops = 2;
constexpr uint64_t kCredit = 32768;  // two chunks

ors::Options options(uint32_t rank) {
  ors::Options o;
  o.addresses = {"r0", "r1"};
  o.job = "job";
  o.run_id = rank == 0 ? "run" : "";
  o.rank = rank;
  o.world_size = kWorld;
  o.chunk_table = {{0, 16384}};
  o.incarnation = std::string(16, static_cast<char>('0' + rank));
  o.loops = kLoops;
  return o;
}

void feed(ors::BytesLoop* loop, ors::Lane* lane, std::string_view bytes, size_t step, double now) {
  for (; !bytes.empty(); bytes.remove_prefix(std::min(step, bytes.size()))) {
    loop->incoming(lane, bytes.substr(0, step), now);
  }
}

std::string drain(ors::BytesLoop* loop, ors::Lane* lane, double now) {
  return loop->outgoing(lane, ~size_t{0}, now);
}

ors::Submission submission(const std::vector<float>& source, std::vector<float>* target) {
  ors::Submission s;
  s.descriptor = {ors::kAllReduce, ors::kSum, ors::kFloat32, false, source.size(), 0};
  s.source = reinterpret_cast<const uint8_t*>(source.data());
  s.source_bytes = source.size() * sizeof(float);
  s.target = reinterpret_cast<uint8_t*>(target->data());
  s.target_bytes = s.source_bytes;
  return s;
}

struct Cluster {
  Cluster() {
    for (uint32_t r = 0; r < kWorld; ++r) {
      loops.push_back(std::make_unique<ors::BytesLoop>(options(r)));
      states.push_back(&loops.back()->state);
    }
    for (uint32_t s = 0; s < kReducers; ++s) {
      for (uint32_t l = 0; l < kLanes; ++l) {
        lanes.emplace_back(kWorld, l, kLanes, s, kReducers, kCredit);
      }
    }
    settle();
    for (const ors::State* state : states) CHECK(state->joined());
  }

  // Moves bytes until none are left.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t rank = 0; rank < kWorld; ++rank) {
        ors::State* state = states[rank];
        reconnect(rank);
        for (ors::Lane* lane : std::vector<ors::Lane*>(state->lanes())) {
          TinyLane& peer = lanes[lane->reducer * kLanes + lane->number];
          const std::string sent = drain(loops[rank].get(), lane, now);
          if (!sent.empty()) peer.take(rank, sent);
          const std::string got = peer.give(rank);
          feed(loops[rank].get(), lane, got, 1 + rng() % 40000, now);
          moved = moved || !sent.empty() || !got.empty();
        }
      }
    }
  }

  // Closes and opens the connections that the rank's state orders to close and to open.
  void reconnect(uint32_t rank) {
    ors::State* state = states[rank];
    for (uint32_t loop = 0; loop < kLoops; ++loop) {
      for (ors::Lane* lane : state->take_dropped(loop)) disconnect(rank, lane, lane->trouble);
      for (ors::Lane* lane : state->take_wanted(loop)) state->opened(lane, now);
    }
  }

  void disconnect(uint32_t rank, ors::Lane* lane, const std::string& why) {
    lanes[lane->reducer * kLanes + lane->number].disconnect(rank);
    loops[rank]->closed(lane, why, now);
  }

  void pass(double seconds) {
    for (double left = seconds; left > 0; left -= 0.05) {
      now += 0.05;
      for (TinyLane& lane : lanes) lane.beat();
      for (const auto& loop : loops) {
        loop->state.looked(now, 1);
        loop->state.tick(now);
        loop->discard_unwanted();
      }
      settle();
    }
  }

  ors::OperationRef submit(uint32_t rank, const std::string& key, const std::vector<float>& source,
                           std::vector<float>* target) {
    ors::Submission s = submission(source, target);
    s.key = key;
    ors::State* state = states[rank];
    CHECK(!state->check(s));
    ors::RoundRef round;
    CHECK(!state->submit(s, now, &round));
    for (uint32_t c = 0; c < round->plan.chunks(); ++c) {
      state->ready(
          round, c,
          ors::copy_chunk(*round, c, rank, s.source, s.target, s.residual, state->pool.get()));
    }
    return round->operation;
  }

  std::mt19937 rng{7};
  double now = 100;
  std::vector<std::unique_ptr<ors::BytesLoop>> loops;
  std::vector<ors::State*> states;
  std::vector<TinyLane> lanes;
};

struct Call {
  std::vector<float> target;
  ors::OperationRef operation;
};

std::vector<Call> call_all(Cluster* cluster, const std::string& key, size_t count) {
  std::vector<Call> calls(kWorld);
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    const std::vector<float> source(count, static_cast<float>(rank + 1));
    calls[rank].target.assign(count, -1);
    calls[rank].operation = cluster->submit(rank, key, source, &calls[rank].target);
  }
  return calls;
}

void test_sums_and_stability() {
  Cluster cluster;
  for (int round = 0; round < 3; ++round) {
    const auto calls = call_all(&cluster, "key", 60001);
    cluster.settle();
    for (const Call& call : calls) {
      CHECK(call.operation->done() && !call.operation->failure());
      CHECK(call.operation->round() == static_cast<uint64_t>(round));
      for (const float value : call.target) CHECK(value == 6);
    }
  }
  for (const TinyLane& lane : cluster.lanes) CHECK(lane.unanswered_max() <= kCredit);
  cluster.pass(0.5);
  for (const ors::State* state : cluster.states) {
    CHECK(state->counters().at("copy_bytes") == 0);
    CHECK(state->counters().at("live_rounds") == 0);
  }
  cluster.pass(2);
  for (const ors::State* state : cluster.states) {
    CHECK(state->counters().at("keys") == 0);
    CHECK(state->counters().at("remembered_keys") == 1);
  }
  const auto calls =
      call_all(&cluster, "key", 10);  // round numbers continue after the key was forgotten
  CHECK(calls[0].operation->round() == 3);
  cluster.settle();
  CHECK(calls[0].operation->done());
  for (ors::State* state : cluster.states) state->leave(cluster.now);
  cluster.settle();
  cluster.pass(0.5);
  for (const TinyLane& lane : cluster.lanes) CHECK(lane.byes() == kWorld);
}

void test_refusal() {
  Cluster cluster;
  for (TinyLane& lane : cluster.lanes) lane.refuse_round = 0;
  const auto refused = call_all(&cluster, "key", 40);
  cluster.settle();
  for (const Call& call : refused) {
    CHECK(call.operation->done());
    CHECK(call.operation->failure()->code == ors::ErrorCode::kMismatch);
    CHECK(call.operation->failure()->message == "the ranks differ");
  }
  const auto calls = call_all(&cluster, "key", 60001);
  cluster.settle();
  for (const Call& call : calls) CHECK(call.operation->done() && !call.operation->failure());
  cluster.pass(0.5);
  for (const ors::State* state : cluster.states) {
    CHECK(state->counters().at("copy_bytes") == 0);
    CHECK(state->counters().at("unanswered") == 0);
  }
}

// A submission that runs out of memory has no effect, whichever allocation fails.
void test_submission_without_memory(bool fresh) {
  Cluster cluster;
  std::vector<std::vector<float>> targets(kWorld, std::vector<float>(60001));
  uint64_t rounds = 0;
  for (long n = 0;; ++n) {
    const std::string key = fresh ? "key" + std::to_string(n) : "key";
    const std::vector<float> source(60001, 1);
    ors::Submission s = submission(source, &targets[0]);
    s.key = key;
    ors::State* state = cluster.states[0];
    const auto before = state->counters();
    ors::RoundRef round;
    bool refused = false;
    fail_allocation(n);
    try {
      CHECK(!state->submit(s, cluster.now, &round));
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    CHECK(allocation_failed() == refused);
    if (!refused) return;
    CHECK(round == nullptr);
    for (const char* name : {"open_rounds", "live_rounds", "queued", "copy_bytes"}) {
      CHECK(state->counters().at(name) == before.at(name));
    }
    const auto calls = call_all(&cluster, key, 60001);
    cluster.settle();
    for (const Call& call : calls) {
      CHECK(call.operation->done() && !call.operation->failure());
      CHECK(call.operation->round() == (fresh ? 0 : rounds));
      for (const float value : call.target) CHECK(value == 6);
    }
    ++rounds;
    cluster.pass(0.5);
    CHECK(state->counters().at("live_rounds") == 0);
  }
}

// One rank loses the connection to each of its lanes in the middle of a round. The sums are still
// right.
void test_disconnected_lanes() {
  Cluster cluster;
  ors::State* state = cluster.states[0];
  for (uint32_t each = 0; each < kReducers * kLanes; ++each) {
    std::vector<float> target(60001, -1);
    const auto operation = cluster.submit(0, "key", std::vector<float>(60001, 1), &target);
    cluster.settle();
    cluster.disconnect(0, state->find(each / kLanes, each % kLanes), "reset");
    CHECK(!operation->done() && !state->failure());
    cluster.settle();
    std::vector<std::vector<float>> others(kWorld, std::vector<float>(60001));
    for (uint32_t rank = 1; rank < kWorld; ++rank) {
      cluster.submit(rank, "key", std::vector<float>(60001, 2), &others[rank]);
    }
    cluster.settle();
    CHECK(operation->done() && !operation->failure());
    for (const float value : target) CHECK(value == 1 + 2 * (kWorld - 1));
  }
  CHECK(state->counters().at("reconnects") == kReducers * kLanes);
  CHECK(state->counters().at("resent") > 0);
  size_t duplicates = 0;
  for (const TinyLane& lane : cluster.lanes) duplicates += lane.duplicates();
  CHECK(duplicates == state->counters().at("resent"));
  cluster.pass(0.5);
  CHECK(state->counters().at("copy_bytes") == 0);
  CHECK(state->counters().at("unanswered") == 0);
}

// The operation fails while a payload for its target is arriving: no more bytes may be written
// there.
void test_target_is_let_go(bool refused) {
  Cluster cluster;
  std::vector<float> target(20000, -1);
  const auto operation = cluster.submit(0, "key", std::vector<float>(20000), &target);
  ors::BytesLoop* loop = cluster.loops[0].get();
  ors::State* state = &loop->state;
  for (ors::Lane* lane : state->lanes()) drain(loop, lane, cluster.now);
  ors::Lane* first = nullptr;  // owner of chunk 0; the other lanes own later chunks
  ors::Lane* other = nullptr;
  const uint64_t key = ors::key_id("key");
  const uint32_t slot = key % 0x100000000 % kReducers;
  const uint32_t number = key % 0x100000000 / kReducers % kLanes;
  for (ors::Lane* lane : state->lanes()) {
    (lane->reducer == slot && lane->number == number ? first : other) = lane;
  }
  TinyLane& peer = cluster.lanes[first->reducer * kLanes + first->number];
  ors::Header h;
  h.kind = ors::kResult;
  h.key = key;
  h.count = 20000;
  h.dtype = h.op = h.collective = 1;
  peer.send(0, h, std::string(16384, '\x42'));
  const std::string bytes = peer.give(0);
  const size_t half = ors::kHeaderSize + 8192;
  feed(loop, first, bytes.substr(0, half), 1000, cluster.now);
  CHECK(target[0] != -1 && target[4095] == -1);
  if (refused) {
    TinyLane& refuser = cluster.lanes[other->reducer * kLanes + other->number];
    ors::Header refusal;
    refusal.kind = ors::kRefused;
    refusal.chunk = other->welcome.slot;
    refusal.key = key;
    refuser.send(0, refusal, ors::encode_error({ors::ErrorCode::kMismatch, "no"}));
    feed(loop, other, refuser.give(0), 1000, cluster.now);
  } else {
    state->fail({ors::ErrorCode::kPeerLost, "rank 1 is lost", "lost", 1});
    CHECK(!operation->done());  // the receiver still has the target
    loop->discard_unwanted();
  }
  CHECK(operation->done() && operation->failure());
  target.assign(target.size(), -7);
  feed(loop, first, bytes.substr(half), bytes.size(), cluster.now);
  for (const float value : target) CHECK(value == -7);
  CHECK(state->failure().has_value() != refused);
}

// While a loop gets no CPU, what its lanes have sent is not read: that says nothing about the
// lanes.
void test_a_lane_is_silent_by_the_clock_of_its_loop() {
  Cluster cluster;
  ors::State* state = cluster.states[1];
  const auto silent = [&](uint32_t loop) {
    return std::count_if(state->lanes().begin(), state->lanes().end(),
                         [&](const ors::Lane* lane) { return lane->loop == loop && lane->silent; });
  };
  for (const double end = cluster.now + 3 * options(1).silence; cluster.now < end;) {
    cluster.now += 0.05;
    for (ors::Lane* lane : state->lanes()) {
      if (lane->loop == 0) state->heard(lane, cluster.now);
    }
    state->tick(cluster.now);
  }
  CHECK(silent(0) == 0 && silent(1) == 0);
  state->looked(cluster.now, 1);
  state->tick(cluster.now);
  CHECK(silent(0) == 0 && silent(1) == kReducers * kLanes / kLoops);
}

// A lane answers a chunk twice in one read. The second answer changes nothing.
void test_result_twice() {
  Cluster cluster;
  std::vector<float> target(1, -1);
  const auto operation = cluster.submit(0, "key", {1}, &target);
  ors::BytesLoop* loop = cluster.loops[0].get();
  for (ors::Lane* lane : loop->state.lanes()) {
    if (drain(loop, lane, cluster.now).empty()) continue;
    ors::Header h;
    h.kind = ors::kResult;
    h.key = ors::key_id("key");
    h.count = h.dtype = h.op = h.collective = 1;
    TinyLane& peer = cluster.lanes[lane->reducer * kLanes + lane->number];
    peer.send(0, h, std::string(4, '\x42'));
    peer.send(0, h, std::string(4, '\x43'));
    const std::string bytes = peer.give(0);
    feed(loop, lane, bytes, bytes.size(), cluster.now);
  }
  CHECK(operation->done() && !operation->failure() && !loop->state.failure());
  CHECK(std::string(reinterpret_cast<const char*>(target.data()), 4) == "BBBB");
  CHECK(loop->state.counters().at("frames_dropped") == 1);
  CHECK(loop->state.counters().at("open_rounds") == 0);
}

// Whatever a lane sends, the worst effect is the end of the group.
void test_hostile_lanes() {
  std::mt19937 rng(3);
  for (int run = 0; run < 400; ++run) {
    Cluster cluster;
    std::vector<float> target(20000);
    const auto operation = cluster.submit(0, "key", std::vector<float>(20000), &target);
    ors::BytesLoop* loop = cluster.loops[0].get();
    ors::State* state = &loop->state;
    ors::Lane* lane = state->lanes()[rng() % state->lanes().size()];
    drain(loop, lane, cluster.now);
    for (int frames = 0; frames < 20; ++frames) {
      ors::Header h;
      h.kind = static_cast<uint8_t>(rng() % 2 ? 17 : 1 + rng() % 25);
      h.key = rng() % 4 ? ors::key_id("key") : rng();
      h.round = rng() % 3;
      h.chunk = rng() % 8;
      h.count = 20000;
      h.dtype = h.op = h.collective = 1;
      h.stable = rng() % 2 ? rng() : uint64_t{rng()} << 24;
      std::string payload(rng() % 3 ? 16384 : rng() % 100, '\0');
      for (char& byte : payload) byte = static_cast<char>(rng());
      TinyLane& peer = cluster.lanes[lane->reducer * kLanes + lane->number];
      peer.send(0, h, payload);
      if (rng() % 4 == 0) peer.send(0, h, payload);
      if (rng() % 4 == 0) continue;  // comes in one read with the next frame
      std::string bytes = peer.give(0);
      if (rng() % 8 == 0) bytes[rng() % bytes.size()] = static_cast<char>(rng());
      feed(loop, lane, bytes, 1 + rng() % 30000, cluster.now);
      drain(loop, lane, cluster.now);
      state->tick(cluster.now);
      cluster.reconnect(0);
      if (lane->phase == ors::Lane::Phase::kHello) {
        drain(loop, lane, cluster.now);
        cluster.settle();
      }
    }
    if (!state->failure()) state->fail({});
    loop->discard_unwanted();
    CHECK(operation->done());
    CHECK(state->counters().at("open_rounds") == 0);
  }
}

}  // namespace

int main() {
  test_sums_and_stability();
  test_refusal();
  test_submission_without_memory(true);
  test_submission_without_memory(false);
  test_disconnected_lanes();
  test_target_is_let_go(true);
  test_target_is_let_go(false);
  test_a_lane_is_silent_by_the_clock_of_its_loop();
  test_result_twice();
  test_hostile_lanes();
}
