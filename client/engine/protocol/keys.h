// The keys of a run: a record of each key in use; of every other key, just the next round's number.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "protocol/keymap.h"
#include "protocol/round_records.h"
#include "protocol/run.h"

namespace ors {

class Keys {
 public:
  explicit Keys(const Run* run) : run_(*run) {}

  KeyRecord* find(uint64_t id) const {  // null: the key is not in use
    const auto found = keys_.find(id);
    return found == keys_.end() ? nullptr : found->second.get();
  }
  const std::unordered_map<uint64_t, std::unique_ptr<KeyRecord>>& all() const { return keys_; }
  size_t remembered() const { return forgotten_.size(); }

  // Returns the record of a key; creates it if missing. Fails if a different key has the same id.
  std::optional<Failure> record(const std::string& name, double now, KeyRecord** record);
  // The key has had no round since this time, and may be forgotten later.
  void note_idle(KeyRecord* record, double since);
  void forget_idle(double now);
  void revive(double now);
  void clear();

 private:
  KeyRecord* restore(uint64_t id, double now);  // creates the record if it is missing

  const Run& run_;
  std::unordered_map<uint64_t, std::unique_ptr<KeyRecord>> keys_;
  std::deque<std::pair<double, uint64_t>> idle_keys_;
  KeyMap forgotten_;
  std::deque<std::pair<double, uint64_t>> recent_;  // recently forgotten keys
};

}  // namespace ors
