// The protocol state of one worker, without sockets, threads, clock or randomness: `now` is an
// argument (seconds that only rise), bytes move through each Lane's Receiver and Sender.
//
// Law: a contribution's staging copy is kept until its chunk is stable, whatever became of the
// caller's operation, unless its round is abandoned: a lane that is lost takes nothing with it that
// cannot be sent again. Not thread-safe: loop.h says who may call.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/digest.h"
#include "protocol/keymap.h"
#include "protocol/lane.h"
#include "protocol/messages.h"
#include "protocol/round.h"
#include "protocol/route.h"
#include "protocol/stall.h"

namespace ors {

struct Options {
  std::vector<std::string> addresses;  // names of the reducers, in this worker's order
  std::string job;
  std::string run_id;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  ChunkTable chunk_table;
  double connect_timeout = 60;
  double silence = 1;         // seconds without a byte before a welcomed lane is suspected
  double worker_silence = 5;  // rank 0's: seconds without a byte before lanes call a worker lost
  double reducer_wait = 30;   // seconds that open rounds wait for a reducer
  uint32_t digest_every = 0;  // rank 0's: rounds of a key between comparisons; 0: none
  double leave_wait = 10;     // seconds that rank 0 waits for the others to leave first
  std::string congestion;     // TCP congestion control; empty: the system's
  std::string source;         // address or interface that TCP connections come from; empty: any
  bool local_sockets = true;  // reducers on this machine are reached over Unix sockets
  std::string incarnation;    // 16 random bytes
};

// nullopt, or the rule of PROTOCOL.md that an option breaks.
std::optional<std::string> check_options(const Options& options);

struct Submission {
  Descriptor descriptor;
  std::string key;
  const uint8_t* source = nullptr;  // null: this rank gives nothing
  size_t source_bytes = 0;
  uint8_t* target = nullptr;  // null: this rank takes nothing
  size_t target_bytes = 0;
  bool lent = false;     // nobody changes the source before the operation is done
  int32_t priority = 0;  // of rounds that wait, the higher goes first; ranks need not agree
  bool notify = false;
  OperationRef operation;  // that is to be finished; null: a new one
};

struct Staged {
  BufferRef buffer;  // null: an empty frame
  uint32_t length = 0;
  uint32_t crc = 0;
};

class State {
 public:
  using Finished = std::function<void(const OperationRef&)>;

  explicit State(Options options);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const Options& options() const { return options_; }

  // --- joining (join.cc) ---
  void begin(double now);  // from here the connect timeout counts
  // What only the thread in charge of connections can do: open, close, end.
  bool has_errands() const { return !to_open_.empty() || !to_drop_.empty() || failure_; }
  // Connections to open now; each is returned once until it is unreachable() or closed().
  // Lane::attempts counts how often since it was welcomed: the first time there is no reason to
  // wait.
  std::vector<Lane*> wanted();
  Lane* find(uint32_t reducer, uint32_t lane);
  void opened(Lane* lane, double now);                               // and the preface was sent
  void unreachable(Lane* lane, const std::string& why, double now);  // the attempt has failed
  void closed(Lane* lane, const std::string& why, double now);
  // Connections to close now, with Lane::trouble as the reason; closed() must follow.
  std::vector<Lane*> to_drop();
  bool joined() const { return joined_; }
  const std::string& run_id() const { return run_id_; }

  // --- rounds (rounds.cc) ---
  // Which rule of a call the submission breaks; independent of any state.
  std::optional<std::string> check(const Submission& submission) const;
  // Throws std::bad_alloc: then nothing was submitted.
  std::optional<Failure> submit(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent. A lane's chunks of a round become ready in ascending
  // order. Rounds whose source is lent are copied as to_stage() says, all others at once.
  void ready(const RoundRef& round, uint32_t chunk, Staged staged);

  // --- frames in (join.cc, rounds.cc); failures go to broken() ---
  std::optional<Failure> control(Lane* lane, const Header& header, const uint8_t* payload,
                                 double now);
  std::optional<Failure> result_begins(Lane* lane, const Header& header, Target* target);
  std::optional<Failure> result_ends(Lane* lane, const Header& header, double now);
  void broken(Lane* lane, Failure failure, double now);  // the lane broke the protocol

  // --- frames out (flow.cc) ---
  void fill(Lane* lane, double now);  // only when the lane's sender is empty
  // After fill() added nothing: the chunk to stage() before it can add more.
  std::optional<std::pair<RoundRef, uint32_t>> to_stage(Lane* lane);
  // Lanes that may have something to send are marked `kicked`.
  void forget_kicked();
  bool has_kicked() const { return !kicked_.empty(); }

  // --- time and end ---
  void tick(double now);
  void leave(double now);  // BYE as soon as everything is stable
  bool bye_queued() const { return bye_queued_; }
  void fail(const Failure& failure);
  const std::optional<Failure>& failure() const { return failure_; }
  bool idle_for(double seconds, double now) const;
  size_t open_rounds() const { return open_rounds_; }

  // --- questions ---
  const Route& route() const { return route_; }
  std::vector<uint32_t> suspected() const;  // live slots that this worker cannot reach
  void ask_stats();
  bool stats_waiting() const;
  const std::vector<Lane*>& lanes() const { return all_lanes_; }  // those that were ever wanted
  std::vector<std::string> take_reports() { return stalls_.take(); }
  std::map<std::string, uint64_t> counters() const;
  std::vector<RoundTrace> take_traces() { return std::exchange(traces_, {}); }
  void trace_rounds(bool wanted);
  void report(std::string line) { stalls_.push(std::move(line)); }

  Finished on_finished;  // told of every operation that ends
  const std::shared_ptr<Pool> pool = std::make_shared<Pool>();

 private:
  struct Reducer {
    std::string address;
    std::vector<std::unique_ptr<Lane>> lanes;
    std::string incarnation;  // of its lane 0
    uint32_t slot = 0;        // the job's numbering, from the join on
    uint32_t count = 0;       // of its lanes, as it said last
    double lost_at = -1;      // since then some lane is not usable; below 0: all are
    double blocked_at = -1;   // since then open rounds need it while it is lost
    double told_at = -1;      // when SUSPECT was sent last
    double moved_at = -1;     // when a route put it out or took it in last
    double patience = 0;      // seconds that it stays out at least (rank 0)
  };

  // join.cc
  void say_hello(Lane* lane);
  Lane* want(uint32_t reducer, uint32_t lane);
  std::optional<Failure> run_control(Lane* lane, const Header& header, std::string_view payload,
                                     double now);
  Failure unexpected(const Lane& lane, const Header& header) const;
  std::optional<Failure> on_goaway(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_pending(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_welcome(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> check_welcome(const Lane& lane, const Welcome& welcome) const;
  std::optional<Failure> learn_lanes(Lane* lane, uint32_t lanes, const std::string& incarnation);
  std::optional<Failure> maybe_join(double now);
  std::optional<Failure> take_rules();
  Failure not_joined() const;
  std::optional<Failure> on_error(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_stats(Lane* lane, std::string_view payload);
  std::optional<Failure> on_stall(std::string_view payload, const Lane& lane, double now);

  // recovery.cc: a lane that is lost, and back
  void lose(Lane* lane, const std::string& why, double now);
  void drop(Lane* lane, const std::string& why, double now);
  void strike(Lane* lane, const Failure& failure, double now);
  bool others_are_live(const Reducer& reducer) const;
  void reset_connection(Lane* lane);
  void reset_share(Share* share);
  void want_again(Lane* lane);
  void welcomed_again(Lane* lane, double now);
  void bind(Lane* lane);
  void tell_again(Lane* lane, double now);
  void tell_failure();
  void wake_up(double seconds, double now);
  void shift_clocks(double seconds);
  bool was_given_up() const;
  Failure stood_still() const;

  // streams.cc: routes, and the streams that they move
  std::optional<Failure> on_route(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> learn_route(const Route& route, const Lane& from, double now);
  void apply_route(const Route& route, double now);
  void tell_route(Lane* lane);
  void revive_keys(double now);
  void move_key(KeyRecord* record, const std::vector<bool>& moved, double now);
  std::vector<uint32_t> take_out(Round* round, const std::vector<bool>& moved);
  void put_in(Round* round, const std::vector<uint32_t>& chunks);
  void forget_streams(KeyRecord* record, const std::vector<bool>& moved);
  void begin_streams(KeyRecord* record, const std::vector<bool>& moved);
  void rebuild_queues(const Lane* only);
  std::vector<Lane*> lanes_of_home(uint32_t home);
  bool carries(const Lane& lane, uint32_t home) const;
  bool current(const Lane& lane, const Header& header, uint32_t* home) const;

  // suspect.cc: who is gone, and what rank 0 does about a reducer
  Reducer& at_slot(uint32_t slot) { return reducers_[by_slot_[slot]]; }
  const Reducer& at_slot(uint32_t slot) const { return reducers_[by_slot_[slot]]; }
  bool live(const Reducer& reducer) const { return route_.live[reducer.slot] != 0; }
  bool all_welcomed(const Reducer& reducer) const;
  bool reached(const Reducer& reducer) const;
  const Lane* suspicious(const Reducer& reducer) const;
  void suspect(Lane* lane, const std::string& why, double now);
  void tell_suspicion(Reducer* reducer, double now);
  std::optional<Failure> on_suspect(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_absent(Lane* lane, std::string_view payload, double now);
  void decide(double now);
  bool may_put_out(uint32_t slot) const;
  bool may_take_in(const Reducer& reducer, double now) const;
  void put_out(Reducer* reducer, const std::string& why, double now);
  void take_in(Reducer* reducer, double now);
  void watch_lanes(double now);
  void hear(Lane* lane, double silent, double now);
  void forgive(Lane* lane);
  bool is_new(const Reducer& reducer) const;
  void watch_reducers(double now);
  void watch_ranks(double now);
  bool needed(const Reducer& reducer) const;
  Failure no_reducer(double now) const;
  std::optional<std::string> lost_reason(uint32_t rank, double now) const;

  // digest.cc
  bool rereads(const Round& round) const;
  void digest_result(Round* round, const Header& header);
  void digest_round(const Round& round, bool well);
  void compare_digests(double now);

  // rounds.cc
  std::optional<Failure> open_round(const Submission& submission, double now, RoundRef* round);
  std::optional<Failure> key_record(const std::string& name, double now, KeyRecord** record);
  KeyLane* find_stream(const KeyRecord& record, const Lane* lane, uint32_t home) const;
  KeyLane* key_lane(KeyRecord* record, Lane* lane, uint32_t home, uint64_t round);
  void cut_shares(Round* round, const std::vector<uint32_t>& chunks);
  void share_out(const RoundRef& round);
  void take_back(const Round& round);
  void finish(Round* round, std::optional<Failure> failure);
  void trace(const Round& round, const std::optional<Failure>& failure);
  std::optional<Failure> find_chunk(Lane* lane, const Header& header, RoundRef* round);
  const char* check_result(const Lane& lane, const Round& round, const Header& header) const;
  void late_result(Lane* lane, const Header& header);
  void settle(Round* round, uint32_t chunk);
  std::optional<Failure> on_refused(Lane* lane, const Header& header, std::string_view payload,
                                    double now);
  void abandon(const RoundRef& round, const Failure& failure, double now);
  void tell_abandoned(const Round& round, Lane* lane, uint32_t home, double now);
  void retire(Round* round);
  void forget_idle_keys(double now);

  // flow.cc
  void kick(Lane* lane);
  void queue_frame(Lane* lane, const Header& header, std::string_view payload);
  void queue_key(KeyLane* key_lane, double now);
  void on_grant(Lane* lane, const Header& header);
  Share* next_share(Lane* lane, bool* on_grant);
  void send_next(Lane* lane, Share* share, bool on_grant, double now);
  void describe_waiting(Lane* lane, double now);
  Header round_header(const Round& round, uint32_t chunk, uint8_t kind) const;
  void advance_unsent(KeyLane* key_lane);
  void advance_done(KeyLane* key_lane);
  void mark_changed(KeyLane* key_lane);
  void pass(KeyLane* key_lane, uint64_t round);
  void mark_reported(KeyLane* key_lane);
  void advance_stable(KeyLane* key_lane, uint64_t stable);
  void on_heartbeat(Lane* lane, const Header& header, const uint8_t* payload);
  void queue_heartbeat(Lane* lane, double now);
  void maybe_heartbeat(Lane* lane, double now);
  void maybe_beat(Lane* lane, double now);
  void maybe_say_bye(double now);
  bool others_have_left() const;

  Failure lane_failure(ErrorCode code, const Lane& lane, const std::string& what) const;

  Options options_;
  std::vector<Reducer> reducers_;
  std::vector<Lane*> all_lanes_;
  std::vector<Lane*> to_open_;
  std::vector<Lane*> kicked_;
  double started_at_ = -1;
  double last_used_ = 0;

  bool joined_ = false;
  std::string run_id_;
  ChunkTable chunk_table_;
  uint32_t epoch_ = 0;
  Route route_;
  double heartbeat_ = 0.25;  // until the welcome says
  Owners owners_;
  std::vector<uint32_t> by_slot_;  // our own number of the reducer
  std::vector<Lane*> to_drop_;
  double ticked_at_ = -1;
  double worker_silence_ = 5;  // until the welcome says
  double stood_still_ = 0;     // seconds, if so long that lanes may have called this worker lost;
  double woke_at_ = -1;        // until when it did

  std::unordered_map<uint64_t, std::unique_ptr<KeyRecord>> keys_;
  std::deque<std::pair<double, uint64_t>> idle_keys_;
  KeyMap forgotten_;
  std::deque<std::pair<double, uint64_t>> recent_;  // keys that were forgotten just now
  size_t open_rounds_ = 0;                          // operations that are not finished
  size_t live_rounds_ = 0;                          // not stable everywhere
  std::optional<Failure> failure_;
  bool leaving_ = false;
  double stable_at_ = -1;  // since then a worker that leaves has nothing to wait for
  bool bye_queued_ = false;
  StallReports stalls_;
  Digests digests_;
  std::optional<Failure> mismatch_;  // between the ranks' digests
  uint64_t unanswered_max_ = 0;
  uint64_t frames_dropped_ = 0;
  uint64_t submitted_ = 0;
  uint64_t resent_ = 0;
  uint64_t reconnects_ = 0;
  uint64_t suspicions_ = 0;
  uint64_t nonfinite_ = 0;  // rounds with NaN or Inf in them
  bool traced_ = false;
  std::vector<RoundTrace> traces_;
};

// Copies one chunk of the source into staging memory (cast and CRC in the same pass), and this
// rank's own bytes into the target where no lane sends them back. Takes no lock and changes no
// state: any thread may run it while others use the State.
Staged stage(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* source,
             uint8_t* target, Pool* pool);

}  // namespace ors
