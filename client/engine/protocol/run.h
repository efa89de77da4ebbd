// The worker's options, the terms of its run, and the end of the run. All parts of State read
// these.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codec/failure.h"
#include "protocol/chunk_plan.h"

namespace ors {

struct Options {
  std::vector<std::string> addresses;  // of the reducers, in this worker's order
  std::string job;
  std::string run_id;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  ChunkTable chunk_table;
  double connect_timeout = 60;
  double silence = 1;             // seconds without a byte before a welcomed lane is suspected
  double worker_silence = 5;      // rank 0's: seconds without a byte until a worker counts as lost
  double reducer_wait = 30;       // seconds that open rounds wait for a reducer
  std::vector<uint32_t> weights;  // rank 0's: shares of the reducers, by address; none: equal
  double grace = 5;               // seconds that the job waits for reducers that do not answer
  uint32_t min_reducers = 1;      // rank 0's: the job does not start with fewer
  uint32_t digest_every = 0;      // rank 0's: rounds of a key between comparisons; 0: none
  double leave_wait = 10;         // seconds that rank 0 waits for the others to leave first
  bool elastic = false;           // the run goes on without ranks that are lost
  std::string congestion;         // TCP congestion control; empty: the system's
  std::string source;             // address or interface that TCP connections come from; empty: any
  bool local_sockets = true;      // reducers on this machine are reached over Unix sockets
  uint32_t loops = 1;             // threads that move the bytes; each owns the sockets of its lanes
  std::string incarnation;        // 16 random bytes
  // The last of the addresses are of hosted reducers: for each, the ranks on its machine,
  // ascending; none if they are not known. The first of them has started the reducer.
  std::vector<std::vector<uint32_t>> hosted;

  // The ranks on the machine of a hosted reducer; null for a dedicated one.
  const std::vector<uint32_t>* ranks_beside(uint32_t reducer) const {
    const size_t dedicated = addresses.size() - hosted.size();
    return reducer < dedicated ? nullptr : &hosted[reducer - dedicated];
  }
  bool is_hosted(uint32_t reducer) const { return ranks_beside(reducer) != nullptr; }
  // The rank that has started the reducer, with which the reducer ends; none if there is none.
  std::optional<uint32_t> host_of(uint32_t reducer) const {
    const auto* ranks = ranks_beside(reducer);
    if (ranks == nullptr || ranks->empty()) return std::nullopt;
    return ranks->front();
  }
  // Whether the reducer runs on the machine of the rank.
  bool hosted_by(uint32_t rank, uint32_t reducer) const {
    const auto* ranks = ranks_beside(reducer);
    return ranks != nullptr && std::binary_search(ranks->begin(), ranks->end(), rank);
  }
};

// Formats a setting without trailing zeros: "0.5 s".
std::string as_set(double seconds);

// Returns nullopt, or the rule of PROTOCOL.md that an option breaks.
std::optional<std::string> check_options(const Options& options);

// Joining writes the terms; State writes the rest. A part ends the run with end(). State then ends
// the run for all parts before it returns to its caller.
struct Run {
  explicit Run(Options of_the_worker)
      : options(std::move(of_the_worker)), looked_at(options.loops, -1) {}

  // Only the first call counts.
  void end(const Failure& why) {
    if (!over()) cause = why;
  }
  bool over() const { return failure || cause; }
  std::string rank_of_job(uint32_t rank) const {
    return "rank " + std::to_string(rank) + " of job '" + options.job + "'";
  }

  const Options options;

  // The terms of the run, from the WELCOMEs. Defaults before the join.
  bool joined = false;
  std::string run_id;
  ChunkTable chunk_table;
  double heartbeat = 0.25;
  double worker_silence = 5;

  std::optional<Failure> cause;    // why State must end the run
  std::optional<Failure> failure;  // why the run has ended
  bool leaving = false;            // the worker submits no more rounds
  bool bye_queued = false;
  double ticked_at = -1;
  std::vector<double> looked_at;  // by loop: when it last told what it has heard
};

}  // namespace ors
