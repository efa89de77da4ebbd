#include "collnet.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "codec/hex.h"
#include "crypto/random.h"
#include "group.h"
#include "guarded.h"
#include "io/processors.h"
#include "key_file.h"

namespace ors::nccl {
namespace {

constexpr char kMagic[8] = {'O', 'R', 'S', 'C', 'O', 'L', 'L', '1'};

// The handle that NCCL passes from each rank of a group to all ranks before they connect.
struct Handle {
  char magic[8];
  uint8_t id[16];        // random
  uint8_t reducers[32];  // SHA-256 of the reducers' addresses
};
static_assert(sizeof(Handle) <= kHandleBytes);

// Wire numbers, indexed by NCCL's numbers.
constexpr uint8_t kWireTypes[kDataTypes] = {
    ors::kInt8,    ors::kUInt8,   ors::kInt32,   ors::kUInt32,   ors::kInt64,      ors::kUInt64,
    ors::kFloat16, ors::kFloat32, ors::kFloat64, ors::kBFloat16, ors::kFloat8E4M3, ors::kFloat8E5M2,
};
constexpr uint8_t kWireOps[kRedOps] = {ors::kSum, ors::kProd, ors::kMax, ors::kMin};

// Whether NCCL may make a request of this size (max_coll_bytes of the properties). A negative count
// becomes too large as size_t. Within these limits no sum or product of sizes wraps.
bool fits(const char* what, size_t count, size_t item_bytes) {
  if (count <= kMaxNetBytes / item_bytes) return true;
  log_warning(std::string(what) + " of " + std::to_string(count) + " elements of " +
              std::to_string(item_bytes) + " bytes: expected at most " +
              std::to_string(kMaxNetBytes) + " bytes");
  return false;
}

bool fits_in_row(const char* what, size_t bytes_per_rank, size_t offset, size_t size) {
  constexpr size_t kMost = size_t{1} << 50;
  if (bytes_per_rank <= kMost && offset <= kMost) return fits(what, size, 1);
  log_warning(std::string(what) + " of " + std::to_string(bytes_per_rank) +
              " bytes of each rank, beginning at byte " + std::to_string(offset) +
              ": expected both numbers to be at most 2^50");
  return false;
}

Descriptor reduction(size_t count, DataType type, RedOp op) {
  return {kAllReduce, kWireOps[op], kWireTypes[type], false, count, 0};
}

// The same, with sums of float32 in the group's dtype of the wire.
Descriptor narrowed(size_t count, DataType type, RedOp op, uint8_t wire_dtype) {
  Descriptor round = reduction(count, type, op);
  if (round.dtype == ors::kFloat32 && round.op == ors::kSum) {
    round.dtype = wire_dtype;
    round.wide = wire_dtype != ors::kFloat32;
  }
  return round;
}

Digest hash_of(const std::vector<std::string>& addresses) {
  Sha256 hash;
  for (const std::string& address : addresses) hash.update(address.c_str(), address.size() + 1);
  return hash.finish();
}

// Whether the arguments of connect are valid, so that `handles` and `listen_comm` can be read.
bool is_rank(void* const handles[], int ranks, int rank, const void* listen_comm) {
  const bool given = handles != nullptr && listen_comm != nullptr;
  if (given && rank >= 0 && rank < ranks) return true;
  log_warning("connect as rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
              (given ? ": expected a rank of 0 or more, below the number of ranks"
                     : ": expected the handles of all ranks and a listening communicator"));
  return false;
}

// Returns the mistake in another rank's handle; empty if the handle is good.
std::string mismatch(const Handle& theirs, const Handle& ours) {
  if (std::memcmp(theirs.magic, ours.magic, sizeof theirs.magic) != 0) {
    return "is of another version of the plugin";
  }
  if (std::memcmp(theirs.reducers, ours.reducers, sizeof theirs.reducers) != 0) {
    return "has another list of reducers (the same, in the same order, must be set on all ranks)";
  }
  return "";
}

Options options_of(const Settings& settings, const Digest& group, int rank, int ranks) {
  Options options = static_cast<const Options&>(settings);
  options.run_id = "nccl-" + hex(view(group).substr(0, 16));
  options.rank = static_cast<uint32_t>(rank);
  options.world_size = static_cast<uint32_t>(ranks);
  options.chunk_table = {{0, settings.chunk_bytes}};
  options.incarnation = random_bytes(16);
  options.loops = choose_loops(settings.loops, settings.source);
  return options;
}

std::string start(const Settings& settings, const Digest& id, int rank, int ranks,
                  std::unique_ptr<Group>* group) {
  const Options options = options_of(settings, id, rank, ranks);
  if (const auto wrong = check_options(options)) return *wrong;
  Secret key;
  if (!settings.key_file.empty()) {
    std::string why;
    auto found = read_key(settings.key_file, settings.job, &why);
    if (!found) return "key file " + settings.key_file + ": " + why;
    key = std::move(*found);
  }
  *group = std::make_unique<Group>(options, std::move(key), settings.wire_dtype);
  return (*group)->join().value_or("");
}

// Takes a request for a call, and gives the request back unless the call succeeds. `request` is
// null if no request is free.
struct Begun {
  Begun(void* comm, size_t size) : group(static_cast<Group*>(comm)), request(group->take()) {
    if (request != nullptr) request->size = size;
  }
  ~Begun() {
    if (request != nullptr) group->give_back(request);
  }
  Begun(const Begun&) = delete;
  Begun& operator=(const Begun&) = delete;

  Result end(Result result, void** out) {
    if (result == kSuccess) *out = std::exchange(request, nullptr);
    return result;
  }

  Group* group;
  CollRequest* request;
};

// The part of the window [offset, offset + size) that belongs to `rank`.
struct Part {
  size_t begin;  // in the window
  size_t size;
};
Part part_of(size_t rank, size_t bytes_per_rank, size_t offset, size_t size) {
  const size_t first = std::max(offset, rank * bytes_per_rank);
  const size_t last = std::min(offset + size, (rank + 1) * bytes_per_rank);
  return first < last ? Part{first - offset, last - first} : Part{0, 0};
}

// One broadcast from each rank that has a part in the window.
Result gather(const Begun& begun, const uint8_t* send, uint8_t* receive, size_t bytes_per_rank,
              size_t offset, size_t size) {
  Group* group = begun.group;
  for (uint32_t root = 0; root < group->world_size(); ++root) {
    const Part part = part_of(root, bytes_per_rank, offset, size);
    if (part.size == 0) continue;
    const bool ours = root == group->rank();
    uint8_t* target = receive + part.begin;
    if (ours && target != send) std::memcpy(target, send, part.size);
    const Descriptor round = {kBroadcast, kCopy,     ors::kUInt8,
                              false,      part.size, static_cast<uint16_t>(root)};
    const Result result =
        group->begin(begun.request, round, ours ? send : nullptr, ours ? part.size : 0,
                     ours ? nullptr : target, ours ? 0 : part.size);
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

}  // namespace

Result coll_listen(const Settings& settings, void* handle, void** listen_comm) {
  return guarded([&] {
    auto ours = std::make_unique<Handle>();
    std::memcpy(ours->magic, kMagic, sizeof kMagic);
    const std::string id = random_bytes(sizeof ours->id);
    std::memcpy(ours->id, id.data(), sizeof ours->id);
    const Digest reducers = hash_of(settings.addresses);
    std::memcpy(ours->reducers, reducers.data(), sizeof ours->reducers);
    std::memset(handle, 0, kHandleBytes);
    std::memcpy(handle, ours.get(), sizeof *ours);
    *listen_comm = ours.release();
    return kSuccess;
  });
}

Result coll_connect(const Settings& settings, void* handles[], int ranks, int rank,
                    void* listen_comm, void** comm) {
  return guarded([&] {
    *comm = nullptr;
    if (!is_rank(handles, ranks, rank, listen_comm)) return kInvalidArgument;
    const auto& ours = *static_cast<const Handle*>(listen_comm);
    Sha256 hash;
    for (int other = 0; other < ranks; ++other) {
      Handle theirs;
      std::memcpy(&theirs, handles[other], sizeof theirs);
      const std::string wrong = mismatch(theirs, ours);
      if (!wrong.empty()) {
        log_warning("rank " + std::to_string(other) + " " + wrong);
        return kInvalidUsage;
      }
      hash.update(&theirs, sizeof theirs);
    }
    std::unique_ptr<Group> group;
    const std::string trouble = start(settings, hash.finish(), rank, ranks, &group);
    if (!trouble.empty()) {
      log_warning("rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                  " cannot use the reducers: " + trouble);
      return kRemoteError;
    }
    log_info("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " sums over " +
             std::to_string(settings.addresses.size()) + " reducers as run '" + group->run() +
             "' of job '" + settings.job + "'");
    if (settings.wire_dtype != ors::kFloat32) {
      log_info("REDUCER_WIRE_DTYPE: all-reduces send sums of float32 as " + wire_name(settings) +
               ", so their results are not exact");
    }
    *comm = group.release();
    return kSuccess;
  });
}

bool coll_supports(DataType type, RedOp op) {
  return type >= 0 && type < kDataTypes && op >= 0 && op < kRedOps;
}

Result coll_all_reduce(void* comm, const void* send, void* receive, size_t count, DataType type,
                       RedOp op, void** request) {
  return guarded([&] {
    *request = nullptr;
    if (!coll_supports(type, op)) return kInvalidArgument;
    const size_t item = item_size(kWireTypes[type]);
    if (!fits("an all-reduce", count, item)) return kInvalidArgument;
    const size_t size = count * item;
    Begun begun(comm, size);
    if (begun.request == nullptr) return kSuccess;
    const Descriptor round = narrowed(count, type, op, begun.group->wire_dtype());
    const Result result =
        begun.group->begin(begun.request, round, static_cast<const uint8_t*>(send), size,
                           static_cast<uint8_t*>(receive), size);
    return begun.end(result, request);
  });
}

Result coll_all_gather(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                       size_t offset, size_t size, void** request) {
  return guarded([&] {
    *request = nullptr;
    if (!fits_in_row("an all-gather", bytes_per_rank, offset, size)) return kInvalidArgument;
    Begun begun(comm, size);
    if (begun.request == nullptr) return kSuccess;
    const Result result = gather(begun, static_cast<const uint8_t*>(send),
                                 static_cast<uint8_t*>(receive), bytes_per_rank, offset, size);
    return begun.end(result, request);
  });
}

// One round, with the traffic of an all-reduce: the sum of the whole window comes back, and this
// rank keeps its part.
Result coll_reduce_scatter(void* comm, const void* send, void* receive, size_t bytes_per_rank,
                           size_t offset, size_t size, DataType type, RedOp op, void** request) {
  return guarded([&] {
    *request = nullptr;
    if (!coll_supports(type, op)) return kInvalidArgument;
    if (!fits_in_row("a reduce-scatter", bytes_per_rank, offset, size)) return kInvalidArgument;
    Begun begun(comm, size);
    if (begun.request == nullptr) return kSuccess;
    CollRequest* ours = begun.request;
    const Part part = part_of(begun.group->rank(), bytes_per_rank, offset, size);
    ours->scratch.resize(std::max(ours->scratch.size(), size));
    ours->receive = static_cast<uint8_t*>(receive);
    ours->begin = part.begin;
    ours->size = part.size;
    const size_t count = size / item_size(kWireTypes[type]);
    const Result result =
        begun.group->begin(ours, reduction(count, type, op), static_cast<const uint8_t*>(send),
                           size, ours->scratch.data(), size);
    return begun.end(result, request);
  });
}

Result coll_test(void* request, int* done, int* size) {
  return guarded([&] {
    auto* ours = static_cast<CollRequest*>(request);
    return ours->group->test(ours, done, size);
  });
}

Result coll_close(void* comm) {
  return guarded([&] {
    const std::unique_ptr<Group> group(static_cast<Group*>(comm));
    if (group != nullptr) group->leave();  // null after a connect that failed
    return kSuccess;
  });
}

Result coll_close_listen(void* listen_comm) {
  delete static_cast<Handle*>(listen_comm);
  return kSuccess;
}

}  // namespace ors::nccl
