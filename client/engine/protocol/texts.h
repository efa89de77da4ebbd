// Numbers as texts of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ors {

// Formats `count` ranks, of which the list has the first ones: "rank 3", or "ranks 1, 4 and 2
// more". Names at most `most` of them.
std::string rank_names(const std::vector<uint32_t>& ranks, uint64_t count, size_t most);

// Formats a measured time: "1.5 s".
std::string in_seconds(double seconds);

}  // namespace ors
