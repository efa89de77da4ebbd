// What became of each round and when, as a file in Chrome's trace format (Perfetto opens it).
//
// Times are the wall clock's of the moment when the file was opened, and from there the monotonic
// clock's: those of one machine fit together exactly, those of several as well as their clocks do.
// The file is an array whose end may be missing: each write ends with a whole event, but for one
// that the process was killed in.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "protocol/trace.h"

namespace ors {

// Written by one thread at a time.
class Timeline {
 public:
  // A new file <job>-rank<rank>-<host>-<pid>.json in `folder`, which is made where it is missing.
  // Null with the reason in `why`.
  static std::unique_ptr<Timeline> open(const std::string& folder, const std::string& job,
                                        uint32_t rank, std::string* why);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // False once the file is full, or cannot be written: nothing more is taken.
  bool write(const std::vector<RoundTrace>& rounds);
  const std::string& path() const { return path_; }

 private:
  Timeline(int fd, std::string path);

  int64_t micros(double moment) const;
  int track(const std::string& key, int64_t begin, int64_t end);
  void add_process(const std::string& job, uint32_t rank);
  void add_round(const RoundTrace& round);
  void add_slice(const char* name, int track, int64_t begin, int64_t end, const std::string& args);
  bool flush();

  // Rounds of one key that overlap have a track each: slices of a track must not.
  struct Track {
    int number = 0;
    int64_t free_from = 0;
  };

  int fd_;
  const std::string path_;
  const double wall_less_monotonic_;
  const int pid_;
  std::map<std::string, std::vector<Track>> tracks_;
  int last_track_ = 0;
  std::string unwritten_;
  size_t written_ = 0;
};

}  // namespace ors
