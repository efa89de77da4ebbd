// What the loops of one engine and its callers share: the protocol state with its mutex, and the
// loops themselves.
//
// Law of ownership:
//  - `Shared::mutex` guards State. A thread holds it for bookkeeping only: not while it sleeps, not
//    while it reads or writes a socket, and not while it copies, casts or checksums a caller's
//    payload. (The engine's own digest comparisons, at most 64 KiB, are copied under it.)
//  - A lane's socket, Receiver and Sender belong to one loop, and are guarded by the loop's I/O
//    mutex. Only its holder passes the lane's frames to State. (Exception: abort() of an engine
//    that never started.)
//  - The caller's memory belongs to the engine while any thread of it uses it: a receiver from a
//    result's begin until its end, a copying thread from fill() until copied(). State counts these
//    users (Round::users) and ends an operation when there are none. A loop lets go of what is not
//    wanted any more between two reads. Copies in the pool have reference counts.
//  - State uses no Connection. It takes and returns frames as values, in batches: one batch is one
//    critical section. It leaves orders to each loop: lanes to dial, lanes to drop, lanes with
//    something to send, payloads to discard. Change wakes the loops that sleep and have orders.
//  - Three kinds of threads take the I/O mutex of a loop: the loop's thread, which releases it only
//    to sleep; a submitter, to send a small round itself; and the driver (below). Each releases it
//    under `mutex`. If work is left at that moment, a submitter or driver wakes a sleeping thread,
//    and a thread that was about to sleep does not sleep.
//  - A submitter marks lanes as ready to send and tries the I/O mutex in one critical section. If
//    the try fails, the holder sees the mark before it releases.
//  - The driver of a loop is a caller that waits for a small round and does the loop's I/O in the
//    meantime. This saves a thread switch: the result wakes the thread that waits for it. A loop
//    has at most one driver, the holder of its driver mutex. The driver sleeps in the same
//    epoll_wait as the loop's thread. Events are edge-triggered, so each event wakes one of the
//    two; Linux wakes the one that entered last, the driver. Both handle all events and send for
//    all lanes of the loop. Only the loop's thread runs the timers, opens connections, closes those
//    that State drops, and shuts down; it notices such work at its next tick at the latest.
//  - A thread that finishes the driver's operation wakes the driver. The loop's thread does not
//    enter epoll_wait while a driver sleeps there, because it could take that wake-up.
//  - The first loop runs the timers of State and writes the timeline. The last loop that ends
//    forgets the key and the certificates.
//  - The thread of the arrivals reads the caller's words, as a user of the rounds that it watches.
//  - Any thread may submit. It calls State::submit and State::ready under `mutex`, and copy_chunk()
//    without. Chunks become ready one by one, so that the first are sent while the rest are copied.
//    Chunks of a lent source are copied by the thread that sends them.
//  - Lock order: the engine's thread mutex, a driver mutex, an I/O mutex, `mutex`, and then at most
//    one of the queue of events, an event mutex, the lock inside an operation, and the
//    lock of the pool. No thread holds the I/O mutexes of two loops. try_lock of an I/O mutex is
//    allowed under `mutex`. Only abort() waits for loops with a lock held, the thread mutex.
//  - A forked child must not take any of these locks. Callers compare fork_generation() first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "crypto/handshake.h"
#include "crypto/tls.h"
#include "io/arrivals.h"
#include "io/event_queue.h"
#include "io/timeline.h"
#include "protocol/state.h"

namespace ors {

class Loop;

// How a lane proves who it is: by the key (mode psk), by a certificate (mode tls), or not at all.
struct Trust {
  Secret key;
  std::shared_ptr<const TlsContext> tls;
};

struct Shared {
  // `hosted`: for the reducers of Options::hosted.
  Shared(Options options, Trust dedicated, Trust hosted, std::unique_ptr<Timeline> timeline);
  ~Shared();
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  // Takes `mutex`. Counts the time in which another thread has it.
  std::unique_lock<std::mutex> lock();
  // Requires `mutex`. Returns a bit for each loop that has orders and sleeps; the caller must wake
  // these. Not `own`, the caller's.
  uint32_t claim_wakes(const Loop* own);
  void wake(uint32_t loops);
  void wake_all();
  void fail_for_memory();

  std::mutex mutex;
  State state;                      // guarded by mutex
  uint64_t lock_waits = 0;          // with mutex
  double lock_seconds = 0;          // with mutex
  std::condition_variable changed;  // joined, failed, stats, ended: with mutex
  uint32_t running = 0;             // loops whose threads have not ended
  bool ended = false;               // all have ended
  bool abort = false;
  bool out_of_memory = false;
  std::string timed_out;  // text of abort(); empty if the group was just closed

  const Trust& trust(const Lane& lane) const {
    return state.options().is_hosted(lane.reducer) ? hosted : dedicated;
  }
  Trust dedicated;
  Trust hosted;
  std::unique_ptr<Timeline> timeline;  // used by the first loop only; then by the last that ends
  EventQueue events;
  Arrivals arrivals{this};

  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint32_t> connections{0};
  std::atomic<uint32_t> local_connections{0};  // connections over Unix sockets

  std::vector<std::unique_ptr<Loop>> loops;  // constant
};

}  // namespace ors
