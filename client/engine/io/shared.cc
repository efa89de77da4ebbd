#include "io/shared.h"

#include "io/connection.h"

namespace ors {

Shared::Shared(Options options, Trust of_dedicated, Trust of_hosted,
               std::unique_ptr<Timeline> its_timeline)
    : state(std::move(options)),
      dedicated(std::move(of_dedicated)),
      hosted(std::move(of_hosted)),
      timeline(std::move(its_timeline)) {
  state.trace_rounds(timeline != nullptr);
  state.on_finished([this](const OperationRef& operation) {  // with mutex, as all of State
    for (const auto& loop : loops) {
      if (loop->awaits(operation.get())) loop->wake();
    }
    if (operation->notify()) events.push(operation, true);
  });
  state.on_progress([this](const OperationRef& operation) {
    if (operation->notify()) events.push(operation, false);
  });
  for (uint32_t number = 0; number < state.options().loops; ++number) {
    loops.push_back(std::make_unique<Loop>(this, number));
  }
}

Shared::~Shared() = default;

std::unique_lock<std::mutex> Shared::lock() {
  std::unique_lock<std::mutex> taken(mutex, std::try_to_lock);
  if (taken.owns_lock()) return taken;
  const double since = monotonic();
  taken.lock();
  ++lock_waits;
  lock_seconds += monotonic() - since;
  return taken;
}

uint32_t Shared::claim_wakes(const Loop* own) {
  uint32_t asleep = 0;
  for (uint32_t number = 0; number < loops.size(); ++number) {
    Loop* loop = loops[number].get();
    if (loop == own || (!state.has_byte_work(number) && !state.needs_thread(number))) continue;
    if (loop->claim_wake()) asleep |= 1u << number;
  }
  return asleep;
}

void Shared::wake(uint32_t asleep) {
  for (uint32_t number = 0; number < loops.size(); ++number) {
    if ((asleep >> number & 1) != 0) loops[number]->wake();
  }
}

void Shared::wake_all() {
  for (const auto& loop : loops) loop->wake();
}

// Memory ran out in the middle of a round. Other ranks wait for that round, so a loop ends the run.
void Shared::fail_for_memory() {
  {
    const auto held = lock();
    out_of_memory = true;
  }
  wake_all();
}

}  // namespace ors
