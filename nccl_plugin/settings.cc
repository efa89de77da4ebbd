#include "settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>

#include "addresses.h"
#include "io/processors.h"

namespace ors::nccl {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Parses a value into the settings. Returns what was expected if the value is invalid, else "".
using Parse = std::function<std::string(Settings*, const std::string&)>;
using Show = std::function<std::string(const Settings&)>;

struct Parameter {
  const char* name;
  const char* help;
  Parse parse;
  Show show;
};

Parse text(std::string Settings::* member) {
  return [member](Settings* settings, const std::string& value) {
    settings->*member = value;
    return "";
  };
}

template <class Owner>
Show shown(std::string Owner::* member) {
  return [member](const Settings& settings) { return settings.*member; };
}

Parse seconds(double Settings::* member) {
  return [member](Settings* settings, const std::string& value) -> std::string {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(number > 0 && number <= 86'400)) {
      return "seconds, above 0 and at most 86400";
    }
    settings->*member = number;
    return "";
  };
}

template <class Number>
std::string parse_integer(const std::string& value, Number* out, uint64_t least, uint64_t most,
                          uint64_t step = 1) {
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(value.c_str(), &end, 10);
  const bool digits = !value.empty() && value.find_first_not_of("0123456789") == value.npos;
  if (!digits || errno != 0 || number < least || number > most || number % step != 0) {
    return "an integer, " + std::to_string(least) + " to " + std::to_string(most) +
           (step > 1 ? ", a multiple of " + std::to_string(step) : "");
  }
  *out = static_cast<Number>(number);
  return "";
}

template <class Owner, class Number>
Parse integer(Number Owner::* member, uint64_t least, uint64_t most, uint64_t step = 1) {
  return [=](Settings* settings, const std::string& value) {
    return parse_integer(value, &(settings->*member), least, most, step);
  };
}

Parse auto_or(int NetSettings::* member, uint64_t least, uint64_t most) {
  return [=](Settings* settings, const std::string& value) -> std::string {
    int* out = &(settings->net.*member);
    *out = kByNic;
    if (value == "auto") return "";
    const std::string expected = parse_integer(value, out, least, most);
    return expected.empty() ? "" : "auto or " + expected;
  };
}

Show shown_auto(int NetSettings::* member) {
  return [member](const Settings& settings) {
    const int value = settings.net.*member;
    return value == kByNic ? "auto" : std::to_string(value);
  };
}

template <class Owner, class Number>
Show shown(Number Owner::* member) {
  return [member](const Settings& settings) {
    std::string digits = std::to_string(settings.*member);
    if (digits.find('.') != digits.npos) digits.erase(digits.find_last_not_of('0') + 1);
    if (!digits.empty() && digits.back() == '.') digits.pop_back();
    return digits;
  };
}

// Numbers from 1 on, one for each reducer; the engine checks how many.
std::string parse_weights(Settings* settings, const std::string& value) {
  settings->weights.clear();
  for (size_t from = 0; from <= value.size();) {
    const size_t comma = std::min(value.find(',', from), value.size());
    uint32_t weight = 0;
    if (!parse_integer(value.substr(from, comma - from), &weight, 1, 4'096).empty()) {
      return "numbers such as 3,3,1";
    }
    settings->weights.push_back(weight);
    from = comma + 1;
  }
  return "";
}

std::string show_weights(const Settings& settings) {
  std::string shown;
  for (const uint32_t weight : settings.weights) {
    shown += (shown.empty() ? "" : ",") + std::to_string(weight);
  }
  return shown;
}

std::string parse_transport(Settings* settings, const std::string& value) {
  if (value != "auto" && value != "tcp") return "auto or tcp";
  settings->local_sockets = value == "auto";
  return "";
}

struct WireDtype {
  const char* name;
  uint8_t dtype;
};
constexpr WireDtype kWireDtypes[] = {
    {"float32", kFloat32},
    {"float16", kFloat16},
    {"bfloat16", kBFloat16},
    {"int8", kInt8BlocksToBFloat16},
    {"float8_e4m3fn", kE4M3BlocksToBFloat16},
    {"e3m0", kE3M0BlocksToBFloat16},
};

std::string parse_wire_dtype(Settings* settings, const std::string& value) {
  std::string names;
  for (const WireDtype& known : kWireDtypes) {
    if (value == known.name) {
      settings->wire_dtype = known.dtype;
      return "";
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  return "one of " + names;
}

const std::vector<Parameter>& parameters() {
  using S = Settings;
  constexpr uint64_t kMiB = 1 << 20;
  static const std::vector<Parameter> all = {
      {"REDUCER_JOB", "name of the job at the reducers; equal on all ranks", text(&S::job),
       shown(&S::job)},
      {"REDUCER_KEY_FILE", "file with the reducers' key or the job's key; empty: none",
       text(&S::key_file), shown(&S::key_file)},
      {"REDUCER_TRANSPORT",
       "auto: Unix sockets to reducers on this machine, TCP to others; tcp: TCP to all",
       parse_transport, [](const S& s) { return std::string(s.local_sockets ? "auto" : "tcp"); }},
      {"REDUCER_CONGESTION", "TCP congestion control towards the reducers; empty: the system's",
       text(&S::congestion), shown(&S::congestion)},
      {"REDUCER_SOURCE", "address or interface of connections to the reducers; empty: any",
       text(&S::source), shown(&S::source)},
      {"REDUCER_CONNECT_TIMEOUT", "seconds to reach the reducers and to meet all ranks",
       seconds(&S::connect_timeout), shown(&S::connect_timeout)},
      {"REDUCER_SILENCE", "seconds without a byte before a reducer is suspected",
       seconds(&S::silence), shown(&S::silence)},
      {"REDUCER_WORKER_SILENCE",
       "seconds without a byte before a rank is lost, 1 to 3,600; the value of rank 0 holds for "
       "all",
       seconds(&S::worker_silence), shown(&S::worker_silence)},
      {"REDUCER_WAIT", "seconds that requests wait for a reducer when none is left",
       seconds(&S::reducer_wait), shown(&S::reducer_wait)},
      {"REDUCER_MIN_REDUCERS", "number of reducers without which a communicator does not start",
       integer(&S::min_reducers, 1, kMaxReducers), shown(&S::min_reducers)},
      {"REDUCER_WEIGHTS", "shares of the work for each reducer, such as 3,3,1; empty: equal shares",
       parse_weights, show_weights},
      {"REDUCER_DIGEST_EVERY",
       "rounds of a key after which the ranks compare their results; 0: never",
       integer(&S::digest_every, 0, UINT32_MAX), shown(&S::digest_every)},
      {"REDUCER_IO_THREADS",
       "threads of a communicator that move bytes, 1 to 16; 0: by the NIC's rate",
       integer(&S::loops, 0, kMaxLoops), shown(&S::loops)},
      {"REDUCER_CHUNK_BYTES", "bytes that go to one reducer at a time, a multiple of 64",
       integer(&S::chunk_bytes, 4'096, 4 * kMiB, 64), shown(&S::chunk_bytes)},
      {"REDUCER_MIN_BYTES", "all-reduces from this size on go to the reducers (NCCL_ALGO unset)",
       integer(&S::min_bytes, 0, uint64_t{1} << 50), shown(&S::min_bytes)},
      {"REDUCER_WIRE_DTYPE",
       "dtype in which all-reduces send sums of float32; other than float32: results are not exact",
       parse_wire_dtype, wire_name},
      {"REDUCER_NSOCKS",
       "number of sockets per connection between two ranks, 1 to 64; auto: 16 on AWS, else 4",
       auto_or(&NetSettings::sockets, 1, kMaxHelpedSockets), shown_auto(&NetSettings::sockets)},
      {"REDUCER_NET_THREADS",
       "threads at each end of such a connection, 0 to 16; auto: 2 on AWS, 4 on Google's gVNIC, "
       "else 0",
       auto_or(&NetSettings::threads, 0, kMaxNetThreads), shown_auto(&NetSettings::threads)},
      {"REDUCER_PIECE_BYTES", "maximum bytes of a message that go to one socket at a time",
       [](S* settings, const std::string& value) {
         return parse_integer(value, &settings->net.piece, 4'096, 4 * kMiB);
       },
       [](const S& settings) { return std::to_string(settings.net.piece); }},
  };
  return all;
}

// The name of a variable of mode tls that is set, else null. The plugin has no mode tls.
const char* tls_variable() {
  for (const char* name : {"REDUCER_TLS_CERT", "REDUCER_TLS_KEY", "REDUCER_TLS_CA"}) {
    if (!environment(name).empty()) return name;
  }
  return nullptr;
}

}  // namespace

std::optional<Settings> read_settings(std::string* why, bool* wrong) {
  *wrong = false;
  if (environment("NCCL_COLLNET_ENABLE") != "1") {
    *why = "NCCL_COLLNET_ENABLE is not 1";
    return std::nullopt;
  }
  Settings settings;
  if (!find_addresses(environment, &settings.addresses, &settings.found_in, why)) {
    *wrong = !settings.found_in.empty();
    return std::nullopt;
  }
  if (const char* name = tls_variable()) {
    *why = std::string("the plugin has no mode tls: expected ") + name +
           " to be unset, and reducers in mode psk (REDUCER_KEY_FILE) or open";
    *wrong = true;
    return std::nullopt;
  }
  for (const Parameter& parameter : parameters()) {
    const std::string value = environment(parameter.name);
    if (value.empty()) continue;
    const std::string expected = parameter.parse(&settings, value);
    if (expected.empty()) continue;
    *why = parameter.name;
    why->append("='").append(value).append("': expected ").append(expected);
    *wrong = true;
    return std::nullopt;
  }
  return settings;
}

std::string wire_name(const Settings& settings) {
  for (const WireDtype& known : kWireDtypes) {
    if (known.dtype == settings.wire_dtype) return known.name;
  }
  return "";
}

std::vector<std::string> describe(const Settings& settings) {
  std::string addresses;
  for (const std::string& address : settings.addresses) {
    addresses += (addresses.empty() ? "" : ",") + address;
  }
  std::vector<std::string> lines = {settings.found_in + ": reducers at " + addresses};
  for (const Parameter& parameter : parameters()) {
    lines.push_back(std::string(parameter.name) + "=" + parameter.show(settings) + " (" +
                    parameter.help + ")");
  }
  return lines;
}

}  // namespace ors::nccl
