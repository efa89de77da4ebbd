#include "protocol/digest.h"

#include <algorithm>

#include "protocol/texts.h"

namespace ors {
namespace {

constexpr size_t kShownRanks = 16;

// The finalizer of SplitMix64: every bit of the input changes half of the output's.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// "rank 3 has", "ranks 1, 2 have"
std::string names_with_verb(const std::vector<uint32_t>& ranks) {
  return rank_names(ranks, ranks.size(), kShownRanks) + (ranks.size() > 1 ? " have" : " has");
}

}  // namespace

uint64_t digest_of(uint64_t key_id, uint64_t position, uint32_t crc) {
  return mixed(mixed(key_id + 0x9E3779B97F4A7C15u * (position + 1)) ^ crc);
}

std::optional<Failure> verdict_on(const Comparison& c, const std::vector<uint32_t>& all) {
  std::map<uint64_t, std::vector<uint32_t>> by_digest;
  for (const uint32_t rank : all) by_digest[c.digests[rank]].push_back(rank);
  if (by_digest.size() == 1) return std::nullopt;
  std::vector<std::vector<uint32_t>> groups;
  for (auto& [digest, ranks] : by_digest) groups.push_back(std::move(ranks));
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
  });
  std::string split = names_with_verb(groups[0]) + " one result";
  for (size_t i = 1; i < groups.size(); ++i) {
    split += ", " + names_with_verb(groups[i]) + " another";
  }
  const std::string rounds =
      c.first == c.last ? "round " + std::to_string(c.first)
                        : "rounds " + std::to_string(c.first) + " to " + std::to_string(c.last);
  const std::string message =
      "the results of '" + c.key + "' in " + rounds + " differ between the ranks: " + split +
      "; memory or a reducer corrupted bits without a CRC error: discard what "
      "was computed since round " +
      std::to_string(c.first) + ", and test the machines of the ranks in the minority first";
  Failure failure(ErrorCode::kIntegrity, message, "digest", groups[1].front());
  failure.key = c.key;
  failure.round = static_cast<int64_t>(c.last);
  return failure;
}

void Digests::add(uint64_t key_id, const std::string& key, uint64_t round, uint64_t digest) {
  Key& record = keys_[key_id];
  Span& span = record.open[round / every_];
  ++span.rounds;
  span.sum += digest;
  while (!record.open.empty()) {
    const auto oldest = record.open.begin();
    if (oldest->first != record.next || oldest->second.rounds < every_) return;
    Comparison due;
    due.key_id = key_id;
    due.key = key;
    due.first = oldest->first * every_;
    due.last = due.first + every_ - 1;
    due.own = oldest->second.sum;
    due_.push_back(std::move(due));
    record.open.erase(oldest);
    ++record.next;
  }
}

std::optional<Comparison> Digests::next_due() {
  if (due_.empty()) return std::nullopt;
  Comparison due = std::move(due_.front());
  due_.pop_front();
  return due;
}

}  // namespace ors
