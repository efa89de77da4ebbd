// The copy of a chunk that is sent: copied and cast from the caller's memory, with its CRC.
#pragma once

#include <cstdint>

#include "protocol/pool.h"
#include "protocol/round_records.h"

namespace ors {

struct ChunkCopy {
  BufferRef buffer;  // null: an empty frame
  uint32_t length = 0;
  uint32_t crc = 0;
};

// Copies one chunk of the source; casts or quantises it, and computes the CRC. For broadcast and
// all-gather also copies this rank's own bytes into the target, because no lane sends them back.
// Takes no lock of the engine and reads no State, so any thread may call it.
//
// `residual`: null, or memory as for the source, which blocks read and change: once per chunk.
ChunkCopy copy_chunk(const Round& round, uint32_t chunk, uint32_t rank, const uint8_t* source,
                     uint8_t* target, float* residual, Pool* pool);

}  // namespace ors
