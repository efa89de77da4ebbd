#include "protocol/keys.h"

#include <algorithm>

namespace ors {
namespace {

constexpr double kKeyIdleSeconds = 1.0;  // until the record is dropped; lanes keep theirs longer

// A rank that lost a lane or is paused may not know yet that a chunk is stable, and may send the
// chunk to a new owner after a route change. Forgotten keys are therefore remembered for this many
// seconds plus the worker silence; see revive().
constexpr double kKeyRecentSeconds = 25.0;

}  // namespace

KeyRecord* Keys::restore(uint64_t id, double now) {
  const auto found = keys_.find(id);
  if (found != keys_.end()) return found->second.get();
  auto fresh = std::make_unique<KeyRecord>();
  fresh->id = id;
  fresh->next_round = forgotten_.get(id);
  note_idle(fresh.get(), now);  // idle until it has a round
  return keys_.emplace(id, std::move(fresh)).first->second.get();
}

std::optional<Failure> Keys::record(const std::string& name, double now, KeyRecord** out) {
  KeyRecord* known = restore(key_id(name), now);
  if (known->name.empty()) known->name = name;
  if (known->name != name) {
    Failure failure(ErrorCode::kMismatch, "keys '" + name + "' and '" + known->name +
                                              "' have the same 64-bit id: rename one of them");
    failure.key = name;
    return failure;
  }
  *out = known;
  return std::nullopt;
}

// Restores recently forgotten keys on a new route: other ranks may still need this rank's `done`.
void Keys::revive(double now) {
  for (const auto& [at, id] : recent_) restore(id, now);
}

void Keys::forget_idle(double now) {
  const double recent = kKeyRecentSeconds + run_.worker_silence;
  while (!recent_.empty() && now - recent_.front().first > recent) recent_.pop_front();
  for (size_t left = idle_keys_.size(); left > 0; --left) {
    const auto [since, id] = idle_keys_.front();
    if (now - since < kKeyIdleSeconds) return;
    idle_keys_.pop_front();
    const auto found = keys_.find(id);
    if (found == keys_.end()) continue;
    KeyRecord* record = found->second.get();
    if (!record->rounds.empty() || record->idle_since != since) continue;
    const bool told = std::none_of(record->lanes.begin(), record->lanes.end(),
                                   [](const auto& entry) { return entry->listed; });
    if (!told) {  // its positions were not reported yet
      note_idle(record, now);
      continue;
    }
    forgotten_.put(id, record->next_round);
    recent_.emplace_back(now, id);
    keys_.erase(found);
  }
}

void Keys::note_idle(KeyRecord* record, double since) {
  record->idle_since = since;
  idle_keys_.emplace_back(since, record->id);
}

void Keys::clear() {
  idle_keys_.clear();
  recent_.clear();
  keys_.clear();
}

}  // namespace ors
