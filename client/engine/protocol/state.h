// The protocol state machine of one worker. It uses no sockets, threads, clock or randomness: the
// time `now` is an argument (monotonic seconds). Frames come and go as values. State leaves orders
// for the loop: take_wanted(), take_dropped(), take_discards(). Not thread-safe: the law of locking
// in io/engine.h says which thread may call what.
//
// State forwards to its parts. Each part owns its data, and uses only parts above it in this list,
// which is also the order of the members:
//   Run           terms of the run (epoch, timeouts); whether the run has ended and why
//   Reports       log lines for the user
//   Lanes         reducers, lanes, queued control frames, connections to open and to close
//   CurrentRoute  the route in force: which lane owns which chunk
//   Keys          records of the keys in use; next round of all other keys
//   Positions     which results this rank holds in each stream; heartbeats that report them
//   Rounds        rounds from submission until all their chunks are stable
//   Results       handles results, refusals and stable positions from lanes
//   Comparisons   starts the rounds that compare the digests of all ranks
//   Sending       chooses the next frame of a lane, within credit and grants
//   Failover      moves chunks to the lanes that own them under a new route, or to a lane's new
//                 connection
//   LostReducers  rank 0 only: decides which reducers are out or in
//   Suspicions    detects reducers that this worker cannot reach
//   LostRanks     detects ranks that the reducers cannot reach, or that have left
//   Recovery      handles errors and disconnects of lanes; reconnects
//   Joining       joins the run: from HELLO until every lane has sent WELCOME
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/comparisons.h"
#include "protocol/joining.h"
#include "protocol/lost_ranks.h"
#include "protocol/results.h"
#include "protocol/sending.h"

namespace ors {

class State {
 public:
  explicit State(Options options);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const Options& options() const { return run_.options; }

  // --- connections ---
  void begin(double now);  // starts the connect timeout; later calls do nothing
  // Whether only the loop's own thread can go on: a connection must be opened or closed, or the run
  // has failed.
  bool needs_thread(uint32_t loop = 0) const {
    return lanes_.has_connection_work(loop) || run_.failure;
  }
  // Returns the lanes whose connections must be opened now. A lane is returned again only after
  // unreachable() or closed(). Lane::attempts counts the attempts since the lane was last welcomed;
  // the first attempt need not back off.
  std::vector<Lane*> take_wanted(uint32_t loop = 0);
  Lane* find(uint32_t reducer, uint32_t lane) { return lanes_.find(reducer, lane); }
  void opened(Lane* lane, double now);  // connected; the loop sends the preface
  void unreachable(Lane* lane, const std::string& why, double now);  // a connection attempt failed
  // Before the join, a connection attempt has failed; the loop dials again without an order.
  void retried(Lane* lane, const std::string& why) { lane->trouble = why; }
  void closed(Lane* lane, const std::string& why, double now);
  // Returns the lanes whose connections must be closed now; the reason is in Lane::trouble. The
  // caller then calls closed() for each.
  std::vector<Lane*> take_dropped(uint32_t loop = 0) { return lanes_.take_dropped(loop); }
  // Returns the lanes whose receivers must discard the payload that is arriving. The loop may use
  // the target until it calls discarded() for the lane; the caller waits for that. The loop calls
  // both between two reads, when at most one payload is arriving.
  std::vector<Lane*> take_discards(uint32_t loop = 0) { return lanes_.take_discards(loop); }
  void discarded(Lane* lane) { results_.discarded(lane); }
  bool joined() const { return run_.joined; }
  const std::string& run_id() const { return run_.run_id; }

  // --- rounds ---
  // Returns an error text if the submission is invalid. Reads no state but the options, which never
  // change, so the caller needs no lock.
  std::optional<std::string> check(const Submission& submission) const {
    return check_submission(submission, run_.options);
  }
  // If it returns a failure or throws std::bad_alloc, nothing was submitted.
  std::optional<Failure> submit(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent. The caller copies the chunks of a round for one lane in
  // ascending order. With Round::source set, to_copy() says when to copy a chunk; otherwise the
  // submitter copies all chunks right after submit(). Returns the lane that is to send the chunk.
  const Lane* ready(const RoundRef& round, uint32_t chunk, ChunkCopy copy) {
    return rounds_.ready(round, chunk, std::move(copy));
  }

  void fill(const Operation& operation, uint64_t elements) { rounds_.fill(operation, elements); }
  // A thread watches the source of the round; until let_go() the caller's memory is in use.
  void use(Round* round) { rounds_.use(round); }
  void fill(Round* round, uint64_t elements) { rounds_.fill(round, elements); }
  void let_go(Round* round) { rounds_.let_go(round); }

  // --- received frames ---
  // Handles the frames in order and sets the targets of the results that begin. Every result must
  // end before a result of a later batch begins. On a failure, removes the frame that failed and
  // all after it; the caller passes the failure to broken() when the results that have begun have
  // ended.
  std::optional<Failure> receive(Lane* lane, IncomingBatch* frames, double now);
  void broken(Lane* lane, const Failure& failure, double now);  // protocol error
  // The lane's last byte came at this time.
  void heard(Lane* lane, double at) { lane->last_heard = std::max(lane->last_heard, at); }
  // The loop has handled all that had come by `now`, and has called heard() for its lanes.
  void looked(double now, uint32_t loop = 0) { run_.looked_at[loop] = now; }

  // --- frames to send ---
  // Adds the next frames to the batch, which must be empty. If it adds nothing, it may return a
  // chunk that must be copied before it can be added. The caller's memory is in use from then on,
  // until copied() or not_copied().
  std::optional<ChunkToCopy> fill(Lane* lane, double now, OutgoingBatch* batch);
  void copied(const ChunkToCopy& chunk, ChunkCopy copy);
  void not_copied(const ChunkToCopy& chunk) { rounds_.let_go(chunk.round.get()); }
  // Lane::kicked marks the lanes that may have something to send; this clears the loop's marks.
  void forget_kicked(uint32_t loop = 0) { lanes_.forget_kicked(loop); }
  bool has_byte_work(uint32_t loop = 0) const { return lanes_.has_byte_work(loop); }

  // --- the view of an elastic run ---
  std::vector<LostRank> lost() const { return lost_ranks_.lost(); }
  // Returns a ROUTE without these ranks, for the registry to decide on.
  std::string view_without(const std::vector<uint32_t>& ranks, uint32_t epoch) const;
  std::optional<Failure> install(std::string_view view, double now);  // what was decided
  std::string view() const;                                           // the route in force
  void promise(uint32_t epoch) { failover_.promise(epoch); }

  // --- timers and end ---
  void tick(double now);   // implies looked() of loop 0
  void leave(double now);  // sends BYE once all rounds are stable
  bool bye_queued() const { return run_.bye_queued; }
  void fail(const Failure& failure);
  const std::optional<Failure>& failure() const { return run_.failure; }
  bool idle_for(double seconds, double now) const;
  size_t open_rounds() const { return rounds_.open_rounds(); }

  // --- queries ---
  const Route& route() const { return current_route_.route(); }
  void ask_stats();
  bool stats_waiting() const;
  const std::vector<Lane*>& lanes() const { return lanes_.all(); }
  std::vector<std::string> take_reports() { return reports_.take(); }
  std::map<std::string, uint64_t> counters() const;
  std::vector<RoundTrace> take_traces() { return rounds_.take_traces(); }
  void trace_rounds(bool wanted) { rounds_.trace_rounds(wanted); }
  void report(std::string line) { reports_.push(std::move(line)); }
  // `finished` is called for every operation that finishes.
  void on_finished(Rounds::Told finished) { rounds_.on_finished = std::move(finished); }
  void on_progress(Rounds::Told progress) { rounds_.on_progress = std::move(progress); }

  const std::shared_ptr<Pool> pool = std::make_shared<Pool>();

 private:
  std::optional<Failure> refuse(const Submission& submission) const;
  std::optional<Failure> too_old(uint32_t minor, const std::string& what) const;
  void end_if_over();
  std::optional<Failure> dispatch(Lane* lane, const Header& header, const uint8_t* payload,
                                  double now);
  std::optional<Failure> run_control(Lane* lane, const Header& header, std::string_view payload,
                                     double now);
  std::optional<Failure> on_stats(Lane* lane, std::string_view payload);
  std::optional<Failure> on_stall(std::string_view payload, const Lane& lane, double now);
  void queue_error(const Failure& cause);
  void maybe_say_bye(double now);

  Run run_;
  Reports reports_;
  Lanes lanes_;
  CurrentRoute current_route_{&lanes_};
  Keys keys_{&run_};
  Positions positions_{&run_, &lanes_, &current_route_};
  Rounds rounds_{&run_, &lanes_, &current_route_, &keys_, &positions_};
  Results results_{&run_, &current_route_, &keys_, &positions_, &rounds_, pool.get()};
  Comparisons comparisons_{&run_, &rounds_, pool.get()};
  Sending sending_{&run_, &lanes_, &current_route_, &keys_, &positions_};
  Failover failover_{&run_, &lanes_, &current_route_, &keys_, &positions_, &rounds_};
  LostReducers lost_reducers_{&run_, &lanes_, &current_route_, &failover_, &reports_};
  Suspicions suspicions_{&run_, &lanes_, &current_route_, &keys_, &rounds_, &lost_reducers_};
  LostRanks lost_ranks_{&run_, &lanes_, &current_route_, &rounds_};
  Recovery recovery_{&run_, &lanes_, &current_route_, &failover_, &suspicions_, &lost_reducers_};
  Joining joining_{&run_,      &lanes_,      &current_route_, &rounds_,
                   &failover_, &suspicions_, &recovery_,      &reports_};
  double started_at_ = -1;
  double stable_at_ = -1;  // while leaving: when all rounds became stable
};

}  // namespace ors
