// Encodes and decodes the control maps that a worker sends and receives (PROTOCOL.md, section 4).
//
// Decoders return an error as a text, or an empty text. Wrong types and numbers out of range are
// errors. Unknown fields are ignored; missing fields keep their defaults.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codec/msgpack.h"
#include "protocol/chunk_owners.h"
#include "protocol/chunk_plan.h"
#include "protocol/operation.h"

namespace ors {

struct Hello {
  std::string job;
  std::string run_id;
  uint32_t rank = 0;
  uint32_t world_size = 1;
  std::string incarnation;  // 16 bytes
  uint32_t slot = 0;
  uint32_t reducers = 1;
  ChunkTable chunk_table;
  std::string client;
  bool rejoin = false;
  uint32_t digest_every = 0;       // rank 0's
  uint32_t worker_silence_ms = 0;  // rank 0's
  std::vector<uint32_t> weights;   // rank 0's, by slot; none: all slots are equal
  bool elastic = false;
  std::vector<Loss> lost;  // the view that the worker knows
};

struct Pending {
  uint32_t lanes = 0;
  uint32_t lane = 0;
  std::string incarnation;
  std::vector<uint32_t> absent;
  uint64_t absent_count = 0;
};

struct Welcome {
  std::string run_id;
  uint32_t slot = 0;
  uint32_t reducers = 0;
  uint32_t lanes = 0;
  uint32_t lane = 0;
  std::string incarnation;
  uint32_t world_size = 0;
  uint32_t epoch = 0;
  ChunkTable chunk_table;
  uint64_t credit = 0;
  uint64_t grant = 0;
  uint32_t heartbeat_ms = 0;
  uint64_t instance = 0;
  uint32_t digest_every = 0;
  uint32_t worker_silence_ms = 0;
  uint32_t minor = 0;
  std::vector<uint32_t> weights;  // by slot; none: all slots are equal
  Route route;                    // without slots: the first route
};

struct StalledRound {
  std::string key;
  uint64_t round = 0;
  uint64_t age_ms = 0;
  std::vector<uint32_t> absent;
  uint64_t absent_count = 0;
};

struct Suspicion {
  uint32_t rank = 0;
  uint32_t slot = 0;
  uint32_t route = 0;
  std::string reason;
  bool restarted = false;  // a lane of the slot has lost the streams of this rank
};

struct Absence {
  std::vector<std::pair<uint32_t, std::string>> absent;  // rank and reason
  std::vector<uint32_t> left;                            // at most kMaxControlItems
  uint32_t left_count = 0;
};

std::string encode_hello(const Hello& hello);
std::string encode_key(std::string_view name);
std::string encode_error(const Failure& failure);
std::string encode_abandon(const Failure& failure);
std::string encode_route(const Route& route);
std::string encode_suspect(const Suspicion& suspicion);

std::string decode_pending(std::string_view payload, Pending* out);
std::string decode_welcome(std::string_view payload, Welcome* out);
std::string decode_error(std::string_view payload, Failure* out);
std::string decode_goaway(std::string_view payload, std::string* reason);
std::string decode_stall(std::string_view payload, std::vector<StalledRound>* out);
std::string decode_refused(std::string_view payload, Failure* out);
std::string decode_route(std::string_view payload, Route* out);
std::string decode_suspect(std::string_view payload, Suspicion* out);
std::string decode_absent(std::string_view payload, Absence* out);

}  // namespace ors
