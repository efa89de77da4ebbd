#include "protocol/lanes.h"

#include <algorithm>

#include "codec/crc.h"

namespace ors {

bool Reducer::all_welcomed() const {
  for (uint32_t number = 0; number < count; ++number) {
    if (number >= lanes.size() || !lanes[number]->welcomed()) return false;
  }
  return count > 0;
}

bool Reducer::reached() const {
  const auto bad = [](const auto& lane) { return lane->restarted || lane->silent; };
  return all_welcomed() && std::none_of(lanes.begin(), lanes.end(), bad);
}

Failure lane_failure(ErrorCode code, const Lane& lane, const std::string& what) {
  return {code, lane.name + ": " + what};
}

Failure bad_frame(const Lane& lane, const char* kind, const std::string& wrong) {
  return lane_failure(ErrorCode::kProtocol, lane, std::string("a bad ") + kind + ": " + wrong);
}

Lanes::Lanes(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    reducers_.emplace_back();
    reducers_.back().address = address;
  }
}

Lane* Lanes::find(uint32_t reducer, uint32_t number) const {
  if (reducer >= reducers_.size() || number >= reducers_[reducer].lanes.size()) return nullptr;
  return reducers_[reducer].lanes[number].get();
}

Lane* Lanes::want(uint32_t reducer, uint32_t number) {
  Reducer& owner = reducers_[reducer];
  if (owner.lanes.size() <= number) owner.lanes.resize(number + 1);
  if (owner.lanes[number] == nullptr) {
    owner.lanes[number] = std::make_unique<Lane>(reducer, number, owner.address);
    all_.push_back(owner.lanes[number].get());
    to_open_.push_back(owner.lanes[number].get());
  }
  return owner.lanes[number].get();
}

void Lanes::open(Lane* lane) {
  lane->phase = Lane::Phase::kWanted;
  to_open_.push_back(lane);
}

std::vector<Lane*> Lanes::take_wanted() {
  std::vector<Lane*> lanes = std::exchange(to_open_, {});
  for (Lane* lane : lanes) {
    lane->phase = Lane::Phase::kOpening;
    ++lane->attempts;
  }
  return lanes;
}

void Lanes::drop(Lane* lane, const std::string& why, double now) {
  lane->phase = Lane::Phase::kDropped;
  lane->trouble = why;
  if (lane->unwelcomed_at < 0) lane->unwelcomed_at = now;
  discard(lane);
  to_drop_.push_back(lane);
}

void Lanes::discard(Lane* lane) {
  if (lane->receiving.empty()) return;
  for (Lane::Receiving& result : lane->receiving) result.round.reset();
  to_discard_.push_back(lane);
}

void Lanes::forget_drop(const Lane* lane) {
  to_drop_.erase(std::remove(to_drop_.begin(), to_drop_.end(), lane), to_drop_.end());
}

void Lanes::forget_kicked() {
  for (Lane* lane : kicked_) lane->kicked = false;
  kicked_.clear();
}

void Lanes::queue_frame(Lane* lane, const Header& header, std::string_view payload) {
  Header whole = header;
  whole.length = static_cast<uint32_t>(payload.size());
  whole.payload_crc = payload.empty() ? 0 : crc32c(payload.data(), payload.size());
  std::string frame(kHeaderSize, '\0');
  pack_header(whole, reinterpret_cast<uint8_t*>(frame.data()));
  frame.append(payload);
  lane->control.push_back(std::move(frame));
  kick(lane);
}

void Lanes::queue_on_welcomed(const Header& header, std::string_view payload) {
  for (Lane* lane : all_) {
    if (lane->welcomed()) queue_frame(lane, header, payload);
  }
}

}  // namespace ors
