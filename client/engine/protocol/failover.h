// Makes new routes, on rank 0 only: puts a suspected reducer out and takes a recovered one in.
#pragma once

#include <cstdint>
#include <string>

#include "protocol/reports.h"
#include "protocol/streams.h"

namespace ors {

class Failover {
 public:
  Failover(const Run* run, Lanes* lanes, const CurrentRoute* current_route, Streams* streams,
           Reports* reports)
      : run_(*run),
        lanes_(*lanes),
        current_route_(*current_route),
        streams_(*streams),
        reports_(*reports) {}

  void decide(double now);  // does nothing on other ranks
  bool may_put_out(uint32_t slot) const;
  void put_out(Reducer* reducer, const std::string& why, double now);

 private:
  bool is_new(const Reducer& reducer) const;
  bool may_take_in(const Reducer& reducer, double now) const;
  void take_in(Reducer* reducer, double now);

  const Run& run_;
  Lanes& lanes_;
  const CurrentRoute& current_route_;
  Streams& streams_;
  Reports& reports_;
};

}  // namespace ors
