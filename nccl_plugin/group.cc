#include "group.h"

#include <algorithm>
#include <cstring>

#include "io/connection.h"
#include "log.h"

namespace ors::nccl {
namespace {

constexpr double kLeaveSeconds = 2.0;
constexpr double kLeastBarrierSeconds = 1.0;  // time for the barrier if joining took the timeout
constexpr double kStallInterval = 1.0;        // seconds between logs of the reducers' reports

// Names of keys such that chunk 0 of the i-th key belongs to reducer i modulo the reducers, so that
// requests of one or two chunks are spread evenly. The owner of chunk 0 is the low 32 bits of the
// key id modulo the reducers (PROTOCOL.md, section 6).
std::vector<std::string> spread_keys(size_t count, size_t reducers) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < count; ++i) {
    for (size_t n = 0;; ++n) {
      const std::string name = "nccl." + std::to_string(i) + "." + std::to_string(n);
      if ((key_id(name) & 0xFFFFFFFF) % reducers != i % reducers) continue;
      keys.push_back(name);
      break;
    }
  }
  return keys;
}

}  // namespace

Group::Group(const Options& options, Secret key, uint8_t wire_dtype)
    : options_(options),
      wire_dtype_(wire_dtype),
      engine_(options, Trust{std::move(key), nullptr}),
      keys_(spread_keys(std::max(kCollRequests, options.addresses.size()),
                        options.addresses.size())) {
  for (CollRequest& request : requests_) request.group = this;
}

// Joins, then waits at a barrier: a rank that has passed the barrier knows that all have joined.
std::optional<std::string> Group::join() {
  const double deadline = monotonic() + options_.connect_timeout;
  engine_.start();
  engine_.wait_joined(options_.connect_timeout + 1);
  if (auto failure = engine_.failure()) return failure->message;
  Submission all_here;
  all_here.descriptor = {kBarrier, kNone, kUInt8, false, 0, 0};
  all_here.key = "nccl.connect";
  OperationRef operation;
  auto failure = engine_.submit(all_here, &operation);
  const double end = std::max(deadline, monotonic() + kLeastBarrierSeconds);
  while (!failure && !engine_.wait(operation, end - monotonic())) {
    if (monotonic() < end) continue;  // a signal interrupted the wait
    return "the other ranks did not connect within " + as_set(options_.connect_timeout);
  }
  if (!failure) failure = operation->failure();
  if (failure) return failure->message;
  return std::nullopt;
}

CollRequest* Group::take() {
  for (CollRequest& request : requests_) {
    if (request.busy) continue;
    request.busy = true;
    request.size = 0;
    request.receive = nullptr;
    return &request;
  }
  return nullptr;
}

void Group::give_back(CollRequest* request) {
  request->operations.clear();
  request->busy = false;
}

Result Group::begin(CollRequest* request, const Descriptor& round, const uint8_t* source,
                    size_t source_bytes, uint8_t* target, size_t target_bytes) {
  Submission submission;
  submission.descriptor = round;
  submission.key = keys_[begun_++ % keys_.size()];
  submission.source = source;
  submission.source_bytes = source_bytes;
  submission.target = target;
  submission.target_bytes = target_bytes;
  submission.lent = true;
  if (const auto wrong = engine_.check(submission)) {
    log_warning(*wrong);
    return kInvalidArgument;
  }
  request->operations.emplace_back();  // allocate before submit: no memory error may lose a round
  if (const auto failure = engine_.submit(submission, &request->operations.back())) {
    request->operations.pop_back();
    return failed(*failure);
  }
  return kSuccess;
}

Result Group::test(CollRequest* request, int* done, int* size) {
  *done = 0;
  for (const OperationRef& operation : request->operations) {
    if (!operation->done()) {
      log_stalls();
      return kSuccess;
    }
    if (operation->failure()) return failed(*operation->failure());
  }
  if (request->receive != nullptr) {
    std::memcpy(request->receive, request->scratch.data() + request->begin, request->size);
  }
  *done = 1;
  if (size != nullptr) *size = static_cast<int>(request->size);
  give_back(request);
  return kSuccess;
}

Result Group::failed(const Failure& failure) {
  if (!told_) {
    log_warning("rank " + std::to_string(rank()) + " of " + std::to_string(world_size()) +
                " of job '" + options_.job + "': " + failure.message);
  }
  told_ = true;
  switch (failure.code) {
    case ErrorCode::kPeerLost:
    case ErrorCode::kUnavailable:
    case ErrorCode::kTimeout:
      return kRemoteError;
    default:
      return kInternalError;
  }
}

void Group::log_stalls() {
  const double now = monotonic();
  if (now - stalls_logged_ < kStallInterval) return;
  stalls_logged_ = now;
  for (const std::string& report : engine_.take_reports()) log_warning(report);
}

void Group::leave() {
  const auto in_flight = [](const CollRequest& request) { return request.busy; };
  if (std::any_of(requests_.begin(), requests_.end(), in_flight) || engine_.failure()) return;
  engine_.leave();
  engine_.wait_ended(kLeaveSeconds);
}

}  // namespace ors::nccl
