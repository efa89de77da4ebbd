// Tests submit() when memory runs out. Either submit() throws and nothing was submitted, or the
// engine owns the operation and the target until the operation finishes.
#include "failing_new.h"
#include "server.h"

namespace {

constexpr size_t kCount = 20'000;  // elements: five chunks
constexpr double kLong = 60;       // seconds

struct Attempt {
  bool refused = false;  // submit() threw
  bool failed = false;   // the operation failed
};

// Fails the n-th allocation of one rank's submit(), after the other rank has submitted that round.
Attempt attempt(ors::Engine* engine, const std::string& key, long n) {
  const std::vector<float> source(kCount, 1);
  std::vector<float> target(kCount, -1);
  ors::OperationRef operation;
  std::optional<ors::Failure> failure;
  Attempt found;
  fail_allocation(n);
  try {
    operation = submit(engine, key, source, &target, &failure);
  } catch (const std::bad_alloc&) {
    found.refused = true;
  }
  CHECK(allocation_failed() || !found.refused);
  CHECK(!failure);
  if (found.refused) {
    CHECK(!engine->wait_ended(0.02));  // time for the engine to write or to end
    CHECK(!engine->failure());
    for (const float value : target) CHECK(value == -1);
    return found;
  }
  CHECK(operation->wait(kLong));
  found.failed = operation->failure().has_value();
  if (found.failed) {
    CHECK(operation->failure()->code == ors::ErrorCode::kInternal);
    CHECK(operation->failure()->message.find("memory") != std::string::npos);
  } else {
    for (const float value : target) CHECK(value == 2);
  }
  return found;
}

void test_submit() {
  std::optional<Server> server;
  Engines engines;
  int refused = 0;
  int failed = 0;
  bool open = false;  // the other rank has submitted and waits
  std::vector<float> source(kCount, 1);
  std::vector<float> target(kCount);
  ors::OperationRef peer;
  for (long n = 0, reached = 0; reached == n; ++n) {
    if (engines.empty()) {
      server.emplace(0u, 1u);
      engines = join({server->address()});
      open = false;
    }
    std::optional<ors::Failure> failure;
    if (!open) peer = submit(engines[1].get(), "key", source, &target, &failure);
    CHECK(!failure);
    const Attempt found = attempt(engines[0].get(), "key", n);
    open = found.refused;
    refused += found.refused;
    failed += found.failed;
    if (!open && !found.failed) CHECK(peer->wait(kLong) && !peer->failure());
    if (found.failed) {
      engines.clear();
      server.reset();
    }
    if (found.refused || found.failed) reached = n + 1;
  }
  CHECK(refused > 5 && failed > 5);
}

}  // namespace

int main() { test_submit(); }
