// Writes the phases of each round to a file in Chrome's trace format, which Perfetto opens.
//
// Timestamps start at the wall clock when the file is opened and advance with the monotonic clock.
// Timelines of one machine therefore line up exactly; timelines of several machines line up as well
// as their wall clocks do. The file is one JSON array, and the closing bracket may be missing. Each
// write ends with a complete event, unless the process is killed during the write.
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
  // Creates <job>-rank<rank>-<host>-<pid>.json in `folder`, and the folder if it is missing. On
  // failure returns null and sets *why.
  static std::unique_ptr<Timeline> open(const std::string& folder, const std::string& job,
                                        uint32_t rank, std::string* why);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Returns false once the file is full or a write has failed. Later calls write nothing.
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

  // Slices of one track must not overlap, so overlapping rounds of a key use separate tracks.
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
