#include "addresses.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "codec/wire.h"

namespace ors::nccl {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

constexpr const char* kDefaultPort = "2222";
constexpr const char* kSpaces = " \t\n\r\f\v";

// reducer/cluster has the same texts; tests/vectors/cluster tests both.
struct Refused : std::runtime_error {
  Refused(const std::string& where, const std::string& text)
      : std::runtime_error(where + ": " + text) {}
};

std::string strip(std::string text) {
  text.erase(0, text.find_first_not_of(kSpaces));
  text.erase(text.find_last_not_of(kSpaces) + 1);
  return text;
}

Strings split(const std::string& text) {
  Strings parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = strip(text.substr(begin, end - begin));
    if (!part.empty()) parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

template <class Number>
bool parse_number(const std::string& text, Number* number) {
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

std::string replace_all(std::string text, const std::string& what, const std::string& with) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
  return text;
}

// Host and port as text; the host has no brackets if it is an IPv6 address.
std::pair<std::string, std::string> split_address(const std::string& where,
                                                  const std::string& text) {
  if (text.front() == '[') {
    const size_t end = text.find(']');
    if (end == text.npos || text.find(':') > end ||
        (end + 1 < text.size() && text[end + 1] != ':')) {
      throw Refused(where, "address '" + text + "': expected [ipv6]:port");
    }
    const bool has_port = end + 1 < text.size();
    return {text.substr(1, end - 1), has_port ? text.substr(end + 2) : kDefaultPort};
  }
  if (std::count(text.begin(), text.end(), ':') > 1) {
    throw Refused(where, "address '" + text + "': an IPv6 address goes in brackets, [" + text +
                             "]:" + kDefaultPort);
  }
  const size_t colon = text.find(':');
  return {text.substr(0, colon), colon == text.npos ? kDefaultPort : text.substr(colon + 1)};
}

std::string normalize(const std::string& where, const std::string& written) {
  const std::string text = strip(written);
  const auto [host, port] =
      text.empty() ? std::pair<std::string, std::string>() : split_address(where, text);
  if (host.empty() || host.find_first_of(std::string(kSpaces) + "/@,") != host.npos) {
    throw Refused(where, "address '" + text + "': expected host, host:port or [ipv6]:port");
  }
  uint64_t number = 0;
  if (!parse_number(port, &number) || number < 1 || number > 65535) {
    throw Refused(where,
                  "address '" + text + "': port '" + port + "' is not a number from 1 to 65535");
  }
  return (text.front() == '[' ? "[" + host + "]" : host) + ":" + std::to_string(number);
}

void refuse_duplicates(const std::string& where, const Strings& addresses) {
  for (const std::string& address : addresses) {
    if (std::count(addresses.begin(), addresses.end(), address) > 1) {
      throw Refused(where, address + " is listed twice; name each reducer once");
    }
  }
}

Refused unexpected(const std::string& where, const std::string& expected, const Json& value) {
  const std::string got = value.is_object()   ? "an object"
                          : value.is_array()  ? "a list"
                          : value.is_string() ? "'" + value.get<std::string>() + "'"
                                              : value.dump();
  return Refused(where, "expected " + expected + ", got " + got);
}

// The member `name`; null if it is absent or null.
const Json* member(const std::string& where, const Json& object, const char* name) {
  if (!object.is_object()) throw unexpected(where, "an object", object);
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Json parse(const char* variable, const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (!json.is_object()) throw unexpected(variable, "a JSON object", json);
    return json;
  } catch (const Json::exception& error) {
    throw Refused(variable, std::string("expected a JSON object: ") + error.what());
  }
}

Strings of_list(const char* variable, const std::string& text, const Environment&) {
  Strings addresses = split(text);
  if (addresses.empty()) throw Refused(variable, "expected host:port,host:port, got no address");
  for (std::string& address : addresses) address = normalize(variable, address);
  refuse_duplicates(variable, addresses);
  return addresses;
}

// The addresses at cluster / `pool` of a variable in JSON; an empty object is an unused pool.
Strings of_pool(const char* variable, const std::string& text, const char* pool) {
  const Json json = parse(variable, text);
  const Json* cluster = member(variable, json, "cluster");
  std::string where = std::string(variable) + ": cluster";
  const Json* list = cluster == nullptr ? nullptr : member(where, *cluster, pool);
  if (list == nullptr || (list->is_object() && list->empty())) return {};
  where += std::string(".") + pool;
  if (!list->is_array()) throw unexpected(where, "a list of host:port", *list);
  Strings addresses;
  for (const Json& address : *list) {
    const std::string element = where + "[" + std::to_string(addresses.size()) + "]";
    if (!address.is_string()) throw unexpected(element, "host:port", address);
    addresses.push_back(normalize(element, address.get<std::string>()));
  }
  refuse_duplicates(where, addresses);
  return addresses;
}

Strings of_cluster_spec(const char* variable, const std::string& text, const Environment&) {
  return of_pool(variable, text, "workerpool2");
}

Strings of_tf_config(const char* variable, const std::string& text, const Environment&) {
  return of_pool(variable, text, "ps");
}

// Throws Refused for a Service named reducer: its one address stands for all pods.
Strings of_service_link(const char* variable, const std::string& text, const Environment&) {
  for (const char* protocol : {"tcp://", "udp://", "sctp://"}) {
    if (text.compare(0, std::strlen(protocol), protocol) != 0) continue;
    throw Refused(variable,
                  "got '" + text + "', which Kubernetes sets for a Service named reducer; it " +
                      "leads to any one of the pods. Put enableServiceLinks: false into the pod's "
                      "spec, and set REDUCER_SERVICE and REDUCER_REPLICAS");
  }
  return {};
}

int64_t read_replicas(const std::string& count) {
  int64_t replicas = 0;
  if (!parse_number(count, &replicas)) {
    throw Refused("REDUCER_REPLICAS='" + count + "'", "expected an integer");
  }
  if (replicas < 1 || replicas > int64_t{kMaxReducers}) {
    throw Refused("REDUCER_REPLICAS=" + count, "expected 1 to " + std::to_string(kMaxReducers));
  }
  return replicas;
}

// The pods of a StatefulSet behind a headless Service; {} in the text stands for a pod's number.
Strings of_service(const char* variable, const std::string& text, const Environment& environment) {
  const std::string count = environment("REDUCER_REPLICAS");
  if (count.empty()) {
    throw Refused(std::string(variable) + "='" + text + "'",
                  "expected REDUCER_REPLICAS beside it, the number of its pods");
  }
  const int64_t replicas = read_replicas(count);
  const std::string service = strip(text);
  normalize(variable, replace_all(service, "{}", "0"));
  std::string pattern = service;
  if (service.find("{}") == service.npos) {
    pattern = service.substr(0, service.find_first_of(".:")) + "-{}." + service;
  }
  Strings pods;
  for (int64_t n = 0; n < replicas; ++n) {
    pods.push_back(normalize(variable, replace_all(pattern, "{}", std::to_string(n))));
  }
  return pods;
}

}  // namespace

bool find_addresses(const Environment& environment, std::vector<std::string>* addresses,
                    std::string* found_in, std::string* why) {
  struct Source {
    const char* variable;
    Strings (*read)(const char* variable, const std::string& text, const Environment& environment);
  };
  for (const Source& source :
       {Source{"REDUCER_ADDRS", of_list}, Source{"CLUSTER_SPEC", of_cluster_spec},
        Source{"TF_CONFIG", of_tf_config}, Source{"REDUCER_SERVICE", of_service},
        Source{"REDUCER_PORT", of_service_link}}) {
    const std::string text = environment(source.variable);
    if (text.empty()) continue;
    *found_in = source.variable;
    try {
      *addresses = source.read(source.variable, text, environment);
    } catch (const Refused& refused) {
      *why = refused.what();
      return false;
    }
    if (!addresses->empty()) return true;
  }
  found_in->clear();
  *why =
      "no reducers: none of REDUCER_ADDRS, CLUSTER_SPEC, TF_CONFIG and REDUCER_SERVICE names one";
  return false;
}

}  // namespace ors::nccl
