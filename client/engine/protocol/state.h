// The protocol state of one worker, without sockets, threads, clock or randomness: `now` is an
// argument (seconds that only rise), bytes move through each Lane's Receiver and Sender. Not
// thread-safe: loop.h says who may call.
//
// State is the front of its parts. Each part owns its data and uses the parts that stand before it
// in the list of members:
//   Run           the terms of the run, and whether it is over
//   Lanes         reducers, lanes, control frames that wait
//   Routing       which lane owns which chunk
//   Keys          records of the keys in use
//   Positions     what this rank holds of each stream, and how the lanes hear of it
//   Rounds        rounds from submission to stability
//   Results       what lanes answer
//   Comparisons   digests of all ranks
//   Sending       which frame goes next: credit and grants
//   Streams       what a route, or a new connection, moves
//   RouteMaker    rank 0: which reducers are out or in
//   Suspicions    reducers that this worker cannot reach
//   LostRanks     ranks that the reducers cannot reach
//   Recovery      lanes that are lost, and back
//   Joining       from HELLO to the first round
#pragma once

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
  void begin(double now);  // from here the connect timeout counts
  // What only the thread in charge of connections can do: open, close, end.
  bool needs_engine_thread() const { return lanes_.has_connection_work() || run_.failure; }
  // Connections to open now; each is returned once until it is unreachable() or closed().
  // Lane::attempts counts how often since it was welcomed: the first time there is no reason to
  // wait.
  std::vector<Lane*> take_wanted();
  Lane* find(uint32_t reducer, uint32_t lane) { return lanes_.find(reducer, lane); }
  void opened(Lane* lane, double now);                               // and the preface was sent
  void unreachable(Lane* lane, const std::string& why, double now);  // the attempt has failed
  void closed(Lane* lane, const std::string& why, double now);
  // Connections to close now, with Lane::trouble as the reason; closed() must follow.
  std::vector<Lane*> take_dropped() { return lanes_.take_dropped(); }
  bool joined() const { return run_.joined; }
  const std::string& run_id() const { return run_.run_id; }

  // --- rounds ---
  // Which rule of a call the submission breaks; independent of any state.
  std::optional<std::string> check(const Submission& submission) const {
    return check_submission(submission, run_.options);
  }
  // Throws std::bad_alloc: then nothing was submitted.
  std::optional<Failure> submit(const Submission& submission, double now, RoundRef* round);
  // The chunk's bytes are ready to be sent. A lane's chunks of a round become ready in ascending
  // order. Rounds whose source is lent are copied as to_stage() says, all others at once.
  void ready(const RoundRef& round, uint32_t chunk, Staged staged) {
    rounds_.ready(round, chunk, std::move(staged));
  }

  // --- frames in; failures go to broken() ---
  std::optional<Failure> control(Lane* lane, const Header& header, const uint8_t* payload,
                                 double now);
  std::optional<Failure> result_begins(Lane* lane, const Header& header, Target* target) {
    return results_.begins(lane, header, target);
  }
  std::optional<Failure> result_ends(Lane* lane, const Header& header, double now);
  void broken(Lane* lane, Failure failure, double now);  // the lane broke the protocol

  // --- frames out ---
  // Only when the lane's sender is empty.
  void fill(Lane* lane, double now) { sending_.fill(lane, now); }
  // After fill() added nothing: the chunk to stage() before it can add more.
  std::optional<std::pair<RoundRef, uint32_t>> to_stage(Lane* lane) {
    return sending_.to_stage(lane);
  }
  // Lanes that may have something to send are marked `kicked`.
  void forget_kicked() { lanes_.forget_kicked(); }
  bool has_kicked() const { return lanes_.has_kicked(); }

  // --- time and end ---
  void tick(double now);
  void leave(double now);  // BYE as soon as everything is stable
  bool bye_queued() const { return run_.bye_queued; }
  void fail(const Failure& failure);
  const std::optional<Failure>& failure() const { return run_.failure; }
  bool idle_for(double seconds, double now) const;
  size_t open_rounds() const { return rounds_.open_rounds(); }

  // --- questions ---
  const Route& route() const { return routing_.route(); }
  std::vector<uint32_t> suspected() const { return suspicions_.slots(); }
  void ask_stats();
  bool stats_waiting() const;
  const std::vector<Lane*>& lanes() const { return lanes_.all(); }  // those that were ever wanted
  std::vector<std::string> take_reports() { return reports_.take(); }
  std::map<std::string, uint64_t> counters() const;
  std::vector<RoundTrace> take_traces() { return rounds_.take_traces(); }
  void trace_rounds(bool wanted) { rounds_.trace_rounds(wanted); }
  void report(std::string line) { reports_.push(std::move(line)); }
  // Told of every operation that ends.
  void on_finished(Rounds::Finished finished) { rounds_.on_finished = std::move(finished); }

  const std::shared_ptr<Pool> pool = std::make_shared<Pool>();

 private:
  void end_if_over();
  std::optional<Failure> dispatch(Lane* lane, const Header& header, const uint8_t* payload,
                                  double now);
  std::optional<Failure> run_control(Lane* lane, const Header& header, std::string_view payload,
                                     double now);
  std::optional<Failure> on_stats(Lane* lane, std::string_view payload);
  std::optional<Failure> on_stall(std::string_view payload, const Lane& lane, double now);
  void tell_failure();
  void maybe_say_bye(double now);

  Run run_;
  StallReports reports_;
  Lanes lanes_;
  Routing routing_{&lanes_};
  Keys keys_{&run_};
  Positions positions_{&run_, &lanes_, &routing_};
  Rounds rounds_{&run_, &lanes_, &routing_, &keys_, &positions_};
  Results results_{&run_, &lanes_, &routing_, &keys_, &positions_, &rounds_};
  Comparisons comparisons_{&run_, &rounds_, pool.get()};
  Sending sending_{&run_, &lanes_, &routing_, &keys_, &positions_};
  Streams streams_{&run_, &lanes_, &routing_, &keys_, &positions_, &rounds_};
  RouteMaker route_maker_{&run_, &lanes_, &routing_, &streams_, &reports_};
  Suspicions suspicions_{&run_, &lanes_, &routing_, &keys_, &rounds_, &route_maker_};
  LostRanks lost_ranks_{&run_, &lanes_, &routing_, &rounds_};
  Recovery recovery_{&run_, &lanes_, &routing_, &streams_, &suspicions_, &route_maker_};
  Joining joining_{&run_, &lanes_, &routing_, &rounds_, &streams_, &suspicions_, &recovery_};
  double started_at_ = -1;
  double stable_at_ = -1;  // since then a worker that leaves has nothing to wait for
};

}  // namespace ors
