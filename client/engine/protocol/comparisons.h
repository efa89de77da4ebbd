// The all-reduces of the engine's own that bring the digests of all ranks together (digest.h).
#pragma once

#include "protocol/rounds.h"

namespace ors {

class Comparisons {
 public:
  Comparisons(Run* run, Rounds* rounds, Pool* pool) : run_(*run), rounds_(*rounds), pool_(*pool) {}

  // Begins those that are due. Ends the run where the ranks' results differ.
  void begin_due(double now);

 private:
  Run& run_;
  Rounds& rounds_;
  Pool& pool_;
};

}  // namespace ors
