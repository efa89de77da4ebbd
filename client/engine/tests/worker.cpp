// Runs all workers of a job in one process with real reducers, and checks all-reduces from several
// threads. Usage: engine_worker host:port[,host:port...] world rounds [cert key ca]. The first line
// of stdin, if not empty, is the reducers' key.
#include <unistd.h>

#include <iostream>
#include <sstream>
#include <thread>
#include <vector>

#include "check.h"
#include "io/engine.h"

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

ors::Options options(uint32_t rank, uint32_t world, const std::vector<std::string>& addresses) {
  ors::Options o;
  o.addresses = addresses;
  o.job = "engine-worker-" + std::to_string(::getpid());
  o.run_id = rank == 0 ? "run" : "";
  o.rank = rank;
  o.world_size = world;
  o.chunk_table = {{0, 65536}, {1 << 20, 131072}};
  o.connect_timeout = 20;
  o.incarnation = std::string(16, '0');
  ors::store(reinterpret_cast<uint8_t*>(o.incarnation.data()), rank);
  o.loops = loops_of_test();
  return o;
}

void check_rounds(ors::Engine* engine, uint32_t rank, uint32_t world, int thread, int rounds) {
  const size_t count = 7 + 150000 * static_cast<size_t>(thread);
  for (int round = 0; round < rounds; ++round) {
    const std::vector<float> source(count, static_cast<float>(rank + 1));
    std::vector<float> target = source;
    std::vector<float> residual(count);
    const bool in_place = round % 2 == 1;
    ors::Submission s;
    s.descriptor = {ors::kAllReduce, ors::kSum, ors::kFloat32, false, count, 0};
    s.key = "thread" + std::to_string(thread);
    s.source = reinterpret_cast<const uint8_t*>((in_place ? target : source).data());
    s.target = reinterpret_cast<uint8_t*>(target.data());
    s.source_bytes = s.target_bytes = count * sizeof(float);
    s.lent = round % 4 == 2;  // the source is kept until the round is over
    if (round % 3 ==
        1) {  // with a residual in half of these rounds; blocks of equal values are exact
      s.descriptor.dtype = ors::kE3M0BlocksToBFloat16;
      s.descriptor.wide = true;
      if (round % 2 == 1) s.residual = residual.data();
      s.residual_bytes = s.source_bytes;
    }
    ors::OperationRef operation;
    CHECK(!engine->submit(s, &operation));
    CHECK(engine->wait(operation, 60));
    CHECK(!operation->failure());
    const auto expected = static_cast<float>(world * (world + 1) / 2);
    for (const float value : target) CHECK(value == expected);
    for (const float value : residual) CHECK(value == 0);
  }
}

void work(uint32_t rank, uint32_t world, const std::vector<std::string>& addresses, int rounds,
          const std::string& master, const std::shared_ptr<const ors::TlsContext>& tls) {
  ors::Options o = options(rank, world, addresses);
  ors::Trust trust = {master.empty() ? ors::Secret() : ors::job_key(master, o.job), tls};
  ors::Engine engine(std::move(o), std::move(trust));
  engine.start();
  CHECK(engine.wait_joined(30));
  if (const auto failure = engine.failure()) {
    std::fprintf(stderr, "rank %u: %s\n", rank, failure->message.c_str());
    std::exit(1);
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&engine, rank, world, thread, rounds] {
      check_rounds(&engine, rank, world, thread, rounds);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(engine.stats(10).has_value());
  engine.leave();
  CHECK(engine.wait_ended(20));
}

std::shared_ptr<const ors::TlsContext> tls_context(char** files) {
  std::string why;
  const ors::OpenSsl* api = ors::system_openssl(&why);
  auto tls =
      api != nullptr ? ors::TlsContext::make(*api, {files[0], files[1], files[2]}, &why) : nullptr;
  if (tls == nullptr) std::fprintf(stderr, "%s\n", why.c_str());
  CHECK(tls != nullptr);
  return tls;
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 4 || argc == 7);
  const auto addresses = split(argv[1]);
  const auto world = static_cast<uint32_t>(std::stoul(argv[2]));
  const int rounds = std::stoi(argv[3]);
  std::string master;
  std::getline(std::cin, master);
  const auto tls = argc == 7 ? tls_context(argv + 4) : nullptr;
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < world; ++rank) {
    workers.emplace_back([&, rank] { work(rank, world, addresses, rounds, master, tls); });
  }
  for (std::thread& worker : workers) worker.join();
}
