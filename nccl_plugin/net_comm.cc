#include "net_comm.h"

#include <sys/socket.h>

#include <algorithm>
#include <bitset>
#include <exception>
#include <system_error>
#include <utility>

#include "io/fork.h"
#include "log.h"

namespace ors::nccl {
namespace {

// Maximum bytes that one call moves. A core copies them in well under a millisecond; NCCL's thread
// has other connections to serve.
constexpr size_t kBudget = 1 << 20;

// What a turn costs at least, in bytes: with many small messages the system calls take the time,
// and one call makes at most 256 of them.
constexpr size_t kTurnCost = 4 << 10;

}  // namespace

void Request::begin(Comm* owner, void* memory, size_t bytes) {
  comm = owner;
  data = static_cast<uint8_t*>(memory);
  size = bytes;
  total = promised = moved = 0;
  announced = helped = false;
  used = true;
  done.store(false, std::memory_order_relaxed);
}

Comm::Comm(std::string peer, std::vector<FileDescriptor> sockets, size_t threads)
    : fds_(std::move(sockets)),
      threads_(threads),
      callers_(threads > 0 ? 1 : fds_.size()),
      peer_(std::move(peer)),
      generation_(fork_generation()) {}

Result Comm::start(void* data, size_t size, void** request) {
  *request = nullptr;
  if (generation_ != fork_generation()) return kInvalidUsage;  // the sockets are the parent's
  if (failed()) return failure();
  Request& next = this->request(posted_);
  if (next.used) return kSuccess;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    next.begin(this, data, size);
    next.helped = threads_ > 0 && needs_helpers(next);
    ++posted_;
    posted(&next);
  }
  if (next.helped && helpers_ == nullptr) begin_helpers();
  const Result result = progress();
  if (result != kSuccess && !next.done.load(std::memory_order_acquire)) return result;
  *request = &next;
  return kSuccess;
}

Result Comm::test(Request* request, int* done, size_t* size) {
  *done = 0;
  if (generation_ != fork_generation()) return kInvalidUsage;
  if (!request->done.load(std::memory_order_acquire)) {
    const Result result = progress();
    if (!request->done.load(std::memory_order_acquire)) return result;
  }
  if (size != nullptr) *size = request->total;
  request->used = false;
  *done = 1;
  return kSuccess;
}

void Comm::begin_helpers() {
  try {
    auto helpers = std::make_unique<Helpers>(this, threads_, callers_, fds_.size());
    {
      const std::lock_guard<std::mutex> lock(mutex);
      helpers_ = std::move(helpers);
    }
    helpers_->start();
  } catch (const std::system_error& error) {
    const std::lock_guard<std::mutex> lock(mutex);
    fail(kSystemError, "its " + std::to_string(threads_) +
                           " threads (REDUCER_NET_THREADS) do not " +
                           "start, see ulimit -u and -n: " + error.what());
  }
}

void Comm::end_helpers() {
  if (helpers_ == nullptr) return;
  // In a forked child nobody would unlock the mutex.
  if (generation_ == fork_generation()) {
    const std::lock_guard<std::mutex> lock(mutex);
    helpers_->stop();
  }
  helpers_.reset();
}

Result Comm::progress() {
  if (!failed()) move();
  return failed() ? failure() : kSuccess;
}

// Only the caller's thread uses NCCL's log.
Result Comm::failure() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (!told_) log_warning("net: the connection with " + peer_ + " failed: " + trouble_);
  told_ = true;
  return result_.load();
}

void Comm::take_turns() {
  size_t budget = kBudget;
  std::bitset<kMaxNetSockets> blocked;
  first_ = (first_ + 1) % callers_;
  for (size_t i = first_; blocked.count() < callers_ && budget > 0; i = (i + 1) % callers_) {
    if (blocked[i]) continue;
    const Turn result = turn(i, &budget);
    if (result == Turn::kFailed) return;
    blocked[i] = result == Turn::kBlocked;
  }
}

void Comm::charge(size_t size, size_t* budget) {
  *budget -= std::min(std::max(size, kTurnCost), *budget);
}

// The sockets stay open until no thread can use them.
void Comm::fail(Result code, const std::string& what) {
  if (failed()) return;
  trouble_ = what;
  result_.store(code, std::memory_order_release);
  for (const FileDescriptor& fd : fds_) ::shutdown(fd.get(), SHUT_RDWR);
  if (helpers_ != nullptr) helpers_->stop();
}

void Comm::broken(const char* why) {
  const std::lock_guard<std::mutex> lock(mutex);
  try {
    fail(kSystemError, std::string("a thread ended: ") + why);
  } catch (const std::exception&) {  // no memory for the text
    fail(kSystemError, {});
  }
}

void Comm::complete(Request* request) {
  request->done.store(true, std::memory_order_release);
  while (oldest_ < posted_ && this->request(oldest_).done.load()) ++oldest_;
}

}  // namespace ors::nccl
