#include "protocol/texts.h"

#include <algorithm>
#include <cstdio>

namespace ors {

std::string rank_names(const std::vector<uint32_t>& ranks, uint64_t count, size_t most) {
  std::string text = count == 1 ? "rank " : "ranks ";
  const size_t shown = std::min(ranks.size(), most);
  for (size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (count > shown) text += " and " + std::to_string(count - shown) + " more";
  return text;
}

std::string in_seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

}  // namespace ors
