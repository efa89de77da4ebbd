#include "protocol/messages.h"

#include <algorithm>
#include <set>

namespace ors {
namespace {

using Type = Value::Type;

constexpr uint64_t kAny32 = 0xFFFFFFFF;
constexpr uint64_t kAny64 = ~uint64_t{0};
constexpr size_t kLossBytes = 6;

// Reads the fields of one map. Keeps the first error and skips all fields after it.
class Fields {
 public:
  explicit Fields(std::string_view payload) {
    if (const char* broken = msgpack_decode(payload, &map_)) {
      wrong_ = broken;
    } else if (map_.type != Type::kMap) {
      wrong_ = "the payload is not a map";
    }
  }
  explicit Fields(const Value& map) : map_(map) {
    if (map_.type != Type::kMap) wrong_ = "a list item is not a map";
  }

  std::string wrong() const { return wrong_; }

  template <typename T>
  Fields& number(const char* name, T* out, uint64_t least, uint64_t most) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    const auto n = value->as_uint();
    if (!n || *n < least || *n > most) return fail(not_a_number(name, least, most));
    *out = static_cast<T>(*n);
    return *this;
  }

  // An integer with -1 for "none".
  Fields& optional_number(const char* name, int64_t* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    const auto n = value->as_int();
    if (!n || *n < -1) return fail(quoted(name) + " is not a number, or is below -1");
    *out = *n;
    return *this;
  }

  Fields& boolean(const char* name, bool* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kBool) return fail(quoted(name) + " is not true or false");
    *out = value->boolean;
    return *this;
  }

  Fields& text(const char* name, std::string* out, size_t most) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kStr || value->text.size() > most) {
      return fail(quoted(name) + " is not a text of at most " + std::to_string(most) + " bytes");
    }
    *out = value->text;
    return *this;
  }

  Fields& incarnation(std::string* out) {
    const Value* value = field("incarnation");
    if (value == nullptr || value->type != Type::kBin || value->text.size() != 16) {
      return fail("the incarnation is not 16 bytes");
    }
    *out = value->text;
    return *this;
  }

  Fields& ranks(const char* name, std::vector<uint32_t>* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kList) return fail(quoted(name) + " is not a list of ranks");
    for (const Value& item : value->list) {
      const auto rank = item.as_uint();
      if (!rank || *rank >= kMaxWorldSize) {
        return fail("a rank in " + not_a_number(name, 0, kMaxWorldSize - 1));
      }
      out->push_back(static_cast<uint32_t>(*rank));
    }
    return *this;
  }

  Fields& chunk_table(ChunkTable* out) {
    const Value* value = field("chunk_table");
    if (value == nullptr || value->type != Type::kList)
      return fail("the chunk table is missing or not a list");
    for (const Value& row : value->list) {
      if (row.list.size() != 2) return fail("a row of the chunk table is not a pair");
      const auto least = row.list[0].as_uint();
      const auto bytes = row.list[1].as_uint();
      if (!least || !bytes || *bytes > kMaxChunkBytes) {
        return fail("a row of the chunk table is not (least bytes, chunk bytes up to " +
                    std::to_string(kMaxChunkBytes) + ")");
      }
      out->push_back({*least, static_cast<uint32_t>(*bytes)});
    }
    const char* broken = check_chunk_table(*out);
    return broken == nullptr ? *this : fail(broken);
  }

  // One number for each slot.
  Fields& slots(const char* name, std::vector<uint32_t>* out, uint64_t least, uint64_t most) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kList || value->list.size() > kMaxReducers) {
      return fail(quoted(name) + " is not a list, or has too many slots");
    }
    for (const Value& item : value->list) {
      const auto n = item.as_uint();
      if (!n || *n < least || *n > most) {
        return fail("a slot in " + not_a_number(name, least, most));
      }
      out->push_back(static_cast<uint32_t>(*n));
    }
    return *this;
  }

  // Items of 6 bytes: epoch (4), rank (2).
  Fields& losses(const char* name, std::vector<Loss>* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    const std::string& packed = value->text;
    if (value->type != Type::kBin || packed.size() % kLossBytes != 0 ||
        packed.size() > kLossBytes * kMaxLosses) {
      return fail(quoted(name) + " is not a list of at most " + std::to_string(kMaxLosses) +
                  " losses");
    }
    std::set<uint32_t> ranks;
    for (size_t at = 0; at < packed.size(); at += kLossBytes) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(packed.data() + at);
      const Loss loss = {load<uint32_t>(bytes), load<uint16_t>(bytes + 4)};
      const Loss before = out->empty() ? Loss{1, 0} : out->back();
      const bool ascends = std::pair(before.epoch, before.rank) < std::pair(loss.epoch, loss.rank);
      if (loss.rank >= kMaxWorldSize || !ranks.insert(loss.rank).second ||
          !(ascends || (out->empty() && loss == before))) {
        return fail("the losses in " + quoted(name) + " do not ascend, or name a rank twice");
      }
      out->push_back(loss);
    }
    return *this;
  }

  Fields& route(Route* out) {
    number("route", &out->number, 0, kAny32);
    losses("lost", &out->lost);
    slots("since", &out->since, 0, kAny32);
    slots("live", &out->live, 0, 1);
    slots("lanes_by_slot", &out->lanes_by_slot, 1, kMaxLanes);
    const char* broken = wrong_.empty() ? check_route(*out) : nullptr;
    return broken == nullptr ? *this : fail(broken);
  }

  Fields& reasons(const char* name, std::vector<std::pair<uint32_t, std::string>>* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kList || value->list.size() > kMaxAbsent) {
      return fail(quoted(name) + " is not a list, or has too many ranks");
    }
    for (const Value& item : value->list) {
      if (item.list.size() != 2 || item.list[1].type != Type::kStr)
        return fail("an absent rank is not a pair of rank and text");
      const auto rank = item.list[0].as_uint();
      if (!rank || *rank >= kMaxWorldSize) {
        return fail("a rank in " + not_a_number(name, 0, kMaxWorldSize - 1));
      }
      out->emplace_back(static_cast<uint32_t>(*rank), item.list[1].text);
    }
    return *this;
  }

  Fields& maps(const char* name, std::vector<Value>* out) {
    const Value* value = field(name);
    if (value == nullptr) return *this;
    if (value->type != Type::kList) return fail(quoted(name) + " is not a list");
    *out = value->list;
    return *this;
  }

 private:
  const Value* field(const char* name) const { return wrong_.empty() ? map_.find(name) : nullptr; }
  Fields& fail(std::string wrong) {
    if (wrong_.empty()) wrong_ = std::move(wrong);
    return *this;
  }

  static std::string quoted(const char* name) { return "'" + std::string(name) + "'"; }

  static std::string not_a_number(const char* name, uint64_t least, uint64_t most) {
    const std::string from = std::to_string(least);
    if (most == kAny64) return quoted(name) + " is not a number of at least " + from;
    return quoted(name) + " is not a number from " + from + " to " + std::to_string(most);
  }

  Value map_;
  std::string wrong_;
};

std::string packed(Value::Map entries) {
  std::string out;
  msgpack_encode(Value::of_map(std::move(entries)), &out);
  return out;
}

Value losses(const std::vector<Loss>& lost) {
  std::string out;
  for (const Loss& loss : lost) {
    uint8_t bytes[kLossBytes];
    store(bytes, loss.epoch);
    store(bytes + 4, static_cast<uint16_t>(loss.rank));
    out.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
  }
  return Value::bin(std::move(out));
}

Value numbers(const std::vector<uint32_t>& list) {
  std::vector<Value> items;
  for (const uint32_t n : list) items.push_back(Value::of(n));
  return Value::of_list(std::move(items));
}

// Returns the longest prefix of whole characters within `most` bytes.
std::string_view clipped(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace

std::string encode_hello(const Hello& hello) {
  std::vector<Value> rows;
  for (const ChunkRow& row : hello.chunk_table) {
    rows.push_back(Value::of_list({Value::of(row.least_round_bytes), Value::of(row.chunk_bytes)}));
  }
  return packed({{"job", Value::str(hello.job)},
                 {"run_id", Value::str(hello.run_id)},
                 {"rank", Value::of(hello.rank)},
                 {"world_size", Value::of(hello.world_size)},
                 {"incarnation", Value::bin(hello.incarnation)},
                 {"slot", Value::of(hello.slot)},
                 {"reducers", Value::of(hello.reducers)},
                 {"chunk_table", Value::of_list(std::move(rows))},
                 {"minor", Value::of(kProtocolMinor)},
                 {"client", Value::str(hello.client)},
                 {"rejoin", Value::of_bool(hello.rejoin)},
                 {"digest_every", Value::of(hello.digest_every)},
                 {"worker_silence_ms", Value::of(hello.worker_silence_ms)},
                 {"weights", numbers(hello.weights)},
                 {"elastic", Value::of_bool(hello.elastic)},
                 {"lost", losses(hello.lost)}});
}

std::string encode_key(std::string_view name) { return packed({{"name", Value::str(name)}}); }

std::string encode_error(const Failure& failure) {
  constexpr size_t kMaxText = 2'048;
  return packed({{"code", Value::of(static_cast<uint64_t>(failure.code))},
                 {"message", Value::str(clipped(failure.message, kMaxText))},
                 {"rank", Value::of_int(failure.rank)},
                 {"reason", Value::str(clipped(failure.reason, kMaxText))},
                 {"key", Value::str(clipped(failure.key, kMaxKeyBytes))},
                 {"round", Value::of_int(failure.round)}});
}

std::string encode_abandon(const Failure& failure) {
  return packed({{"code", Value::of(static_cast<uint64_t>(failure.code))},
                 {"message", Value::str(clipped(failure.message, kMaxTextBytes))}});
}

std::string encode_route(const Route& route) {
  return packed({{"route", Value::of(route.number)},
                 {"since", numbers(route.since)},
                 {"live", numbers(route.live)},
                 {"lanes_by_slot", numbers(route.lanes_by_slot)},
                 {"lost", losses(route.lost)}});
}

std::string encode_suspect(const Suspicion& suspicion) {
  constexpr size_t kMaxReason = 512;
  return packed({{"rank", Value::of(suspicion.rank)},
                 {"slot", Value::of(suspicion.slot)},
                 {"route", Value::of(suspicion.route)},
                 {"reason", Value::str(clipped(suspicion.reason, kMaxReason))},
                 {"restarted", Value::of_bool(suspicion.restarted)}});
}

std::string decode_pending(std::string_view payload, Pending* out) {
  return Fields(payload)
      .number("lanes", &out->lanes, 1, kMaxLanes)
      .number("lane", &out->lane, 0, kMaxLanes - 1)
      .incarnation(&out->incarnation)
      .ranks("absent", &out->absent)
      .number("absent_count", &out->absent_count, 0, kMaxWorldSize)
      .wrong();
}

std::string decode_welcome(std::string_view payload, Welcome* out) {
  std::string wrong = Fields(payload)
                          .text("run_id", &out->run_id, kMaxRunIdBytes)
                          .number("slot", &out->slot, 0, kMaxReducers - 1)
                          .number("reducers", &out->reducers, 1, kMaxReducers)
                          .number("lanes", &out->lanes, 1, kMaxLanes)
                          .number("lane", &out->lane, 0, kMaxLanes - 1)
                          .incarnation(&out->incarnation)
                          .number("world_size", &out->world_size, 1, kMaxWorldSize)
                          .number("epoch", &out->epoch, 0, kAny32)
                          .chunk_table(&out->chunk_table)
                          .number("credit", &out->credit, kMinChunkCost, kAny64)
                          .number("grant", &out->grant, kMinChunkCost, kAny64)
                          .number("heartbeat_ms", &out->heartbeat_ms, 1, 3'600'000)
                          .number("instance", &out->instance, 0, kAny64)
                          .number("digest_every", &out->digest_every, 0, kAny32)
                          .number("worker_silence_ms", &out->worker_silence_ms, 0, kMaxSilenceMs)
                          .number("minor", &out->minor, 0, 255)
                          .slots("weights", &out->weights, 1, kMaxWeights)
                          .route(&out->route)
                          .wrong();
  if (const char* broken = check_weights(out->weights, out->reducers); wrong.empty() && broken) {
    wrong = broken;
  }
  if (out->worker_silence_ms == 0) out->worker_silence_ms = kWorkerSilenceMs;
  return wrong;
}

std::string decode_error(std::string_view payload, Failure* out) {
  uint32_t code = 0;
  std::string wrong = Fields(payload)
                          .number("code", &code, 1, kAny32)
                          .text("message", &out->message, kMaxControlBytes)
                          .optional_number("rank", &out->rank)
                          .text("reason", &out->reason, kMaxControlBytes)
                          .text("key", &out->key, kMaxKeyBytes)
                          .optional_number("round", &out->round)
                          .wrong();
  if (wrong.empty() && code == 0) wrong = "no error code";
  out->code = static_cast<ErrorCode>(code);
  return wrong;
}

std::string decode_goaway(std::string_view payload, std::string* reason) {
  return Fields(payload).text("reason", reason, kMaxControlBytes).wrong();
}

std::string decode_stall(std::string_view payload, std::vector<StalledRound>* out) {
  std::vector<Value> rounds;
  std::string wrong = Fields(payload).maps("rounds", &rounds).wrong();
  for (const Value& item : rounds) {
    if (!wrong.empty()) return wrong;
    StalledRound round;
    wrong = Fields(item)
                .text("key", &round.key, kMaxKeyBytes)
                .number("round", &round.round, 0, kAny64)
                .number("age_ms", &round.age_ms, 0, kAny64)
                .ranks("absent", &round.absent)
                .number("absent_count", &round.absent_count, 0, kMaxWorldSize)
                .wrong();
    out->push_back(std::move(round));
  }
  return wrong;
}

std::string decode_refused(std::string_view payload, Failure* out) {
  uint32_t code = static_cast<uint32_t>(ErrorCode::kMismatch);
  std::string wrong = Fields(payload)
                          .number("code", &code, 1, kAny32)
                          .text("message", &out->message, kMaxControlBytes)
                          .wrong();
  out->code = static_cast<ErrorCode>(code);
  return wrong;
}

std::string decode_route(std::string_view payload, Route* out) {
  std::string wrong = Fields(payload).route(out).wrong();
  return wrong.empty() && out->since.empty() ? "a route without slots" : wrong;
}

std::string decode_suspect(std::string_view payload, Suspicion* out) {
  return Fields(payload)
      .number("rank", &out->rank, 0, kMaxWorldSize - 1)
      .number("slot", &out->slot, 0, kMaxReducers - 1)
      .number("route", &out->route, 0, kAny32)
      .text("reason", &out->reason, kMaxTextBytes)
      .boolean("restarted", &out->restarted)
      .wrong();
}

std::string decode_absent(std::string_view payload, Absence* out) {
  std::string wrong = Fields(payload)
                          .reasons("absent", &out->absent)
                          .ranks("left", &out->left)
                          .number("left_count", &out->left_count, 0, kMaxWorldSize)
                          .wrong();
  out->left_count = std::max(out->left_count, static_cast<uint32_t>(out->left.size()));
  return wrong;
}

}  // namespace ors
