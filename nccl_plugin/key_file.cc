#include "key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "crypto/handshake.h"
#include "io/fork.h"

namespace ors::nccl {
namespace {

constexpr char kJobPrefix[] = "job-key:";
constexpr size_t kMaxText = sizeof kJobPrefix + kMaxMasterBytes * 4 / 3 + 8;

// Whether only the owner and root can read or change the file. A group may read a file of root:
// this is how Kubernetes mounts a secret for a pod with fsGroup.
bool is_private(const struct stat& found, std::string* why) {
  if (!S_ISREG(found.st_mode)) {
    *why = "expected a regular file";
  } else if (found.st_uid != 0 && found.st_uid != ::geteuid()) {
    *why = "it belongs to user " + std::to_string(found.st_uid) + ", expected " +
           std::to_string(::geteuid()) + " or root: its owner could replace the key";
  } else if ((found.st_mode & 0777 & ~(found.st_uid == 0 ? 0740u : 0700u)) != 0) {
    *why =
        "others can read or change it: run chmod 600 (a Kubernetes secret: defaultMode: 0440, and "
        "fsGroup)";
  } else {
    return true;
  }
  return false;
}

std::optional<std::string> read_text(const std::string& path, std::string* why) {
  const int fd =
      open_guarded([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (fd < 0) {
    *why = std::strerror(errno);
    return std::nullopt;
  }
  struct stat found{};
  std::string text(kMaxText, '\0');
  ssize_t size = -1;
  if (::fstat(fd, &found) == 0 && is_private(found, why)) {
    size = ::read(fd, text.data(), text.size());
    if (size < 0) *why = std::strerror(errno);
  }
  close_guarded(fd);
  if (size < 0) return std::nullopt;
  text.resize(static_cast<size_t>(size));
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  return text;
}

// nullopt if `text` is no base64url text.
std::optional<std::string> decode(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string bytes;
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const char* digit = c == '\0' ? nullptr : std::strchr(kDigits, c);
    if (digit == nullptr) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit - kDigits);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    bytes.push_back(static_cast<char>(bits >> have & 0xFF));
  }
  return bytes;
}

}  // namespace

std::optional<Secret> read_key(const std::string& path, const std::string& job, std::string* why) {
  const auto text = read_text(path, why);
  if (!text) return std::nullopt;
  const bool of_job = text->rfind(kJobPrefix, 0) == 0;
  const auto bytes = decode(std::string_view(*text).substr(of_job ? std::strlen(kJobPrefix) : 0));
  const size_t least = of_job ? kDigestSize : kMinMasterBytes;
  const size_t most = of_job ? kDigestSize : kMaxMasterBytes;
  if (!bytes || bytes->size() < least || bytes->size() > most) {
    *why = "expected one line of base64url text, as `reducer keygen` writes it";
    return std::nullopt;
  }
  if (!of_job) return job_key(*bytes, job);
  Digest digest{};
  std::copy(bytes->begin(), bytes->end(), digest.begin());
  return Secret(std::move(digest));
}

}  // namespace ors::nccl
