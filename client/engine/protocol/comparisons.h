// Submits the engine's internal all-reduces that collect the digests of all ranks (digest.h).
#pragma once

#include "protocol/rounds.h"

namespace ors {

class Comparisons {
 public:
  Comparisons(Run* run, Rounds* rounds, Pool* pool) : run_(*run), rounds_(*rounds), pool_(*pool) {}

  // Begins the comparisons that are due. Ends the run if a comparison found different results.
  void begin_due(double now);

 private:
  Run& run_;
  Rounds& rounds_;
  Pool& pool_;
};

}  // namespace ors
