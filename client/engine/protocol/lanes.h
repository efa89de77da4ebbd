// The reducers of a job and their lanes, queued control frames, and the orders that a loop has to
// carry out: connections to open and to close, payloads to discard, lanes that may have something
// to send.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/failure.h"
#include "protocol/lane_record.h"

namespace ors {

// Plain data; the rules are in joining.cc and suspicions.cc.
struct Reducer {
  std::string address;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::string incarnation;   // of lane 0
  uint32_t slot = 0;         // number within the job; valid after the join
  uint32_t count = 0;        // number of lanes, as last announced
  double unreached_at = -1;  // when it stopped being reached(); below 0 if reached
  double blocked_at = -1;    // when open rounds started to wait for it while it is unreached
  double told_at = -1;       // when SUSPECT was last sent
  double moved_at = -1;      // when a route last put it out or took it in
  double patience = 0;       // rank 0: least seconds that it stays out

  bool all_welcomed() const;
  bool reached() const;  // all its lanes are usable and not silent
};

// Returns a failure with the text "<lane>: <what>".
Failure lane_failure(ErrorCode code, const Lane& lane, const std::string& what);

// Returns the failure of a lane that sent a frame which cannot be decoded.
Failure bad_frame(const Lane& lane, const char* kind, const std::string& wrong);

class Lanes {
 public:
  Lanes(const std::vector<std::string>& addresses, uint32_t loops);

  std::vector<Reducer>& reducers() { return reducers_; }
  const std::vector<Reducer>& reducers() const { return reducers_; }
  const std::vector<Lane*>& all() const { return all_; }  // all that want() has created
  Reducer& reducer_of(const Lane& lane) { return reducers_[lane.reducer]; }
  const Reducer& reducer_of(const Lane& lane) const { return reducers_[lane.reducer]; }
  uint32_t index_of(const Reducer& reducer) const {
    return static_cast<uint32_t>(&reducer - reducers_.data());
  }
  Lane* find(uint32_t reducer, uint32_t number) const;  // null if want() has not created it

  // Returns the lane. If it is missing, creates it and orders its connection to be opened.
  Lane* want(uint32_t reducer, uint32_t number);
  void open(Lane* lane);  // the connection must be opened (again)
  std::vector<Lane*> take_wanted(uint32_t loop);
  // The connection must be closed; `why` goes to Lane::trouble.
  void drop(Lane* lane, const std::string& why, double now);
  void forget_drop(const Lane* lane);  // the connection is closed already
  std::vector<Lane*> take_dropped(uint32_t loop) {
    return std::exchange(orders_[loop].to_drop, {});
  }
  // Those results that the lane receives are no longer wanted.
  template <typename Which>
  void discard(Lane* lane, const Which& which) {
    bool some = false;
    for (Lane::Receiving& result : lane->receiving) {
      if (!result.wanted || !which(result)) continue;
      result.wanted = false;
      some = true;
    }
    if (some) orders_[lane->loop].to_discard.push_back(lane);
  }
  void discard(Lane* lane) {
    discard(lane, [](const Lane::Receiving&) { return true; });
  }
  std::vector<Lane*> take_discards(uint32_t loop);
  bool has_connection_work(uint32_t loop) const {
    return !orders_[loop].to_open.empty() || !orders_[loop].to_drop.empty();
  }

  // Marks the lane as having something to send.
  void kick(Lane* lane) {
    if (lane->kicked) return;
    orders_[lane->loop].kicked.push_back(lane);
    lane->kicked = true;
  }
  // Whether the loop has frames to send or payloads to discard.
  bool has_byte_work(uint32_t loop) const {
    return !orders_[loop].kicked.empty() || !orders_[loop].to_discard.empty();
  }
  void forget_kicked(uint32_t loop);

  void queue_frame(Lane* lane, const Header& header, std::string_view payload);
  void queue_on_welcomed(const Header& header, std::string_view payload);

 private:
  // What one loop must do.
  struct Orders {
    std::vector<Lane*> to_open;
    std::vector<Lane*> to_drop;
    std::vector<Lane*> to_discard;
    std::vector<Lane*> kicked;
  };

  std::vector<Reducer> reducers_;
  std::vector<Lane*> all_;
  std::vector<Orders> orders_;  // by loop
};

}  // namespace ors
