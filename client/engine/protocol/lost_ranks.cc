#include "protocol/lost_ranks.h"

#include <algorithm>
#include <set>

#include "protocol/messages.h"

namespace ors {
namespace {

// A lane of a reducer that has been out of reach for this many seconds need not confirm that a rank
// is absent.
constexpr double kUnreachedReducer = 5.0;
// Seconds in which ranks come back to a lane that was restarted.
constexpr double kReturn = 3.0;

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

// Why the rank is absent, as far as the lane tells; null if it is not. A lane that has lost its
// state of the run tells whom it waits for, and gives the others time to come back.
const std::string* LostRanks::absence_at(const Lane& lane, uint32_t rank, double now) const {
  static const std::string not_back = "it has not come back to a reducer that was restarted";
  if (lane.phase == Lane::Phase::kPending) {
    const auto& absent = lane.pending.absent;
    const bool is_absent = std::find(absent.begin(), absent.end(), rank) != absent.end();
    return is_absent && now - lane.pending_at >= kReturn ? &not_back : nullptr;
  }
  const auto& absent = lane.absence.absent;
  const auto found = std::find_if(absent.begin(), absent.end(),
                                  [rank](const auto& entry) { return entry.first == rank; });
  return found == absent.end() ? nullptr : &found->second;
}

// Whether the lane can tell who is absent. In an elastic run, so can a lane that was restarted: the
// rank that makes the routes may be the one that is lost.
bool LostRanks::testifies(const Lane& lane) const {
  if (!run_.options.elastic) return lane.reached();
  return !lane.silent && (lane.welcomed() || lane.phase == Lane::Phase::kPending);
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
    const bool whole = std::all_of(reducer.lanes.begin(), reducer.lanes.end(),
                                   [this](const auto& lane) { return testifies(*lane); });
    if (!whole && !long_ago) return std::nullopt;
    for (const auto& lane : reducer.lanes) {
      if (!testifies(*lane)) continue;
      const std::string* why = absence_at(*lane, rank, now);
      if (why == nullptr) return std::nullopt;
      if (!reason) reason = *why;
    }
  }
  return reason;
}

void LostRanks::watch(double now) {
  if (!run_.joined || run_.over() || run_.bye_queued) return;
  lost_.clear();
  find_lost(now);
  if (lost_.empty() || run_.options.elastic) return;
  const LostRank& first = lost_.front();
  run_.end({ErrorCode::kPeerLost, first.message, first.reason, first.rank});
}

void LostRanks::find_lost(double now) {
  for (const Lane* lane : lanes_.all()) {
    if (lane->phase == Lane::Phase::kPending && testifies(*lane)) {
      for (const uint32_t rank : lane->pending.absent) {
        if (const auto reason = lost_reason(rank, now))
          note(rank, "lost", run_.rank_of_job(rank) + " is lost: " + *reason);
      }
    }
    if (!lane->usable() && !(lane->welcomed() && testifies(*lane))) continue;
    for (const auto& [rank, why] : lane->absence.absent) {
      if (const auto reason = lost_reason(rank, now))
        note(rank, "lost", run_.rank_of_job(rank) + " is lost: " + *reason);
    }
    for (const uint32_t rank : lane->absence.left) {
      // A rank leaves only after all its rounds are done, so it never joined the rounds open here.
      if (rounds_.open_rounds() > 0)
        note(rank, "left", run_.rank_of_job(rank) + " has left, and open rounds need it");
    }
  }
}

void LostRanks::note(uint32_t rank, const std::string& reason, const std::string& message) {
  const bool known = std::any_of(lost_.begin(), lost_.end(),
                                 [rank](const LostRank& lost) { return lost.rank == rank; });
  if (known || rank == run_.options.rank || current_route_.route().is_out(rank)) return;
  lost_.push_back({rank, reason, message});
}

std::vector<LostRank> LostRanks::lost() const {
  std::vector<LostRank> lost = lost_;
  const auto is_out = [this](const LostRank& each) {
    return current_route_.route().is_out(each.rank);
  };
  lost.erase(std::remove_if(lost.begin(), lost.end(), is_out), lost.end());
  return lost;
}

// Whether all other ranks have left, as far as the lanes report. True if no lane is connected.
bool LostRanks::others_have_left() const {
  const size_t members = run_.options.world_size - current_route_.route().lost.size();
  std::set<uint32_t> left = {run_.options.rank};
  bool connected = false;
  bool all = false;  // by a lane's count: its list of names may be cut off
  for (const Lane* lane : lanes_.all()) {
    connected = connected || lane->welcomed();
    all = all || lane->absence.left_count + 1 >= members;
    left.insert(lane->absence.left.begin(), lane->absence.left.end());
  }
  return !connected || all || left.size() >= members;
}

}  // namespace ors
