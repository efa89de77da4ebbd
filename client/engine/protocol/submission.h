// What a caller submits, the rules that it must keep, and the copy of a chunk for sending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "protocol/operation.h"
#include "protocol/plan.h"
#include "protocol/pool.h"
#include "protocol/round.h"
#include "protocol/run.h"

namespace ors {

struct Submission {
  Descriptor descriptor;
  std::string key;
  const uint8_t* source = nullptr;  // null: this rank gives nothing
  size_t source_bytes = 0;
  uint8_t* target = nullptr;  // null: this rank takes nothing
  size_t target_bytes = 0;
  bool lent = false;     // nobody changes the source before the operation is done
  int32_t priority = 0;  // of rounds that wait, the higher goes first; ranks need not agree
  bool notify = false;
  OperationRef operation;  // that is to be finished; null: a new one
};

// Which rule of a call the submission breaks; independent of any state.
std::optional<std::string> check_submission(const Submission& submission, const Options& options);

struct Staged {
  BufferRef buffer;  // null: an empty frame
  uint32_t length = 0;
  uint32_t crc = 0;
};

// Copies one chunk of the source into staging memory (cast and CRC in the same pass), and this
// rank's own bytes into the target where no lane sends them back. Takes no lock and changes no
// state: any thread may run it while others use the State.
Staged stage(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* source,
             uint8_t* target, Pool* pool);

}  // namespace ors
