// The thread that watches sources which a device fills: a word tells how many slices are there.
//
// The thread looks every 30 us while a source fills up, and sleeps otherwise. A round that it
// watches is in use (Round::users), so the word stays.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/round_records.h"
#include "protocol/submission.h"

namespace ors {

struct Shared;

class Arrivals {
 public:
  explicit Arrivals(Shared* shared) : shared_(*shared) {}
  ~Arrivals() { end(); }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Comes before watch(). Throws std::system_error if the system has no thread.
  void start();
  // Lets go of the round, which must be in use, when its source is there or it has ended. Returns
  // false, and does nothing, after end().
  bool watch(const RoundRef& round, const DeviceWords& words);
  // All rounds must have ended. Returns when no round is watched any more.
  void end();

 private:
  struct Watched {
    RoundRef round;
    DeviceWords words;
    uint32_t seen = 0;
  };

  void run();
  static bool has_news(const std::vector<Watched>& all);
  void take_news(std::vector<Watched>* all);
  bool take(Watched* one);

  Shared& shared_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> fresh_;  // with mutex_
  bool ended_ = false;          // with mutex_
  std::thread thread_;          // with mutex_
};

}  // namespace ors
