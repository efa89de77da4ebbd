// One node of a parameter server on ps-lite, for `python -m bench.ps`:
//
//   pushpull BYTES KEY_BYTES COPY
//
// ps-lite's variables (DMLC_ROLE and others) say which node. The server keeps a sum for each key.
// The server answers a pull with the memory of the sum, or with a copy if COPY is 1. Without a copy
// a push that comes while the answer is being sent changes the answer.
//
// A worker prints a line when all nodes are there, and then takes orders from standard input:
//
//   run N    push everything and pull everything N times, and print a line of JSON each time
//   check    pull, and compare the values with the sum of all pushes. All workers must have taken
//            the same orders.
//
// The times `begun` and `at` are seconds of CLOCK_MONOTONIC.
#include <ps/ps.h>
#include <signal.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

struct Settings {
  size_t floats;
  size_t floats_of_key;
  bool copy;
};

class Store {
 public:
  explicit Store(bool copy) : copy_(copy) {}

  // ps-lite calls this on one thread.
  void Handle(const ps::KVMeta& meta, const ps::KVPairs<float>& pairs,
              ps::KVServer<float>* server) {
    std::vector<float>& sum = sums_[pairs.keys[0]];
    ps::KVPairs<float> answer;
    if (meta.push) {
      if (sum.empty()) sum.resize(pairs.vals.size());
      Add(pairs.vals.data(), sum.data(), sum.size());
    } else {
      answer.keys = pairs.keys;
      if (copy_) {
        answer.vals.CopyFrom(sum.data(), sum.size());
      } else {
        answer.vals = ps::SArray<float>(sum.data(), sum.size());
      }
    }
    server->Response(meta, answer);
  }

 private:
  static void Add(const float* pushed, float* sum, size_t count) {
    for (size_t i = 0; i < count; ++i) sum[i] += pushed[i];
  }

  const bool copy_;
  std::unordered_map<ps::Key, std::vector<float>> sums_;
};

// A key with the arrays that are pushed and pulled.
struct Part {
  ps::SArray<ps::Key> key;
  ps::SArray<float> pushed;
  ps::SArray<float> pulled;
};

class Worker {
 public:
  explicit Worker(const Settings& settings) : bytes_(settings.floats * sizeof(float)) {
    const std::vector<ps::Range>& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    for (size_t first = 0; first < settings.floats; first += settings.floats_of_key) {
      const size_t count = std::min(settings.floats_of_key, settings.floats - first);
      const size_t number = parts_.size();
      Part part{ps::SArray<ps::Key>(1, ranges[number % ranges.size()].begin() + number),
                ps::SArray<float>(count), ps::SArray<float>(count)};
      for (size_t i = 0; i < count; ++i) part.pushed[i] = Base(first + i);
      parts_.push_back(part);
    }
  }

  void Run(int times) {
    for (int i = 0; i < times; ++i) {
      const double begun = Now();
      PushAndPull();
      const double at = Now();
      std::printf("{\"seconds\": %.9f, \"bytes\": %zu, \"begun\": %.9f, \"at\": %.9f}\n",
                  at - begun, 2 * bytes_, begun, at);
      std::fflush(stdout);
    }
  }

  // Whether every element is right.
  bool Check() {
    std::vector<int> requests;
    for (Part& part : parts_) requests.push_back(kv_.ZPull(part.key, &part.pulled));
    Wait(requests);
    const float pushes = pushes_ * ps::NumWorkers();
    size_t index = 0;
    for (const Part& part : parts_) {
      for (const float value : part.pulled) {
        const float expected = pushes * Base(index);
        if (value != expected) {
          std::fprintf(stderr, "worker %d, element %zu: expected %g after %g pushes, got %g\n",
                       ps::MyRank(), index, expected, pushes, value);
          return false;
        }
        ++index;
      }
    }
    return true;
  }

 private:
  // Small integers: their sums are exact.
  static float Base(size_t index) { return static_cast<float>(1 + index % 97); }

  static double Now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  void PushAndPull() {
    std::vector<int> requests;
    for (const Part& part : parts_) requests.push_back(kv_.ZPush(part.key, part.pushed));
    // A node's queue is a heap, in which a pull can overtake a push of the same priority.
    Wait(requests);
    requests.clear();
    for (Part& part : parts_) requests.push_back(kv_.ZPull(part.key, &part.pulled));
    Wait(requests);
    ++pushes_;
  }

  void Wait(const std::vector<int>& requests) {
    for (const int request : requests) kv_.Wait(request);
  }

  const size_t bytes_;
  ps::KVWorker<float> kv_{0, 0};
  std::vector<Part> parts_;
  int pushes_ = 0;
};

bool TakeOrders(Worker* worker) {
  std::puts("{\"ready\": true}");
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string order;
    int times = 0;
    words >> order >> times;
    if (order == "run") {
      worker->Run(times);
    } else {
      if (!worker->Check()) return false;
      std::puts("{\"checked\": true}");
      std::fflush(stdout);
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a node whose peers are gone would wait for ever
  if (argc != 4) {
    std::fprintf(stderr, "usage: pushpull BYTES KEY_BYTES COPY\n");
    return 2;
  }
  const Settings settings{std::strtoul(argv[1], nullptr, 10) / sizeof(float),
                          std::strtoul(argv[2], nullptr, 10) / sizeof(float), argv[3][0] == '1'};
  ps::Start(0);
  Store store(settings.copy);
  if (ps::IsServer()) {
    auto* server = new ps::KVServer<float>(0);
    server->set_request_handle(
        [&store](const ps::KVMeta& meta, const ps::KVPairs<float>& pairs,
                 ps::KVServer<float>* from) { store.Handle(meta, pairs, from); });
    ps::RegisterExitCallback([server] { delete server; });
  }
  if (ps::IsWorker()) {
    Worker worker(settings);
    if (!TakeOrders(&worker)) return 1;
  }
  ps::Finalize(0);
  return 0;
}
