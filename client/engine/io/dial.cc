// Opens the connections that State wants: name look-up, addresses, retries. Only for the thread of
// the loop.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "crypto/random.h"
#include "io/connection.h"
#include "io/fork.h"
#include "io/local_socket.h"

namespace ors {
namespace {

constexpr double kLastRetry = 1.0;       // seconds
constexpr double kLookupTick = 0.01;     // look-ups are polled
constexpr double kAddressTimeout = 2.0;  // before the next address of a name is tried

// Seconds to back off before a lane that has been welcomed before is dialled again. The first
// reconnect is immediate; repeated failures back off, so that ranks do not storm a reducer that is
// short of memory.
double first_backoff(uint32_t strikes) {
  if (strikes < 2) return 0;
  return std::min(kLastRetry, kFirstRetry * (1u << std::min(strikes - 2, 10u)));
}

}  // namespace

void Loop::dial_wanted(double now) {
  struct Wanted {
    Lane* lane;
    uint32_t attempts;
    uint32_t strikes;
  };
  std::vector<Wanted> lanes;
  {
    const auto lock = shared_.lock();
    for (Lane* lane : state_.take_wanted(number_))
      lanes.push_back({lane, lane->attempts, lane->strikes});
  }
  for (const auto& [lane, attempts, strikes] : lanes) {
    if (Connection* c = find(lane)) {  // a lane that was welcomed before is dialled at once
      if (attempts <= 1) c->backoff = first_backoff(strikes);
      retry(c, now);
    } else {
      connections_.push_back(std::make_unique<Connection>(lane));
    }
  }
}

// Returns the seconds until step_dials() has something to do, but at most `most`.
double Loop::until_next_dial(double now, double most) const {
  using Step = Connection::Step;
  for (const auto& c : connections_) {
    if (c->step == Step::kOpen || c->step == Step::kDone) continue;
    const double wait = c->step == Step::kResolving ? kLookupTick : c->deadline - now;
    most = std::min(most, std::max(wait, 0.001));
  }
  return most;
}

void Loop::step_dials(double now) {
  for (size_t i = 0; i < connections_.size(); ++i) step_dial(connections_[i].get(), now);
}

void Loop::step_dial(Connection* c, double now) {
  using Step = Connection::Step;
  if (c->step == Step::kWaiting && now >= c->deadline) {
    c->step = Step::kResolving;  // resolve again: addresses change
    c->lookup = Lookup::start(parse_endpoint(state_.options().addresses[c->lane->reducer]).value());
    c->next_address = 0;
  }
  if (c->step == Step::kResolving && c->lookup->done()) {
    if (c->lookup->addresses().empty()) return dial_failed(c, c->lookup->trouble(), now);
    try_address(c, now);
  } else if ((c->step == Step::kConnecting || c->step == Step::kProving) && now >= c->deadline) {
    const char* unproven = shared_.trust(*c->lane).tls ? "the TLS handshake timed out"
                                                       : "the proof of the key timed out";
    c->trouble = c->step == Step::kProving ? unproven : "no answer";
    close_socket(c);
    try_address(c, now);
  }
}

void Loop::try_address(Connection* c, double now) {
  while (c->next_address < c->lookup->addresses().size()) {
    int error = 0;
    const Options& options = state_.options();
    const SocketAddress& address = c->lookup->addresses()[c->next_address++];
    // Mode tls always uses TCP: the certificate proves the host name that was dialled.
    c->fd = options.local_sockets && !shared_.trust(*c->lane).tls ? connect_local(address) : -1;
    c->local = c->fd >= 0;
    if (!c->local && !options.source.empty()) {
      const auto source = find_source(options.source, address);
      if (!source) {
        c->trouble = "source " + options.source + " has no " + family_name(address) + " address";
        continue;
      }
      c->fd = begin_connect(address, options.congestion, &*source, &error);
    } else if (!c->local) {
      c->fd = begin_connect(address, options.congestion, nullptr, &error);
    }
    if (c->fd >= 0) {
      c->step = Connection::Step::kConnecting;
      c->deadline = now + kAddressTimeout;
      epoll_event wish{};
      wish.events = EPOLLOUT;
      wish.data.ptr = c;
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, c->fd, &wish) == 0) return;
      error = errno;
      close_socket(c);
    }
    c->trouble = error_text(error);
  }
  dial_failed(c, c->trouble, now);
}

void Loop::dial_failed(Connection* c, const std::string& why, double now) {
  close_socket(c);
  const Change change(&shared_, this);
  if (state_.joined()) {  // State decides whether to dial again
    c->step = Connection::Step::kDone;
    return state_.unreachable(c->lane, why, now);
  }
  retry(c, now);
  state_.retried(c->lane, why);
}

void Loop::retry(Connection* c, double now) {
  c->step = Connection::Step::kWaiting;
  c->half_closed = c->unsent = c->hung_up = false;
  // Jitter: wait 50 to 100 % of the backoff, so that ranks that lost a reducer at the same moment
  // do not reconnect at the same moment.
  c->deadline = now + c->backoff * (0.5 + random_fraction() / 2);
  c->backoff = std::clamp(2 * c->backoff, kFirstRetry, kLastRetry);
}

void Loop::on_connected(Connection* c, double now) {
  if (const int error = connect_result(c->fd)) {
    if (error == EINPROGRESS) return;  // a stale event of the previous attempt
    c->trouble = error_text(error);
    close_socket(c);
    return try_address(c, now);
  }
  c->watches_write = true;  // as it was registered
  watch(c, false);
  if (shared_.trust(*c->lane).tls) return begin_tls(c, now);
  if (shared_.trust(*c->lane).key) return begin_psk(c, now);
  c->sender.add(pack_preface({0, static_cast<uint16_t>(c->lane->number)}));
  open_lane(c, now);
}

// Opens the lane for frames. Bytes that the sender already holds (the preface or the psk proof) are
// sent first.
void Loop::open_lane(Connection* c, double now) {
  c->step = Connection::Step::kOpen;
  shared_.connections.fetch_add(1, std::memory_order_relaxed);
  if (c->local) shared_.local_connections.fetch_add(1, std::memory_order_relaxed);
  {
    const Change change(&shared_, this);
    state_.opened(c->lane, now);
  }
  pump(c, now);
}

}  // namespace ors
