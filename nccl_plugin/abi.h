// The ABI between NCCL and a net plugin: numbers, structs and tables of versions 6 to 12, written
// from the documented interface (NCCL 2.18 to 2.32). No header of NCCL or CUDA is needed.
//
// Law: layouts never change; the static_asserts below check them. A difference between versions is
// an argument of a template or a separate struct; a derived struct adds members at the end. This
// file has no behaviour.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ors::nccl {

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

enum DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
  kDataTypes = 12,
};

enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kRedOps = 4 };

enum LogLevel : int { kLogNone = 0, kLogVersion, kLogWarn, kLogInfo, kLogAbort, kLogTrace };

// Subsystems of the log, as bits.
constexpr unsigned long kLogInit = 1, kLogNet = 16;

using Logger = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
// The callback of NCCL's profiler. This plugin does not call it.
using ProfilerCallback = Result (*)(void** handle, int type, void* phandle, int64_t id, void* data);

enum Pointer : int { kHost = 1, kCuda = 2, kDmaBuf = 4 };

constexpr size_t kHandleBytes = 128;
constexpr size_t kMaxNetBytes = size_t{1} << 30;  // limit of one transfer, as in NCCL's own nets

// Offload to the GPU. This plugin has none, and returns null handles.
enum DeviceType : int { kDeviceHost = 0 };
struct DeviceHandle;

template <int kMost>
struct VDevice {
  int ndevs;
  int devs[kMost];
};
using VDevice4 = VDevice<4>;
using VDevice8 = VDevice<8>;

struct CommConfig {
  int traffic_class;
};

struct CommAttr {
  int32_t max_concurrent_peers, min_concurrent_peers, max_flows_per_peer, min_flows_per_peer;
};
struct NetAttr {
  CommAttr send, receive;
  uint32_t op, algorithm, protocol;
};

template <class Size>
struct Sge {
  void* mhandle;
  void* address;
  Size size;
};

// --- properties ---

struct PropertiesV6 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;  // Mbit/s
  int port;
  float latency;
  int max_comms;
  int max_receives;
};

struct PropertiesV7 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  DeviceType device_type;
  int device_version;
};

struct PropertiesV8 {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  DeviceType device_type;
  int device_version;
};

template <class VirtualDevice>
struct PropertiesOf {
  char* name;
  char* pci_path;
  uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  DeviceType device_type;
  int device_version;
  VirtualDevice virtual_device;
  size_t max_p2p_bytes;
  size_t max_coll_bytes;
};
using PropertiesV9 = PropertiesOf<VDevice4>;  // and 10

struct PropertiesV11 : PropertiesV9 {
  int max_multi_request;
};

struct PropertiesV12 : PropertiesOf<VDevice8> {
  int max_multi_request;
  int16_t rail_id;
  int16_t plane_id;
};

// --- functions of both tables ---

using Init = Result (*)(Logger log);
using Listen = Result (*)(int device, void* handle, void** listen_comm);
using ListenV11 = Result (*)(void* context, int device, void* handle, void** listen_comm);
template <class Size>
using RegMrOf = Result (*)(void* comm, void* data, Size size, int type, void** mhandle);
using RegMrDmaBuf = Result (*)(void* comm, void* data, size_t size, int type, uint64_t offset,
                               int fd, void** mhandle);

// --- ncclNet ---

struct NetV6 {
  const char* name;
  Init init;
  Result (*devices)(int* count);
  Result (*get_properties)(int device, PropertiesV6* out);
  Listen listen;
  Result (*connect)(int device, void* handle, void** send_comm);
  Result (*accept)(void* listen_comm, void** receive_comm);
  RegMrOf<int> reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* comm, void* data, int size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* comm, int n, void** data, int* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
};

using InitV10 = Result (*)(Logger log, ProfilerCallback profile);
using InitV11 = Result (*)(void** context, uint64_t comm_id, CommConfig* config, Logger log,
                           ProfilerCallback profile);
using ConnectV7 = Result (*)(int device, void* handle, void** send_comm, DeviceHandle** offload);
using ConnectV10 = Result (*)(int device, CommConfig* config, void* handle, void** send_comm,
                              DeviceHandle** offload);
using ConnectV11 = Result (*)(void* context, int device, void* handle, void** send_comm,
                              DeviceHandle** offload);
template <class Size>
using SendOf = Result (*)(void* comm, void* data, Size size, int tag, void* mhandle,
                          void** request);
using SendV10 = Result (*)(void* comm, void* data, size_t size, int tag, void* mhandle,
                           void* phandle, void** request);
template <class Size>
using ReceiveOf = Result (*)(void* comm, int n, void** data, Size* sizes, int* tags,
                             void** mhandles, void** request);
using ReceiveV10 = Result (*)(void* comm, int n, void** data, size_t* sizes, int* tags,
                              void** mhandles, void** phandles, void** request);

// Versions 7 to 12 begin with these members in this order, with the types of the version.
template <class Init, class Properties, class Listen, class Connect, class RegSize, class Send,
          class Receive>
struct NetOf {
  const char* name;
  Init init;
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* out);
  Listen listen;
  Connect connect;
  Result (*accept)(void* listen_comm, void** receive_comm, DeviceHandle** offload);
  RegMrOf<RegSize> reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  Result (*dereg_mr)(void* comm, void* mhandle);
  Send isend;
  Receive irecv;
  Result (*iflush)(void* comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* comm);
  Result (*close_recv)(void* comm);
  Result (*close_listen)(void* comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* comm, int n, void* request);
};

using NetV7 = NetOf<Init, PropertiesV7, Listen, ConnectV7, int, SendOf<int>, ReceiveOf<int>>;
using NetV8 = NetOf<Init, PropertiesV8, Listen, ConnectV7, size_t, SendOf<int>, ReceiveOf<int>>;

struct NetV9
    : NetOf<Init, PropertiesV9, Listen, ConnectV7, size_t, SendOf<size_t>, ReceiveOf<size_t>> {
  Result (*make_virtual_device)(int* device, VDevice4* of);
};

struct NetV10 : NetOf<InitV10, PropertiesV9, Listen, ConnectV10, size_t, SendV10, ReceiveV10> {
  Result (*make_virtual_device)(int* device, VDevice4* of);
};

template <class Properties, class VirtualDevice>
struct NetV11  // and 12
    : NetOf<InitV11, Properties, ListenV11, ConnectV11, size_t, SendV10, ReceiveV10> {
  Result (*make_virtual_device)(int* device, VirtualDevice* of);
  Result (*finalize)(void* context);
  Result (*set_net_attr)(void* context, NetAttr* attr);
};

// --- ncclCollNet ---

template <class Properties>
struct CollNetV6 {  // and 7
  const char* name;
  Init init;
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* out);
  Listen listen;
  Result (*connect)(void* handles[], int ranks, int rank, void* listen_comm, void** comm);
  Result (*reduce_support)(DataType type, RedOp op, int* supported);
  RegMrOf<int> reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*iallreduce)(void* comm, void* send, void* receive, int count, DataType type, RedOp op,
                       void* send_mhandle, void* receive_mhandle, void** request);
  Result (*iflush)(void* comm, void* data, int size, void* mhandle, void** request);
  Result (*test)(void* request, int* done, int* size);
  Result (*close_coll)(void* comm);
  Result (*close_listen)(void* comm);
};

using CollInitV11 = Result (*)(void** context, uint64_t comm_id, Logger log);
template <class Count>
using AllReduceOf = Result (*)(void* comm, void* send, void* receive, Count count, DataType type,
                               RedOp op, void* send_mhandle, void* receive_mhandle, void** request);
template <class Size>
using AllGatherOf = Result (*)(void* comm, void* send, int parts, Sge<Size>* receive,
                               size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                               void* send_mhandle, void** request);
template <class Size>
using ReduceScatterOf = Result (*)(void* comm, int parts, Sge<Size>* send, void* receive,
                                   size_t bytes_per_rank, size_t window_offset, size_t window_bytes,
                                   DataType type, RedOp op, void* receive_mhandle, void** request);

// Versions 8 to 12 begin with these members in this order, with the types of the version.
template <class Init, class Properties, class Listen, class Count, class PartSize>
struct CollNetOf {
  const char* name;
  Init init;
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* out);
  Listen listen;
  Result (*connect)(void* handles[], int ranks, int rank, void* listen_comm, void** comm);
  Result (*reduce_support)(DataType type, RedOp op, int* supported);
  RegMrOf<size_t> reg_mr;
  RegMrDmaBuf reg_mr_dma_buf;
  Result (*dereg_mr)(void* comm, void* mhandle);
  AllReduceOf<Count> iallreduce;
  AllGatherOf<PartSize> iallgather;
  ReduceScatterOf<PartSize> ireducescatter;
  Result (*iflush)(void* comm, void* data, int size, void* mhandle, void** request);
  Result (*test)(void* request, int* done, int* size);
  Result (*close_coll)(void* comm);
  Result (*close_listen)(void* comm);
};

using CollNetV8 = CollNetOf<Init, PropertiesV8, Listen, int, uint32_t>;

struct CollNetV9 : CollNetOf<Init, PropertiesV9, Listen, size_t, size_t> {  // and 10
  Result (*make_virtual_device)(int* device, VDevice4* of);
};

template <class Properties, class VirtualDevice>
struct CollNetV11 : CollNetOf<CollInitV11, Properties, ListenV11, size_t, size_t> {  // and 12
  Result (*make_virtual_device)(int* device, VirtualDevice* of);
  Result (*finalize)(void* context);
};

// Sizes and offsets on 64-bit machines, where a pointer has 8 bytes; in the order above.
static_assert(sizeof(PropertiesV6) == 48 && sizeof(PropertiesV7) == 56);
static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, reg_is_global) == 28);
static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, virtual_device) == 64);
static_assert(offsetof(PropertiesV9, max_p2p_bytes) == 88);
static_assert(sizeof(PropertiesV11) == 112 && sizeof(PropertiesV12) == 128);
static_assert(sizeof(PropertiesOf<VDevice8>) == 120);
static_assert(offsetof(PropertiesOf<VDevice8>, max_p2p_bytes) == 104);
static_assert(sizeof(Sge<uint32_t>) == 24 && sizeof(Sge<size_t>) == 24);
static_assert(sizeof(NetV6) == 17 * 8 && sizeof(NetV8) == 19 * 8);
static_assert(sizeof(NetV9) == 20 * 8 && sizeof(NetV10) == 20 * 8);
static_assert(sizeof(NetV11<PropertiesV12, VDevice8>) == 22 * 8);
static_assert(sizeof(CollNetV6<PropertiesV7>) == 15 * 8 && sizeof(CollNetV8) == 17 * 8);
static_assert(sizeof(CollNetV9) == 18 * 8);
static_assert(sizeof(CollNetV11<PropertiesV12, VDevice8>) == 19 * 8);
static_assert(sizeof(NetAttr) == 44 && sizeof(CommConfig) == 4);

}  // namespace ors::nccl
