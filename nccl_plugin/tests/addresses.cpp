// Tests how the plugin finds reducers, with the same cases as the Python implementation:
//   nccl_addresses tests/vectors/cluster/addresses.json
#include "addresses.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "check.h"

using Json = nlohmann::json;

namespace {

// The text of a variable; an object in a case stands for its JSON text.
std::string text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void fail(const Json& test, const std::string& got) {
  std::fprintf(stderr, "%s\n  got: %s\n", test.dump(2).c_str(), got.c_str());
  std::exit(1);
}

void run(const Json& test) {
  const Json& variables = test.at("environment");
  const auto environment = [&](const char* name) {
    return variables.contains(name) ? text(variables.at(name)) : "";
  };
  std::vector<std::string> addresses;
  std::string found_in, why;
  const bool found = ors::nccl::find_addresses(environment, &addresses, &found_in, &why);
  if (test.contains("refused")) {
    const auto expected = test.at("refused").get<std::string>();
    const bool begins = why.compare(0, expected.size(), expected) == 0;
    if (found || found_in.empty() || !begins || (!test.contains("and more") && why != expected)) {
      fail(test, found ? "addresses" : why);
    }
    return;
  }
  const auto expected = test.at("addresses").get<std::vector<std::string>>();
  if (found != !expected.empty() || found_in != test.value("source", "")) fail(test, why);
  if (found && addresses != expected) fail(test, Json(addresses).dump());
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 2);
  std::ifstream file(argv[1]);
  const Json tests = Json::parse(file);
  CHECK(tests.size() > 20);
  for (const Json& test : tests) run(test);
  std::printf("%zu cases\n", tests.size());
  return 0;
}
