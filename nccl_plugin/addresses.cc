#include "addresses.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "socket.h"

namespace ors::nccl {
namespace {

constexpr const char* kDefaultPort = ":2222";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    part.erase(0, part.find_first_not_of(" \t"));
    part.erase(part.find_last_not_of(" \t") + 1);
    if (!part.empty()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

std::string with_port(const std::string& address) {
  const bool in_brackets = address.front() == '[';
  const size_t colon = in_brackets ? address.find("]:") : address.find(':');
  return colon == std::string::npos ? address + kDefaultPort : address;
}

// The list at cluster / `pool` of a JSON text; empty where there is none. Throws nlohmann::json's
// exceptions for what is no JSON or has other types.
std::vector<std::string> of_cluster(const std::string& text, const char* pool) {
  const nlohmann::json spec = nlohmann::json::parse(text);
  if (!spec.contains("cluster") || !spec.at("cluster").contains(pool)) return {};
  return spec.at("cluster").at(pool).get<std::vector<std::string>>();
}

bool check(std::vector<std::string>* addresses, std::string* why) {
  for (std::string& address : *addresses) {
    address = address.empty() ? address : with_port(address);
    if (!parse_endpoint(address)) {
      *why = "'" + address + "' is no host:port";
      return false;
    }
    if (std::count(addresses->begin(), addresses->end(), address) > 1) {
      *why = address + " is listed twice; name each reducer once";
      return false;
    }
  }
  return true;
}

}  // namespace

bool find_addresses(const Environment& environment, std::vector<std::string>* addresses,
                    std::string* found_in, std::string* why) {
  struct Source {
    const char* variable;
    const char* pool;  // null: a plain list
  };
  for (const Source& source : {Source{"REDUCER_ADDRS", nullptr},
                               Source{"CLUSTER_SPEC", "workerpool2"}, Source{"TF_CONFIG", "ps"}}) {
    const std::string text = environment(source.variable);
    if (text.empty()) continue;
    *found_in = source.variable;
    try {
      *addresses = source.pool == nullptr ? split(text) : of_cluster(text, source.pool);
    } catch (const nlohmann::json::exception& error) {
      *why = std::string(source.variable) + ": " + error.what();
      return false;
    }
    if (addresses->empty()) {
      *why = std::string(source.variable) + " names no reducers" +
             (source.pool == nullptr ? "" : std::string(" (cluster.") + source.pool + ")");
      // A training cluster without reducers is nothing wrong.
      if (source.pool != nullptr) found_in->clear();
      return false;
    }
    if (check(addresses, why)) return true;
    *why = std::string(source.variable) + ": " + *why;
    return false;
  }
  *why = "no reducers: none of REDUCER_ADDRS, CLUSTER_SPEC and TF_CONFIG is set";
  return false;
}

}  // namespace ors::nccl
