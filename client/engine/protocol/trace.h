// Timestamps of the steps of a round.
#pragma once

#include <cstdint>
#include <string>

namespace ors {

// Times of one round in monotonic seconds; 0 if the step has not happened.
struct Moments {
  double submitted = 0;
  double first_sent = 0;
  double last_sent = 0;  // last one before the first result
  double first_result = 0;
  double last_result = 0;  // or time of the failure
};

// A round whose operation is finished.
struct RoundTrace {
  std::string key;
  uint64_t round = 0;
  uint64_t bytes = 0;
  uint8_t collective = 0;
  Moments moments;
  std::string error;  // empty on success
};

}  // namespace ors
