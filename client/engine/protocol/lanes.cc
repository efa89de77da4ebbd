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

Lanes::Lanes(const std::vector<std::string>& addresses, uint32_t loops) : orders_(loops) {
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
    const auto loop = static_cast<uint32_t>(all_.size() % orders_.size());
    owner.lanes[number] = std::make_unique<Lane>(reducer, number, loop, owner.address);
    all_.push_back(owner.lanes[number].get());
    orders_[loop].to_open.push_back(owner.lanes[number].get());
  }
  return owner.lanes[number].get();
}

void Lanes::open(Lane* lane) {
  lane->phase = Lane::Phase::kWanted;
  orders_[lane->loop].to_open.push_back(lane);
}

std::vector<Lane*> Lanes::take_wanted(uint32_t loop) {
  std::vector<Lane*> lanes = std::exchange(orders_[loop].to_open, {});
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
  orders_[lane->loop].to_drop.push_back(lane);
}

// Leaves out lanes whose payload has ended meanwhile.
std::vector<Lane*> Lanes::take_discards(uint32_t loop) {
  std::vector<Lane*> lanes = std::exchange(orders_[loop].to_discard, {});
  const auto has_ended = [](const Lane* lane) {
    return lane->receiving.empty() || lane->receiving.front().wanted;
  };
  lanes.erase(std::remove_if(lanes.begin(), lanes.end(), has_ended), lanes.end());
  return lanes;
}

void Lanes::forget_drop(const Lane* lane) {
  auto& to_drop = orders_[lane->loop].to_drop;
  to_drop.erase(std::remove(to_drop.begin(), to_drop.end(), lane), to_drop.end());
}

void Lanes::forget_kicked(uint32_t loop) {
  auto& kicked = orders_[loop].kicked;
  for (Lane* lane : kicked) lane->kicked = false;
  kicked.clear();
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
