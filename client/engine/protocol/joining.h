// Joins a run: HELLO, PENDING, WELCOME (PROTOCOL.md, section 4).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/recovery.h"
#include "protocol/reports.h"

namespace ors {

class Joining {
 public:
  Joining(Run* run, Lanes* lanes, CurrentRoute* current_route, Rounds* rounds, Failover* failover,
          Suspicions* suspicions, Recovery* recovery, Reports* reports)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        rounds_(*rounds),
        failover_(*failover),
        suspicions_(*suspicions),
        recovery_(*recovery),
        reports_(*reports) {}

  void opened(Lane* lane, double now);  // connected; the preface is queued
  std::optional<Failure> on_pending(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_welcome(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> on_route(Lane* lane, std::string_view payload, double now);
  std::optional<Failure> watch(double now);  // before the join, at every tick
  Failure not_joined() const;

 private:
  // Whom the worker waits for: reducers that have not answered, with the reasons, else ranks that
  // have not come.
  struct Missing {
    std::string reducers;
    std::optional<uint32_t> host;  // the rank that starts the last of the reducers
    uint32_t answered = 0;         // reducers that have
    std::vector<uint32_t> ranks;
    uint64_t rank_count = 0;
  };

  Missing missing() const;
  void tell_for_whom(double now);
  void say_hello(Lane* lane);
  std::optional<Failure> learn_lanes(Lane* lane, uint32_t lanes, const std::string& incarnation);
  std::optional<Failure> check_welcome(const Lane& lane, const Welcome& welcome) const;
  static bool complete(const Reducer& reducer);
  const Route* newest_route() const;
  void take_slots();
  void correct_slot(Reducer* reducer, uint32_t slot);
  std::optional<Failure> maybe_join(double now);
  std::optional<Failure> join(double now);
  void begin_without(double now);
  std::optional<Failure> take_rules();

  Run& run_;
  Lanes& lanes_;
  CurrentRoute& current_route_;
  Rounds& rounds_;
  Failover& failover_;
  Suspicions& suspicions_;
  Recovery& recovery_;
  Reports& reports_;

  uint32_t arbiter_ = 0;     // the reducers up to this index are tried before any has answered
  double arbiter_at_ = -1;   // when the last of these was first tried
  double opened_at_ = -1;    // when this worker began to join
  double complete_at_ = -1;  // when the first reducer had welcomed it on all lanes
  double told_at_ = -1;      // when a report last said whom it waits for
};

}  // namespace ors
