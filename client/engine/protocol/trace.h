// When the steps of a round happened.
#pragma once

#include <cstdint>
#include <string>

namespace ors {

// Of one round, in monotonic seconds; 0: it has not happened.
struct Moments {
  double submitted = 0;
  double first_sent = 0;
  double last_sent = 0;  // before the first result: what else there is to send waits for that
  double first_result = 0;
  double last_result = 0;  // or when it failed
};

// A round whose operation is finished.
struct RoundTrace {
  std::string key;
  uint64_t round = 0;
  uint64_t bytes = 0;
  uint8_t collective = 0;
  Moments moments;
  std::string error;  // empty: it has gone well
};

}  // namespace ors
