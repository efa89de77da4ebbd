// The tables that NCCL looks for, versions 6 to 12, on top of net.h and collnet.h.
//
// Law: each version has its own table. A function that fits several versions is written once, as a
// template if only types differ. Optional entries that this plugin lacks are null.
#include <cstdint>
#include <string>

#include "abi.h"
#include "collnet.h"
#include "device.h"
#include "guarded.h"
#include "log.h"
#include "net.h"
#include "plugin.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace ors::nccl {
namespace {

constexpr char kName[] = "REDUCER";
constexpr int kMostComms = 65'536;

// --- both tables ---

template <class Properties>
void fill(Properties* out, const Device& device) {
  *out = Properties{};
  out->name = const_cast<char*>(device.name.c_str());
  out->pci_path = device.pci_path.empty() ? nullptr : const_cast<char*>(device.pci_path.c_str());
  out->guid = device.guid;
  out->ptr_support = kHost;
  out->speed = device.speed;
  out->max_comms = kMostComms;
  out->max_receives = 1;
}

template <class Properties>
void fill_sizes(Properties* out, int number) {
  out->virtual_device.ndevs = 1;
  out->virtual_device.devs[0] = number;
  out->max_p2p_bytes = kMaxNetBytes;
  out->max_coll_bytes = kMaxNetBytes;
}

void fill_rest(PropertiesV6*, int) {}
void fill_rest(PropertiesV7*, int) {}
void fill_rest(PropertiesV8*, int) {}
void fill_rest(PropertiesV9* out, int number) { fill_sizes(out, number); }
void fill_rest(PropertiesV11* out, int number) {
  fill_sizes(out, number);
  out->max_multi_request = 1;
}
void fill_rest(PropertiesV12* out, int number) {
  fill_sizes(out, number);
  out->max_multi_request = 1;
  out->rail_id = out->plane_id = -1;  // unknown
}

template <class Properties>
Result get_properties(int number, Properties* out) {
  if (number < 0 || static_cast<size_t>(number) >= devices().size()) return kInvalidArgument;
  fill(out, devices()[static_cast<size_t>(number)]);
  fill_rest(out, number);
  return kSuccess;
}

Result count_devices(int* count) {
  *count = static_cast<int>(devices().size());
  return kSuccess;
}

// Does nothing: the plugin uses only host memory, which needs no registration. reg_is_global is
// therefore 0, as for NCCL's own sockets. With 1, ncclCommRegister of NCCL 2.20 to 2.23 connects
// each NIC to itself, and asks for a registration of GPU memory.
template <class Size>
Result reg_mr(void*, void*, Size, int type, void** mhandle) {
  *mhandle = nullptr;
  return type == kHost ? kSuccess : kInvalidArgument;
}

Result reg_mr_dma_buf(void*, void*, size_t, int, uint64_t, int, void** mhandle) {
  *mhandle = nullptr;
  return kInvalidArgument;
}

Result dereg_mr(void*, void*) { return kSuccess; }

Result finalize(void*) { return kSuccess; }

Result init_with_profiler(Logger log, ProfilerCallback) { return init(log); }

// --- ncclNet ---

Result net_init(void** context, uint64_t, CommConfig*, Logger log, ProfilerCallback) {
  *context = nullptr;
  return init(log);
}

Result listen_in(void*, int device, void* handle, void** comm) {
  return net_listen(device, handle, comm);
}

Result connect(int device, void* handle, void** comm, DeviceHandle**) {
  return net_connect(device, handle, comm);
}

Result connect_with_config(int device, CommConfig*, void* handle, void** comm, DeviceHandle**) {
  return net_connect(device, handle, comm);
}

Result connect_in(void*, int device, void* handle, void** comm, DeviceHandle**) {
  return net_connect(device, handle, comm);
}

Result accept(void* listen_comm, void** comm, DeviceHandle**) {
  return net_accept(listen_comm, comm);
}

template <class Size>
Result isend(void* comm, void* data, Size size, int, void*, void** request) {
  return net_isend(comm, data, static_cast<size_t>(size), request);
}

Result isend_profiled(void* comm, void* data, size_t size, int, void*, void*, void** request) {
  return net_isend(comm, data, size, request);
}

// max_receives in the properties is 1, so NCCL posts one receive per call.
template <class Size>
Result irecv(void* comm, int n, void** data, Size* sizes, int*, void**, void** request) {
  if (n != 1) return kInvalidArgument;
  return net_irecv(comm, data[0], static_cast<size_t>(sizes[0]), request);
}

Result irecv_profiled(void* comm, int n, void** data, size_t* sizes, int*, void**, void**,
                      void** request) {
  if (n != 1) return kInvalidArgument;
  return net_irecv(comm, data[0], sizes[0], request);
}

// Nothing to flush: received data is already in host memory.
Result net_iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return kSuccess;
}

Result test(void* request, int* done, int* sizes) {
  size_t size = 0;
  const Result result = net_test(request, done, &size);
  if (sizes != nullptr && *done) *sizes = static_cast<int>(size);
  return result;
}

// The members that versions 7 to 12 begin with.
template <class Properties, class Size, class Init, class Listen, class Connect, class Send,
          class Receive>
constexpr NetOf<Init, Properties, Listen, Connect, Size, Send, Receive> net_of(
    Init init, Listen listen, Connect connect, Send isend, Receive irecv) {
  return {kName,
          init,
          count_devices,
          get_properties<Properties>,
          listen,
          connect,
          accept,
          reg_mr<Size>,
          reg_mr_dma_buf,
          dereg_mr,
          isend,
          irecv,
          net_iflush,
          test,
          net_close,
          net_close,
          net_close_listen,
          nullptr,
          nullptr};
}

template <class Properties, class VirtualDevice>
constexpr NetV11<Properties, VirtualDevice> net_v11() {
  return {
      net_of<Properties, size_t>(net_init, listen_in, connect_in, isend_profiled, irecv_profiled),
      nullptr, finalize, nullptr};
}

// --- ncclCollNet ---

Result coll_init(void** context, uint64_t, Logger log) {
  *context = nullptr;
  return init(log);
}

Result coll_listen_on(int, void* handle, void** comm) {
  return guarded([&] { return coll_listen(settings(), handle, comm); });
}

Result coll_listen_in(void*, int, void* handle, void** comm) {
  return guarded([&] { return coll_listen(settings(), handle, comm); });
}

Result coll_connect_all(void* handles[], int ranks, int rank, void* listen_comm, void** comm) {
  return guarded([&] { return coll_connect(settings(), handles, ranks, rank, listen_comm, comm); });
}

Result reduce_support(DataType type, RedOp op, int* supported) {
  *supported = coll_supports(type, op) ? 1 : 0;
  return kSuccess;
}

template <class Count>
Result iallreduce(void* comm, void* send, void* receive, Count count, DataType type, RedOp op,
                  void*, void*, void** request) {
  return coll_all_reduce(comm, send, receive, static_cast<size_t>(count), type, op, request);
}

template <class Size>
bool is_whole(int parts, const Sge<Size>* part, size_t size) {
  if (parts == 1 && part->size >= size) return true;
  log_warning("a window of " + std::to_string(size) + " bytes in " + std::to_string(parts) +
              " parts: expected one part that is the whole window");
  return false;
}

template <class Size>
Result iallgather(void* comm, void* send, int parts, Sge<Size>* receive, size_t bytes_per_rank,
                  size_t offset, size_t size, void*, void** request) {
  *request = nullptr;
  if (!is_whole(parts, receive, size)) return kInvalidArgument;
  return coll_all_gather(comm, send, receive[0].address, bytes_per_rank, offset, size, request);
}

template <class Size>
Result ireducescatter(void* comm, int parts, Sge<Size>* send, void* receive, size_t bytes_per_rank,
                      size_t offset, size_t size, DataType type, RedOp op, void*, void** request) {
  *request = nullptr;
  if (!is_whole(parts, send, size)) return kInvalidArgument;
  return coll_reduce_scatter(comm, send[0].address, receive, bytes_per_rank, offset, size, type, op,
                             request);
}

Result coll_iflush(void*, void*, int, void*, void** request) {
  *request = nullptr;
  return kSuccess;
}

template <class Properties>
constexpr CollNetV6<Properties> coll_net_v6() {
  return {kName,
          init,
          count_devices,
          get_properties<Properties>,
          coll_listen_on,
          coll_connect_all,
          reduce_support,
          reg_mr<int>,
          reg_mr_dma_buf,
          dereg_mr,
          iallreduce<int>,
          coll_iflush,
          coll_test,
          coll_close,
          coll_close_listen};
}

// The members that versions 8 to 12 begin with.
template <class Properties, class Count, class PartSize, class Init, class Listen>
constexpr CollNetOf<Init, Properties, Listen, Count, PartSize> coll_net_of(Init init,
                                                                           Listen listen) {
  return {kName,
          init,
          count_devices,
          get_properties<Properties>,
          listen,
          coll_connect_all,
          reduce_support,
          reg_mr<size_t>,
          reg_mr_dma_buf,
          dereg_mr,
          iallreduce<Count>,
          iallgather<PartSize>,
          ireducescatter<PartSize>,
          coll_iflush,
          coll_test,
          coll_close,
          coll_close_listen};
}

constexpr CollNetV9 coll_net_v9() {
  return {coll_net_of<PropertiesV9, size_t, size_t>(init, coll_listen_on), nullptr};
}

template <class Properties, class VirtualDevice>
constexpr CollNetV11<Properties, VirtualDevice> coll_net_v11() {
  return {coll_net_of<Properties, size_t, size_t>(coll_init, coll_listen_in), nullptr, finalize};
}

}  // namespace

// NCCL finds the tables by name, and does not write to them.
EXPORTED const NetV6 ncclNetPlugin_v6 = {
    kName,           init,        count_devices, get_properties<PropertiesV6>,
    net_listen,      net_connect, net_accept,    reg_mr<int>,
    reg_mr_dma_buf,  dereg_mr,    isend<int>,    irecv<int>,
    net_iflush,      test,        net_close,     net_close,
    net_close_listen};
EXPORTED const NetV7 ncclNetPlugin_v7 =
    net_of<PropertiesV7, int>(init, net_listen, connect, isend<int>, irecv<int>);
EXPORTED const NetV8 ncclNetPlugin_v8 =
    net_of<PropertiesV8, size_t>(init, net_listen, connect, isend<int>, irecv<int>);
EXPORTED const NetV9 ncclNetPlugin_v9 = {
    net_of<PropertiesV9, size_t>(init, net_listen, connect, isend<size_t>, irecv<size_t>), nullptr};
EXPORTED const NetV10 ncclNetPlugin_v10 = {
    net_of<PropertiesV9, size_t>(init_with_profiler, net_listen, connect_with_config,
                                 isend_profiled, irecv_profiled),
    nullptr};
EXPORTED const auto ncclNetPlugin_v11 = net_v11<PropertiesV11, VDevice4>();
EXPORTED const auto ncclNetPlugin_v12 = net_v11<PropertiesV12, VDevice8>();

EXPORTED const auto ncclCollNetPlugin_v6 = coll_net_v6<PropertiesV6>();
EXPORTED const auto ncclCollNetPlugin_v7 = coll_net_v6<PropertiesV7>();
EXPORTED const CollNetV8 ncclCollNetPlugin_v8 =
    coll_net_of<PropertiesV8, int, uint32_t>(init, coll_listen_on);
EXPORTED const auto ncclCollNetPlugin_v9 = coll_net_v9();
EXPORTED const auto ncclCollNetPlugin_v10 = coll_net_v9();
EXPORTED const auto ncclCollNetPlugin_v11 = coll_net_v11<PropertiesV11, VDevice4>();
EXPORTED const auto ncclCollNetPlugin_v12 = coll_net_v11<PropertiesV12, VDevice8>();

}  // namespace ors::nccl
