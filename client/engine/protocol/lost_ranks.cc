#include "protocol/lost_ranks.h"

#include <algorithm>
#include <set>

#include "protocol/messages.h"

namespace ors {
namespace {

// A lane of a reducer that has been out of reach for this many seconds need not confirm that a rank
// is absent.
constexpr double kUnreachedReducer = 5.0;

}  // namespace

std::optional<Failure> LostRanks::on_absent(Lane* lane, std::string_view payload, double now) {
  Absence absence;
  if (const std::string wrong = decode_absent(payload, &absence); !wrong.empty())
    return bad_frame(*lane, "ABSENT", wrong);
  const bool none_absent = absence.absent.empty();
  if (!none_absent) lane->none_absent_since = -1;
  if (none_absent && lane->none_absent_since < 0) lane->none_absent_since = now;
  lane->absence = std::move(absence);
  watch(now);
  return std::nullopt;
}

// Returns why a rank is lost, or nullopt. A rank is lost when every lane of every live slot reports
// it absent. While a lane is out of reach, no rank is lost; after kUnreachedReducer the lane does
// not count. The other lanes of its reducer still do: open rounds may wait for these lanes alone.
std::optional<std::string> LostRanks::lost_reason(uint32_t rank, double now) const {
  // A reducer on the rank's own machine hears the rank when nobody else does, so it has no say,
  // unless this worker is on that machine, too.
  const auto biased = [&](const Reducer& reducer) {
    const uint32_t index = lanes_.index_of(reducer);
    return run_.options.hosted_by(rank, index) && !run_.options.hosted_by(run_.options.rank, index);
  };
  std::optional<std::string> reason;
  for (const Reducer& reducer : lanes_.reducers()) {
    if (!current_route_.live(reducer) || biased(reducer)) continue;
    const bool long_ago =
        reducer.unreached_at >= 0 && now - reducer.unreached_at >= kUnreachedReducer;
    if (!reducer.reached() && !long_ago) return std::nullopt;
    for (const auto& lane : reducer.lanes) {
      if (!lane->reached()) continue;
      const auto& absent = lane->absence.absent;
      const auto found = std::find_if(absent.begin(), absent.end(),
                                      [rank](const auto& entry) { return entry.first == rank; });
      if (found == absent.end()) return std::nullopt;
      if (!reason) reason = found->second;
    }
  }
  return reason;
}

void LostRanks::watch(double now) {
  if (!run_.joined || run_.over() || run_.bye_queued) return;
  for (const Lane* lane : lanes_.all()) {
    if (!lane->usable()) continue;
    for (const auto& [rank, why] : lane->absence.absent) {
      const auto reason = lost_reason(rank, now);
      if (rank == run_.options.rank || !reason) continue;
      const std::string message = run_.rank_of_job(rank) + " is lost: " + *reason;
      return run_.end({ErrorCode::kPeerLost, message, "lost", rank});
    }
    for (const uint32_t rank : lane->absence.left) {
      // A rank leaves only after all its rounds are done, so it never joined the rounds open here.
      if (rank == run_.options.rank || rounds_.open_rounds() == 0) continue;
      const std::string message = run_.rank_of_job(rank) + " has left, and open rounds need it";
      return run_.end({ErrorCode::kPeerLost, message, "left", rank});
    }
  }
}

// Whether all other ranks have left, as far as the lanes report. True if no lane is connected.
bool LostRanks::others_have_left() const {
  std::set<uint32_t> left = {run_.options.rank};
  bool connected = false;
  bool all = false;  // by a lane's count: its list of names may be cut off
  for (const Lane* lane : lanes_.all()) {
    connected = connected || lane->welcomed();
    all = all || lane->absence.left_count + 1 >= run_.options.world_size;
    left.insert(lane->absence.left.begin(), lane->absence.left.end());
  }
  return !connected || all || left.size() >= run_.options.world_size;
}

}  // namespace ors
