// The reducers of a job and a worker's lanes: which connections are to be opened or closed, which
// lanes may have something to send, and the control frames that wait on each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codec/failure.h"
#include "protocol/lane.h"

namespace ors {

// Plain data; the rules are in joining.cc and suspicions.cc.
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

  bool all_welcomed() const;
  bool reached() const;  // all its lanes are there, and talk
};

// A failure whose text names the lane.
Failure lane_failure(ErrorCode code, const Lane& lane, const std::string& what);

class Lanes {
 public:
  explicit Lanes(const std::vector<std::string>& addresses);

  std::vector<Reducer>& reducers() { return reducers_; }
  const std::vector<Reducer>& reducers() const { return reducers_; }
  const std::vector<Lane*>& all() const { return all_; }  // those that were ever wanted
  Reducer& reducer_of(const Lane& lane) { return reducers_[lane.reducer]; }
  const Reducer& reducer_of(const Lane& lane) const { return reducers_[lane.reducer]; }
  Lane* find(uint32_t reducer, uint32_t number) const;  // null: it was never wanted

  // The lane; a new one is to be opened.
  Lane* want(uint32_t reducer, uint32_t number);
  void open(Lane* lane);  // the connection is wanted, again or for the first time
  std::vector<Lane*> take_wanted();
  // The connection is to be closed, for the reason in Lane::trouble.
  void drop(Lane* lane, const std::string& why, double now);
  void forget_drop(const Lane* lane);  // it is closed already
  std::vector<Lane*> take_dropped();
  bool has_connection_work() const { return !to_open_.empty() || !to_drop_.empty(); }

  // The lane may have something to send.
  void kick(Lane* lane) {
    if (lane->kicked) return;
    kicked_.push_back(lane);
    lane->kicked = true;
  }
  bool has_kicked() const { return !kicked_.empty(); }
  void forget_kicked();

  void queue_frame(Lane* lane, const Header& header, std::string_view payload);
  void queue_on_welcomed(const Header& header, std::string_view payload);

 private:
  std::vector<Reducer> reducers_;
  std::vector<Lane*> all_;
  std::vector<Lane*> to_open_;
  std::vector<Lane*> to_drop_;
  std::vector<Lane*> kicked_;
};

}  // namespace ors
