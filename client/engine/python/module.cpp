// The Python module reducer_client._engine: binds Engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <new>
#include <system_error>
#include <unordered_map>

#include "codec/hex.h"
#include "crypto/random.h"
#include "io/engine.h"
#include "io/fork.h"
#include "io/processors.h"
#include "io/socket.h"
#include "python/conversions.h"
#include "python/gil.h"
#include "python/operation.h"

namespace ors::python {
namespace {

constexpr double kSignalCheck = 0.1;  // seconds: Ctrl-C ends a wait within this

// Calls `poll(seconds)` without the GIL until it returns true or the timeout has passed. Runs
// Python's signal handlers in between.
template <typename Poll>
bool wait_interruptible(double timeout, Poll poll) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    const double left = timeout - std::chrono::duration<double>(Clock::now() - start).count();
    bool done;
    {
      const WithoutGil without_gil;
      done = poll(std::clamp(left, 0.0, kSignalCheck));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left <= 0) return false;  // the last poll had a timeout of 0
  }
}

class PyEngine {
 public:
  PyEngine(Options options, Trust dedicated, Trust hosted, std::unique_ptr<Timeline> timeline)
      : engine_(new Engine(std::move(options), std::move(dedicated), std::move(hosted),
                           std::move(timeline))),
        generation_(fork_generation()) {}
  ~PyEngine() {
    if (forked()) {
      leave_behind();
      return;
    }
    const WithoutGil without_gil;
    delete engine_;
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  bool forked() const { return fork_generation() != generation_; }

  bool connect(double timeout) {
    Engine& engine = alive();
    if (!started_) start(engine);
    bool joined = false;
    try {
      joined =
          wait_interruptible(timeout, [&](double seconds) { return engine.wait_joined(seconds); });
    } catch (nb::python_error&) {
      abort();
      throw;
    }
    if (auto failure = engine.failure()) {
      abort();
      raise(*failure);
    }
    return joined;
  }

  nb::object submit(int collective, int op, int dtype, bool wide, const std::string& key,
                    int64_t root, uint64_t count, nb::object source, nb::object target, bool notify,
                    int32_t priority, nb::object residual, bool stochastic,
                    std::optional<uint64_t> filled, uint64_t part, nb::object slices,
                    uint64_t slice, nb::object gate) {
    Engine& engine = alive();
    reap();
    auto pins = std::make_shared<Pins>();
    Submission submission =
        make_submission(collective, op, dtype, wide, key, root, count, source, target, notify,
                        priority, residual, stochastic, pins.get());
    submission.filled = filled.value_or(kAllFilled);
    submission.part = part;
    submission.words = {pin_word(slices, &pins->slices), slice, pin_word(gate, &pins->gate)};
    submission.lent = submission.words.slices != nullptr;
    if (auto wrong = engine.check(submission)) throw nb::value_error(wrong->c_str());
    // After engine.submit() the engine may write to the target, so all that can fail comes before.
    submission.operation = std::make_shared<Operation>(key, notify);
    std::list<Pinned> pinned;
    pinned.emplace_back(submission.operation, pins);
    nb::object object = wrap(submission.operation, pins);
    if (notify) notified_.emplace(submission.operation.get(), object);
    std::optional<Failure> failure;
    try {
      const WithoutGil without_gil;
      OperationRef taken;
      failure = engine.submit(submission, &taken);
    } catch (const std::system_error& error) {  // no thread that watches the source
      notified_.erase(submission.operation.get());
      raise({ErrorCode::kUnavailable, error.what(), "resources"});
    } catch (const std::bad_alloc&) {
      notified_.erase(submission.operation.get());
      throw;
    }
    if (failure) {
      notified_.erase(submission.operation.get());
      raise(*failure);
    }
    if (!submission.lent) pins->source.reset();  // copied, or the same memory as the target
    pins->residual.reset();
    if (pins->target || submission.lent) pinned_.splice(pinned_.end(), pinned);
    return object;
  }

  void fill(PyOperation& operation, uint64_t elements) {
    Engine& engine = alive();
    const WithoutGil without_gil;
    engine.fill(operation.ref(), elements);
  }

  nb::object next_event(double timeout) {
    Engine& engine = alive();
    std::optional<Event> event;
    wait_interruptible(timeout, [&](double seconds) {
      event = engine.next_event(seconds);
      return event || engine.wait_ended(0);
    });
    reap();
    if (!event) return nb::none();
    const auto found = notified_.find(event->operation.get());  // inserted by submit()
    nb::object object = found->second;
    if (event->finished) notified_.erase(found);
    return nb::make_tuple(object, event->finished);
  }

  bool wait(PyOperation& operation, std::optional<double> timeout) {
    Engine& engine = alive();
    const OperationRef& ref = operation.ref();
    if (!ref->done()) {
      wait_interruptible(timeout.value_or(1e9),
                         [&](double seconds) { return engine.wait(ref, seconds); });
    }
    return operation.done();
  }

  std::vector<std::string> take_reports() { return alive().take_reports(); }

  nb::list wait_lost(double timeout) {
    Engine& engine = alive();
    std::vector<LostRank> lost;
    wait_interruptible(timeout, [&](double seconds) {
      lost = engine.wait_lost(seconds);
      return !lost.empty() || engine.wait_ended(0);
    });
    return lost_ranks(lost);
  }

  nb::bytes view_without(const std::vector<uint32_t>& ranks, uint32_t epoch) {
    const std::string view = alive().view_without(ranks, epoch);
    return nb::bytes(view.data(), view.size());
  }

  void install(const nb::bytes& view) {
    Engine& engine = alive();
    const std::string copy(view.c_str(), view.size());
    std::optional<Failure> failure;
    {
      const WithoutGil without_gil;
      failure = engine.install(copy);
    }
    if (failure) raise(*failure);
  }

  nb::bytes view_bytes() {
    const std::string view = alive().view();
    return nb::bytes(view.data(), view.size());
  }

  void promise(uint32_t epoch) { alive().promise(epoch); }

  void lose(int64_t rank, const std::string& message) {
    Engine& engine = alive();
    const WithoutGil without_gil;
    engine.fail({ErrorCode::kPeerLost, message, "lost", rank});
  }

  nb::list stats(double timeout) {
    Engine& engine = alive();
    std::optional<std::vector<LaneStats>> all;
    wait_interruptible(timeout, [&](double seconds) {
      all = engine.stats(seconds);
      return all || engine.failure();
    });
    if (!all) {
      if (auto failure = engine.failure()) raise(*failure);
      raise(
          {ErrorCode::kTimeout, "no answer to STATS in time from " + engine.lanes_without_stats()});
    }
    nb::list out;
    for (const LaneStats& lane : *all) {
      nb::dict entry = nb::cast<nb::dict>(to_python(lane.stats));
      entry["reducer"] = lane.reducer;
      entry["slot"] = lane.slot;
      entry["lane"] = lane.lane;
      out.append(entry);
    }
    return out;
  }

  void close(double timeout) {
    Engine& engine = alive();
    engine.leave();
    try {
      wait_interruptible(timeout, [&](double seconds) { return engine.wait_ended(seconds); });
    } catch (nb::python_error&) {
      abort();
      throw;
    }
    abort();
  }

  void abort(const std::string& timed_out = "") {
    Engine& engine = alive();
    {
      const WithoutGil without_gil;
      engine.abort(timed_out);
    }
    reap();
  }

  Engine& alive() {
    if (forked()) raise(forked_failure());
    return *engine_;
  }

 private:
  void start(Engine& engine) {
    try {
      const WithoutGil without_gil;
      engine.start();
    } catch (const std::system_error& error) {
      raise({ErrorCode::kUnavailable, error.what(), "resources"});
    }
    started_ = true;
  }

  static nb::object wrap(const OperationRef& operation, std::shared_ptr<Pins> pins) {
    return nb::cast(new PyOperation(operation, std::move(pins), true),
                    nb::rv_policy::take_ownership);
  }

  // Releases the buffers of finished operations. Done here because the loops' threads must not take
  // the GIL.
  void reap() {
    std::list<Pinned> done;
    for (auto it = pinned_.begin(); it != pinned_.end();) {
      const auto next = std::next(it);
      if (it->first->done()) {
        done.splice(done.end(), pinned_, it);
      } else if (done.empty()) {
        break;  // the oldest is open, so most others are open too
      }
      it = next;
    }
    for (const Pinned& entry : done) entry.second->release();
  }

  void leave_behind() {
    new std::list<Pinned>(std::move(pinned_));
    new std::unordered_map<const Operation*, nb::object>(std::move(notified_));
  }

  using Pinned = std::pair<OperationRef, std::shared_ptr<Pins>>;

  std::list<Pinned> pinned_;  // targets that the engine may write to
  std::unordered_map<const Operation*, nb::object> notified_;  // for next_event()
  Engine* const engine_;  // must end before the members above: see the destructor
  const int generation_;
  bool started_ = false;
};

// Raises ValueError if the engine cannot use an option.
void check(const Options& options) {
  if (auto wrong = check_options(options)) throw nb::value_error(wrong->c_str());
  for (const std::string& address : options.addresses) {
    if (!parse_endpoint(address)) {
      throw nb::value_error(("'" + address + "' is not of the form host:port").c_str());
    }
  }
}

using PyTlsFiles = std::tuple<std::string, std::string, std::string>;

std::shared_ptr<const TlsContext> tls_context(const PyTlsFiles& files) {
  std::string why;
  const OpenSsl* api = system_openssl(&why);
  if (api == nullptr) raise({ErrorCode::kAuthentication, why, "openssl"});
  const auto& [cert, key, ca] = files;
  auto context = TlsContext::make(*api, {cert, key, ca}, &why);
  if (context == nullptr) throw nb::value_error(why.c_str());
  return context;
}

std::unique_ptr<Timeline> open_timeline(const std::string& folder, const Options& options) {
  if (folder.empty()) return nullptr;
  std::string why;
  auto timeline = Timeline::open(folder, options.job, options.rank, &why);
  if (timeline == nullptr) throw nb::value_error(why.c_str());
  return timeline;
}

void init(PyEngine* self, std::vector<std::string> addresses, const std::string& job,
          const std::string& run_id, uint32_t rank, uint32_t world_size,
          const std::vector<std::pair<uint64_t, uint64_t>>& table, double connect_timeout,
          double silence, double reducer_wait, const std::string& congestion,
          const std::string& source, bool local_sockets, const nb::bytes& key,
          const std::optional<PyTlsFiles>& tls, uint32_t digest_every, const std::string& timeline,
          double worker_silence, uint32_t io_threads, const std::vector<uint32_t>& weights,
          const std::vector<std::vector<uint32_t>>& hosted, const nb::bytes& hosted_key,
          uint32_t min_reducers, double grace, bool elastic, const nb::bytes& incarnation) {
  Trust of_dedicated = {secret_of(key), nullptr};
  Trust of_hosted = {secret_of(hosted_key), nullptr};
  Options options;
  options.addresses = std::move(addresses);
  options.job = job;
  options.run_id = run_id.empty() && rank == 0 ? hex(random_bytes(8)) : run_id;
  options.rank = rank;
  options.world_size = world_size;
  options.chunk_table = chunk_table_of(table);
  options.connect_timeout = connect_timeout;
  options.silence = silence;
  options.reducer_wait = reducer_wait;
  options.congestion = congestion;
  options.source = source;
  options.local_sockets = local_sockets;
  options.digest_every = digest_every;
  options.worker_silence = worker_silence;
  options.weights = weights;
  options.hosted = hosted;
  options.min_reducers = min_reducers;
  options.grace = grace;
  options.loops = choose_loops(io_threads, source);
  options.elastic = elastic;
  options.incarnation = incarnation.size() > 0
                            ? std::string(incarnation.c_str(), incarnation.size())
                            : random_bytes(16);
  check(options);
  if (tls) of_dedicated.tls = tls_context(*tls);
  auto file = open_timeline(timeline, options);
  new (self)
      PyEngine(std::move(options), std::move(of_dedicated), std::move(of_hosted), std::move(file));
}

}  // namespace

NB_MODULE(_engine, m) {
  m.doc() = "The native part of reducer_client: protocol state and socket loop.";
  nb::set_leak_warnings(false);  // objects stay alive at exit and in forked children
  add_engine_error(m);

  nb::class_<PyOperation>(m, "Operation")
      .def_prop_ro("done", &PyOperation::done)
      .def_prop_ro("error", &PyOperation::error)
      .def_prop_ro("arrived", &PyOperation::arrived)
      .def_prop_ro("flags", &PyOperation::flags)
      .def_prop_ro("culprit", &PyOperation::culprit)
      .def_prop_ro("sets", &PyOperation::sets)
      .def_prop_ro("key", &PyOperation::key)
      .def_prop_ro("round", &PyOperation::round);

  nb::class_<PyEngine>(m, "Engine")
      .def("__init__", &init, nb::kw_only(), nb::arg("addresses"), nb::arg("job"),
           nb::arg("run_id"), nb::arg("rank"), nb::arg("world_size"), nb::arg("chunk_table"),
           nb::arg("connect_timeout"), nb::arg("silence"), nb::arg("reducer_wait"),
           nb::arg("congestion") = "", nb::arg("source") = "", nb::arg("local_sockets") = true,
           nb::arg("key") = nb::bytes("", 0), nb::arg("tls").none() = nb::none(),
           nb::arg("digest_every") = 0, nb::arg("timeline") = "", nb::arg("worker_silence") = 5.0,
           nb::arg("io_threads") = 0, nb::arg("weights") = std::vector<uint32_t>(),
           nb::arg("hosted") = std::vector<std::vector<uint32_t>>(),
           nb::arg("hosted_key") = nb::bytes("", 0), nb::arg("min_reducers") = 1,
           nb::arg("grace") = 5.0, nb::arg("elastic") = false,
           nb::arg("incarnation") = nb::bytes("", 0))
      .def("connect", &PyEngine::connect, nb::arg("timeout"))
      .def("submit", &PyEngine::submit, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"),
           nb::arg("wide"), nb::arg("key"), nb::arg("root"), nb::arg("count"),
           nb::arg("source").none(), nb::arg("target").none(), nb::arg("notify") = false,
           nb::arg("priority") = 0, nb::arg("residual").none() = nb::none(),
           nb::arg("stochastic") = false, nb::arg("filled").none() = nb::none(),
           nb::arg("part") = 0, nb::arg("slices").none() = nb::none(), nb::arg("slice") = 0,
           nb::arg("gate").none() = nb::none())
      .def("fill", &PyEngine::fill, nb::arg("operation"), nb::arg("elements"))
      .def("wait", &PyEngine::wait, nb::arg("operation"), nb::arg("timeout").none() = nb::none())
      .def("next_event", &PyEngine::next_event, nb::arg("timeout"))
      .def("take_reports", &PyEngine::take_reports)
      .def("wait_lost", &PyEngine::wait_lost, nb::arg("timeout"))
      .def("view_without", &PyEngine::view_without, nb::arg("ranks"), nb::arg("epoch"))
      .def("install", &PyEngine::install, nb::arg("view"))
      .def("view_bytes", &PyEngine::view_bytes)
      .def_prop_ro("error",
                   [](PyEngine& self) -> nb::object {
                     const auto failure = self.alive().failure();
                     return failure ? failure_tuple(*failure) : nb::none();
                   })
      .def("promise", &PyEngine::promise, nb::arg("epoch"))
      .def("lose", &PyEngine::lose, nb::arg("rank"), nb::arg("message"))
      .def_prop_ro("view", [](PyEngine& self) { return losses_of(self.alive().route()); })
      .def("stats", &PyEngine::stats, nb::arg("timeout"))
      .def("close", &PyEngine::close, nb::arg("timeout"))
      .def("abort", &PyEngine::abort, nb::arg("timed_out") = "")
      .def("counters", [](PyEngine& self) { return self.alive().counters(); })
      .def_prop_ro("run_id", [](PyEngine& self) { return self.alive().run_id(); })
      .def_prop_ro("bytes_sent", [](PyEngine& self) { return self.alive().bytes_sent(); })
      .def_prop_ro("bytes_received", [](PyEngine& self) { return self.alive().bytes_received(); })
      .def_prop_ro("connections", [](PyEngine& self) { return self.alive().connections(); })
      .def_prop_ro("local_connections",
                   [](PyEngine& self) { return self.alive().local_connections(); })
      .def_prop_ro("forked", &PyEngine::forked);
}

}  // namespace ors::python
