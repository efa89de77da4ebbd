#include "protocol/reports.h"

#include <algorithm>
#include <set>

#include "protocol/texts.h"

namespace ors {
namespace {

constexpr size_t kMaxLines = 256;  // the oldest are dropped if no caller takes them
constexpr size_t kMaxRounds = 256;
constexpr double kForgetAfter = 30;  // seconds without a report: the round has continued
constexpr size_t kMaxAbsentShown = 8;

std::string ranks(const std::vector<uint32_t>& list, uint64_t count) {
  return rank_names(list, count, kMaxAbsentShown);
}

std::vector<uint32_t> present(const StalledRound& round, uint32_t world_size) {
  std::vector<uint32_t> list;
  if (round.absent_count > round.absent.size()) return list;  // the list of absent ranks is cut off
  const std::set<uint32_t> absent(round.absent.begin(), round.absent.end());
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    if (absent.count(rank) == 0) list.push_back(rank);
  }
  return list;
}

}  // namespace

void Reports::add(const std::vector<StalledRound>& rounds, uint32_t world_size, double now) {
  for (auto it = seen_.begin(); it != seen_.end();) {
    it = now - it->second.at > kForgetAfter ? seen_.erase(it) : std::next(it);
  }
  for (const StalledRound& round : rounds) {
    if (round.absent.empty()) continue;
    if (seen_.size() >= kMaxRounds && seen_.count({round.key, round.round}) == 0) continue;
    Seen& seen = seen_[{round.key, round.round}];
    const bool news = seen.round.absent != round.absent || round.age_ms >= 2 * seen.told_ms;
    seen.round = round;
    seen.at = now;
    if (!news) continue;
    seen.told_ms = std::max<uint64_t>(round.age_ms, 1);
    push("round " + std::to_string(round.round) + " of key '" + round.key + "' has waited " +
         in_seconds(static_cast<double>(round.age_ms) / 1000) + " for " +
         ranks(round.absent, std::max<uint64_t>(round.absent_count, round.absent.size())));
  }
  std::string summary = who_waits_for_whom(world_size);
  if (!summary.empty() && summary != last_summary_) push(summary);
  last_summary_ = std::move(summary);
}

// Describes rounds that wait for each other: rank a waits for rank b in one key, and b for a in
// another. Empty if there are none.
std::string Reports::who_waits_for_whom(uint32_t world_size) const {
  std::set<uint32_t> waiting;
  std::set<uint32_t> awaited;
  for (const auto& [name, seen] : seen_) {
    const auto here = present(seen.round, world_size);
    waiting.insert(here.begin(), here.end());
    awaited.insert(seen.round.absent.begin(), seen.round.absent.end());
  }
  std::string text;
  for (const auto& [name, seen] : seen_) {
    const StalledRound& round = seen.round;
    const bool mutual = std::any_of(round.absent.begin(), round.absent.end(),
                                    [&](uint32_t rank) { return waiting.count(rank) > 0; });
    std::vector<uint32_t> here = present(round, world_size);
    here.erase(std::remove_if(here.begin(), here.end(),
                              [&](uint32_t rank) { return awaited.count(rank) == 0; }),
               here.end());
    if (!mutual || here.empty()) continue;
    if (!text.empty()) text += "; ";
    text += ranks(here, here.size()) + (here.size() == 1 ? " waits for " : " wait for ") +
            ranks(round.absent, round.absent.size()) + " in key '" + round.key + "' round " +
            std::to_string(round.round);
  }
  return text;
}

void Reports::push(std::string line) {
  if (lines_.size() >= kMaxLines) lines_.pop_front();
  lines_.push_back(std::move(line));
}

std::vector<std::string> Reports::take() {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  lines_.clear();
  return lines;
}

}  // namespace ors
