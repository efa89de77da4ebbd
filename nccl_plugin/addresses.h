// Where the reducers are: REDUCER_ADDRS, else CLUSTER_SPEC (Vertex), else TF_CONFIG, else
// REDUCER_SERVICE (Kubernetes). The rule of reducer/cluster, for what a plugin needs of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ors::nccl {

using Environment = std::function<std::string(const char* name)>;  // empty: not set

// False where no variable names one, or where one that comes before those that do is no good: *why
// says so, and *found_in is that variable, or empty where none names one.
//
// CLUSTER_SPEC: the addresses of worker pool 2. TF_CONFIG: those of the tasks "ps". Both are JSON.
// REDUCER_SERVICE: REDUCER_REPLICAS pods below a headless Service. An address without a port has
// port 2222. They are equal on all ranks, in the same order.
bool find_addresses(const Environment& environment, std::vector<std::string>* addresses,
                    std::string* found_in, std::string* why);

}  // namespace ors::nccl
