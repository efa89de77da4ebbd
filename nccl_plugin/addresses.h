// Finds the reducers: REDUCER_ADDRS, else CLUSTER_SPEC (Vertex), else TF_CONFIG, else
// REDUCER_SERVICE (Kubernetes). reducer/cluster has the same rule in Python.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace ors::nccl {

using Environment = std::function<std::string(const char* name)>;  // empty: not set

// Returns false, with the reason in *why, if no variable names a reducer (*found_in is then empty)
// or if the first variable that is set cannot be used (*found_in is then its name).
//
// CLUSTER_SPEC has the addresses of the reducers in worker pool 2, TF_CONFIG in the tasks "ps";
// both are JSON. REDUCER_SERVICE stands for REDUCER_REPLICAS pods below a headless Service. The
// default port is 2222. All ranks must have the same addresses in the same order.
bool find_addresses(const Environment& environment, std::vector<std::string>* addresses,
                    std::string* found_in, std::string* why);

}  // namespace ors::nccl
