// Bindings of the protocol state alone, for the simulator, which moves the bytes itself.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <list>
#include <set>

#include "bindings.h"
#include "python/conversions.h"
#include "python/operation.h"
#include "python/pybuffer.h"
#include "tests/bytes_loop.h"

namespace ors::python {
namespace {

class PyState {
 public:
  explicit PyState(Options options) : loop_(std::move(options)) {}
  PyState(const PyState&) = delete;
  PyState& operator=(const PyState&) = delete;

  std::vector<std::pair<uint32_t, uint32_t>> wanted() {
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    for (const Lane* lane : state_.take_wanted()) pairs.emplace_back(lane->reducer, lane->number);
    return pairs;
  }

  void opened(uint32_t reducer, uint32_t lane, double now) {
    now_ = now;
    state_.opened(find(reducer, lane), now);
  }

  void incoming(uint32_t reducer, uint32_t lane, nb::bytes data, double now) {
    now_ = now;
    loop_.incoming(find(reducer, lane), {data.c_str(), data.size()}, now);
  }

  nb::bytes outgoing(uint32_t reducer, uint32_t lane, size_t limit, double now) {
    now_ = now;
    const std::string out = loop_.outgoing(find(reducer, lane), limit, now);
    state_.forget_kicked();
    return nb::bytes(out.data(), out.size());
  }

  void closed(uint32_t reducer, uint32_t lane, const std::string& reason, double now) {
    now_ = now;
    loop_.closed(find(reducer, lane), reason, now);
  }

  void unreachable(uint32_t reducer, uint32_t lane, const std::string& reason, double now) {
    now_ = now;
    state_.unreachable(find(reducer, lane), reason, now);
    loop_.discard_unwanted();
  }

  std::vector<std::pair<uint32_t, uint32_t>> to_drop() {
    std::vector<std::pair<uint32_t, uint32_t>> pairs;
    for (const Lane* lane : state_.take_dropped()) pairs.emplace_back(lane->reducer, lane->number);
    return pairs;
  }

  nb::dict route() {
    const Route& route = state_.route();
    nb::dict out;
    out["route"] = route.number;
    out["since"] = nb::cast(route.since);
    out["live"] = nb::cast(route.live);
    out["lanes"] = nb::cast(route.lanes_by_slot);
    return out;
  }

  // The live slots that this worker cannot reach.
  std::set<uint32_t> suspected() {
    std::set<uint32_t> slots;
    for (const Lane* lane : state_.lanes()) {
      const bool suspicious = !lane->suspicion.empty();
      if (suspicious && state_.route().live[lane->welcome.slot]) slots.insert(lane->welcome.slot);
    }
    return slots;
  }

  void tick(double now) {
    now_ = now;
    state_.tick(now);
    loop_.discard_unwanted();
  }

  void leave(double now) {
    now_ = now;
    state_.leave(now);
  }

  nb::bytes view_without(const std::vector<uint32_t>& ranks, uint32_t epoch) {
    const std::string view = state_.view_without(ranks, epoch);
    return nb::bytes(view.data(), view.size());
  }

  void install(nb::bytes view, double now) {
    now_ = now;
    if (auto failure = state_.install({view.c_str(), view.size()}, now)) raise(*failure);
    loop_.discard_unwanted();
  }

  std::unique_ptr<PyOperation> submit(int collective, int op, int dtype, bool wide,
                                      const std::string& key, int64_t root, uint64_t count,
                                      nb::object source, nb::object target, bool notify,
                                      int32_t priority, nb::object residual, bool stochastic) {
    auto pins = std::make_shared<Pins>();
    const Submission submission =
        make_submission(collective, op, dtype, wide, key, root, count, source, target, notify,
                        priority, residual, stochastic, pins.get());
    if (auto wrong = state_.check(submission)) throw nb::value_error(wrong->c_str());
    RoundRef round;
    if (auto failure = state_.submit(submission, now_, &round)) raise(*failure);
    const uint32_t chunks = round->source == nullptr ? round->plan.chunks() : 0;
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      state_.ready(round, chunk,
                   copy_chunk(*round, chunk, state_.options().rank, submission.source,
                              submission.target, submission.residual, state_.pool.get()));
    }
    pins->source.reset();
    pins->residual.reset();
    pinned_.remove_if([](const auto& entry) { return entry.first->done(); });
    pinned_.emplace_back(round->operation, pins);
    return std::make_unique<PyOperation>(round->operation, pins, false);
  }

  State& state() { return state_; }

 private:
  Lane* find(uint32_t reducer, uint32_t number) {
    Lane* lane = state_.find(reducer, number);
    if (lane == nullptr) throw nb::index_error("this connection was never wanted");
    return lane;
  }

  std::list<std::pair<OperationRef, std::shared_ptr<Pins>>> pinned_;
  BytesLoop loop_;
  State& state_ = loop_.state;
  double now_ = 0;
};

}  // namespace

void bind_state(nb::module_& m) {
  nb::class_<PyState>(m, "State")
      .def(
          "__init__",
          [](PyState* self, uint32_t reducers, const std::string& job, const std::string& run_id,
             uint32_t rank, uint32_t world_size,
             const std::vector<std::pair<uint64_t, uint64_t>>& table, double connect_timeout,
             double silence, double reducer_wait, double leave_wait,
             std::optional<nb::bytes> incarnation, uint32_t digest_every, double worker_silence,
             const std::vector<uint32_t>& weights, const std::vector<std::vector<uint32_t>>& hosted,
             uint32_t min_reducers, bool elastic) {
            Options options;
            for (uint32_t i = 0; i < reducers; ++i) {
              options.addresses.push_back("r" + std::to_string(i));
            }
            options.job = job;
            options.run_id = run_id.empty() && rank == 0 ? "run" : run_id;
            options.rank = rank;
            options.world_size = world_size;
            options.chunk_table = chunk_table_of(table);
            options.connect_timeout = connect_timeout;
            options.silence = silence;
            options.reducer_wait = reducer_wait;
            options.leave_wait = leave_wait;
            options.digest_every = digest_every;
            options.worker_silence = worker_silence;
            options.weights = weights;
            options.hosted = hosted;
            options.min_reducers = min_reducers;
            options.elastic = elastic;
            options.incarnation = std::string(16, static_cast<char>('A' + rank % 26));
            store(reinterpret_cast<uint8_t*>(options.incarnation.data()), rank);
            if (incarnation) options.incarnation = {incarnation->c_str(), incarnation->size()};
            if (auto wrong = check_options(options)) throw nb::value_error(wrong->c_str());
            new (self) PyState(std::move(options));
          },
          nb::kw_only(), nb::arg("reducers"), nb::arg("job"), nb::arg("run_id") = "",
          nb::arg("rank"), nb::arg("world_size"), nb::arg("chunk_table"),
          nb::arg("connect_timeout") = 60.0, nb::arg("silence") = 1.0,
          nb::arg("reducer_wait") = 30.0, nb::arg("leave_wait") = 10.0,
          nb::arg("incarnation").none() = nb::none(), nb::arg("digest_every") = 0,
          nb::arg("worker_silence") = 5.0, nb::arg("weights") = std::vector<uint32_t>(),
          nb::arg("hosted") = std::vector<std::vector<uint32_t>>(), nb::arg("min_reducers") = 1,
          nb::arg("elastic") = false)
      .def("wanted", &PyState::wanted)
      .def("opened", &PyState::opened, nb::arg("reducer"), nb::arg("lane"), nb::arg("now"))
      .def("incoming", &PyState::incoming, nb::arg("reducer"), nb::arg("lane"), nb::arg("data"),
           nb::arg("now"))
      .def("outgoing", &PyState::outgoing, nb::arg("reducer"), nb::arg("lane"), nb::arg("limit"),
           nb::arg("now"))
      .def("closed", &PyState::closed, nb::arg("reducer"), nb::arg("lane"), nb::arg("reason"),
           nb::arg("now"))
      .def("unreachable", &PyState::unreachable, nb::arg("reducer"), nb::arg("lane"),
           nb::arg("reason"), nb::arg("now"))
      .def("to_drop", &PyState::to_drop)
      .def("tick", &PyState::tick, nb::arg("now"))
      .def("leave", &PyState::leave, nb::arg("now"))
      .def("submit", &PyState::submit, nb::arg("collective"), nb::arg("op"), nb::arg("dtype"),
           nb::arg("wide"), nb::arg("key"), nb::arg("root"), nb::arg("count"),
           nb::arg("source").none(), nb::arg("target").none(), nb::arg("notify") = false,
           nb::arg("priority") = 0, nb::arg("residual").none() = nb::none(),
           nb::arg("stochastic") = false)
      .def("take_reports", [](PyState& self) { return self.state().take_reports(); })
      .def("counters", [](PyState& self) { return self.state().counters(); })
      .def("view_without", &PyState::view_without, nb::arg("ranks"), nb::arg("epoch"))
      .def("install", &PyState::install, nb::arg("view"), nb::arg("now"))
      .def("promise", [](PyState& self, uint32_t epoch) { self.state().promise(epoch); })
      .def_prop_ro("view", [](PyState& self) { return losses_of(self.state().route()); })
      .def_prop_ro("lost", [](PyState& self) { return lost_ranks(self.state().lost()); })
      .def_prop_ro("route", &PyState::route)
      .def_prop_ro("suspected", &PyState::suspected)
      .def_prop_ro("joined", [](PyState& self) { return self.state().joined(); })
      .def_prop_ro("left", [](PyState& self) { return self.state().bye_queued(); })
      .def_prop_ro("run_id", [](PyState& self) { return self.state().run_id(); })
      .def_prop_ro("error", [](PyState& self) -> nb::object {
        const auto& failure = self.state().failure();
        return failure ? failure_tuple(*failure) : nb::none();
      });
}

}  // namespace ors::python
