#include "io/timeline.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "codec/wire.h"
#include "io/fork.h"

namespace ors {
namespace {

// Room for 60,000 rounds or more. Viewers still show the merged files of a few ranks.
constexpr size_t kMaxBytes = 32 << 20;
constexpr int kMaxFiles = 1000;  // file names that one process tries: they differ in a number
constexpr size_t kMaxNameBytes = 100;

std::string host_name() {
  char name[256] = "";
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

std::string for_file_name(std::string text) {
  text.resize(std::min(text.size(), kMaxNameBytes));
  for (char& c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    if (!plain) c = '-';
  }
  return text;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

const char* name_of(uint8_t collective) {
  switch (collective) {
    case kAllReduce:
      return "all_reduce";
    case kBroadcast:
      return "broadcast";
    case kAllGather:
      return "all_gather";
    case kReduceScatter:
      return "reduce_scatter";
    default:
      return "barrier";
  }
}

template <typename Clock>
double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace

std::unique_ptr<Timeline> Timeline::open(const std::string& folder, const std::string& job,
                                         uint32_t rank, std::string* why) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string stem = folder + "/" + for_file_name(job) + "-rank" + std::to_string(rank) +
                           "-" + for_file_name(host_name()) + "-" + std::to_string(::getpid());
  for (int number = 1; number <= kMaxFiles; ++number) {
    const std::string path = stem + (number > 1 ? "-" + std::to_string(number) : "") + ".json";
    const int fd = open_guarded(
        [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644); });
    if (fd >= 0) {
      std::unique_ptr<Timeline> timeline(new Timeline(fd, path));
      timeline->add_process(job, rank);
      return timeline;
    }
    *why = "timeline " + path + ": " + std::strerror(errno);
    if (errno != EEXIST) return nullptr;
  }
  return nullptr;
}

Timeline::Timeline(int fd, std::string path)
    : fd_(fd),
      path_(std::move(path)),
      wall_less_monotonic_(seconds<std::chrono::system_clock>() -
                           seconds<std::chrono::steady_clock>()),
      pid_(::getpid()) {}

Timeline::~Timeline() {
  if (fd_ < 0) return;
  try {
    unwritten_ += "\n]\n";
    (void)flush();
  } catch (const std::exception&) {  // out of memory: the closing bracket is missing
  }
  if (fd_ >= 0) close_guarded(fd_);
}

void Timeline::add_process(const std::string& job, uint32_t rank) {
  const std::string number = std::to_string(rank);
  const auto metadata = [&](const char* name, const std::string& args) {
    unwritten_ += std::string("{\"ph\":\"M\",\"name\":\"") + name +
                  "\",\"pid\":" + std::to_string(pid_) + ",\"args\":{" + args + "}}";
  };
  unwritten_ += "[\n";
  metadata("process_name", "\"name\":" + json_string("rank " + number));
  unwritten_ += ",\n";
  metadata("process_labels", "\"labels\":" + json_string(job + " on " + host_name()));
  unwritten_ += ",\n";
  metadata("process_sort_index", "\"sort_index\":" + number);
  (void)flush();
}

bool Timeline::write(const std::vector<RoundTrace>& rounds) {
  if (fd_ < 0) return false;
  try {
    for (const RoundTrace& round : rounds) add_round(round);
  } catch (...) {  // out of memory, perhaps in the middle of an event
    unwritten_.clear();
    throw;
  }
  return flush();
}

int64_t Timeline::micros(double moment) const {
  return std::llround((wall_less_monotonic_ + moment) * 1e6);
}

// The phases follow each other and cover the whole round. "receiving" starts at the first result;
// later contributions of the round are sent during this phase.
void Timeline::add_round(const RoundTrace& round) {
  const Moments& m = round.moments;
  const double sent = std::max(m.submitted, m.first_sent);
  const double all_sent = std::max(sent, m.last_sent);
  const double result = std::max(all_sent, m.first_result > 0 ? m.first_result : m.last_result);
  const double end = std::max(result, m.last_result);
  const int64_t at[] = {micros(m.submitted), micros(sent), micros(all_sent), micros(result),
                        micros(end)};
  const int on = track(round.key, at[0], at[4]);
  std::string args =
      "\"round\":" + std::to_string(round.round) + ",\"bytes\":" + std::to_string(round.bytes);
  if (!round.error.empty()) args += ",\"error\":" + json_string(round.error);
  add_slice(name_of(round.collective), on, at[0], at[4], args);
  static const char* const kPhases[] = {"queued", "sending", "waiting", "receiving"};
  for (int phase = 0; phase < 4; ++phase) {
    if (at[phase + 1] > at[phase]) add_slice(kPhases[phase], on, at[phase], at[phase + 1], "");
  }
}

int Timeline::track(const std::string& key, int64_t begin, int64_t end) {
  auto& tracks = tracks_[key];
  for (Track& track : tracks) {
    if (track.free_from > begin) continue;
    track.free_from = end;
    return track.number;
  }
  tracks.push_back({++last_track_, end});
  const std::string more = tracks.size() > 1 ? " (" + std::to_string(tracks.size()) + ")" : "";
  unwritten_ += ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + std::to_string(pid_) +
                ",\"tid\":" + std::to_string(last_track_) +
                ",\"args\":{\"name\":" + json_string(key + more) + "}}";
  return last_track_;
}

void Timeline::add_slice(const char* name, int track, int64_t begin, int64_t end,
                         const std::string& args) {
  char head[160];
  std::snprintf(head, sizeof head,
                ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%lld,\"dur\":%lld",
                name, pid_, track, static_cast<long long>(begin),
                static_cast<long long>(end - begin));
  unwritten_ += head;
  unwritten_ += args.empty() ? "}" : ",\"args\":{" + args + "}}";
}

bool Timeline::flush() {
  const bool full = written_ + unwritten_.size() > kMaxBytes;
  if (full) unwritten_ = "\n]\n";
  size_t done = 0;
  while (done < unwritten_.size()) {
    const ssize_t size = ::write(fd_, unwritten_.data() + done, unwritten_.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) break;
    done += static_cast<size_t>(size);
  }
  const bool failed = done < unwritten_.size();
  written_ += done;
  unwritten_.clear();
  if (full || failed) close_guarded(std::exchange(fd_, -1));
  return !full && !failed;
}

}  // namespace ors
