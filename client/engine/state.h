// The protocol state of one worker, without sockets, threads, clock or randomness: `now` is an
// argument (seconds that only rise), bytes move through each Lane's Receiver and Sender.
//
// Law: a contribution's staging copy is kept until its chunk is stable, whatever became of the
// caller's operation, unless its round is abandoned. Not thread-safe: loop.h says who may call.
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

#include "keymap.h"
#include "lane.h"
#include "messages.h"
#include "round.h"
#include "stall.h"

namespace ors {

struct Options {
  std::vector<std::string> addresses;  // names of the reducers, in this worker's order
  std::string job;
  std::string run_id;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  ChunkTable chunk_table;
  double connect_timeout = 60;
  double silence = 5;
  std::string congestion;     // TCP congestion control; empty: the system's
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
  int32_t priority = 0;  // of rounds that wait, the higher goes first; ranks need not agree
  bool notify = false;
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
  void begin(double now);       // from here the connect timeout counts
  std::vector<Lane*> wanted();  // connections to open now; each is returned once
  Lane* find(uint32_t reducer, uint32_t lane);
  void opened(Lane* lane, double now);                               // and the preface was sent
  void unreachable(Lane* lane, const std::string& why, double now);  // wanted again
  void closed(Lane* lane, const std::string& why, double now);
  bool joined() const { return joined_; }
  const std::string& run_id() const { return run_id_; }

  // --- rounds (rounds.cc) ---
  // Which rule of a call the submission breaks; independent of any state.
  std::optional<std::string> check(const Submission& submission) const;
  std::optional<Failure> submit(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent. A lane's chunks of a round become ready in ascending
  // order. Rounds with a source of their own are copied as to_stage() says, all others at once.
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
  void ask_stats();
  bool stats_waiting() const;
  const std::vector<Lane*>& lanes() const { return all_lanes_; }  // those that were ever wanted
  std::vector<std::string> take_reports() { return stalls_.take(); }
  std::map<std::string, uint64_t> counters() const;

  Finished on_finished;  // told of every operation that ends
  const std::shared_ptr<Pool> pool = std::make_shared<Pool>();

 private:
  struct Reducer {
    std::string address;
    std::vector<std::unique_ptr<Lane>> lanes;
    std::string incarnation;  // of its lane 0
  };

  // join.cc
  void say_hello(Lane* lane);
  Lane* want(uint32_t reducer, uint32_t lane);
  std::optional<Failure> on_pending(Lane* lane, std::string_view payload);
  std::optional<Failure> on_welcome(Lane* lane, std::string_view payload);
  std::optional<Failure> check_welcome(const Lane& lane, const Welcome& welcome) const;
  std::optional<Failure> learn_lanes(Lane* lane, uint32_t lanes, const std::string& incarnation);
  std::optional<Failure> maybe_join();
  Failure not_joined() const;
  std::optional<Failure> on_error(Lane* lane, std::string_view payload);
  std::optional<Failure> on_stats(Lane* lane, std::string_view payload);
  std::optional<Failure> on_stall(std::string_view payload, const Lane& lane, double now);

  // rounds.cc
  std::optional<Failure> key_record(const std::string& name, KeyRecord** record);
  KeyLane* key_lane(KeyRecord* record, Lane* lane, uint64_t round);
  void share_out(const RoundRef& round);
  void finish(Round* round, std::optional<Failure> failure);
  std::optional<Failure> find_chunk(Lane* lane, const Header& header, RoundRef* round);
  void take_back_cost(Lane* lane, Round* round, uint32_t chunk);
  std::optional<Failure> on_refused(Lane* lane, const Header& header, std::string_view payload,
                                    double now);
  void abandon(const RoundRef& round, const Failure& failure, double now);
  void drop_share(Share* share);
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
  Header round_header(const Round& round, uint8_t kind) const;
  void advance_done(KeyLane* key_lane);
  void mark_changed(KeyLane* key_lane);
  void mark_reported(KeyLane* key_lane);
  void advance_stable(KeyLane* key_lane, uint64_t stable);
  void on_heartbeat(Lane* lane, const Header& header, const uint8_t* payload);
  void queue_heartbeat(Lane* lane, double now);
  void maybe_heartbeat(Lane* lane, double now);
  void maybe_say_bye();

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
  uint32_t route_ = 0;
  double heartbeat_ = 0.25;  // until the welcome says
  Owners owners_;
  std::vector<Lane*> by_owner_;  // in the order of Owners

  std::unordered_map<uint64_t, std::unique_ptr<KeyRecord>> keys_;
  std::deque<std::pair<double, uint64_t>> idle_keys_;
  KeyMap forgotten_;
  size_t open_rounds_ = 0;  // operations that are not finished
  size_t live_rounds_ = 0;  // not stable everywhere
  std::optional<Failure> failure_;
  bool leaving_ = false;
  bool bye_queued_ = false;
  StallReports stalls_;
  uint64_t unanswered_max_ = 0;
  uint64_t frames_dropped_ = 0;
};

// Copies one chunk of the source into staging memory (cast and CRC in the same pass), and this
// rank's own bytes into the target where no lane sends them back. Takes no lock and changes no
// state: any thread may run it while others use the State.
Staged stage(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* source,
             uint8_t* target, Pool* pool);

}  // namespace ors
