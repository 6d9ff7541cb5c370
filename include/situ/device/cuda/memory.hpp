/// Memory of a GPU: stream-ordered, from the driver's pool, which keeps what is freed, small blocks from what was freed just before; and copies from,
/// to and between GPUs.
#pragma once

#include <cstddef>

#include <situ/core/list.hpp>
#include <situ/device/cuda/errors.hpp>
#include <situ/device/cuda/kept_blocks.hpp>
#include <situ/device/cuda/launch.hpp>
#include <situ/device/cuda/stream.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/observe.hpp>
#include <situ/device/order.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {

static_assert(max_devices == max_cuda_devices);

inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Whether a device is there and has been used.
inline bool is_ready(int device) noexcept {
  return device >= 0 && device < device_count() && __atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE);
}

/// Bytes that the pool holds, used or kept; 0 where the device has not been used.
inline int64_t reserved_bytes(int device) noexcept {
  if (!is_ready(device)) return 0;
  DeviceSwitch const there(device);
  cudaMemPool_t pool = nullptr;
  uint64_t bytes = 0;
  if (cudaDeviceGetDefaultMemPool(&pool, device) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return static_cast<int64_t>(bytes);
}

/// Free and all memory of a GPU; zeros where there is none of that number.
struct DeviceMemory {
  int64_t free = 0, total = 0;
};
inline DeviceMemory device_memory(int device) {
  if (device < 0 || device >= device_count()) return {};
  DeviceGuard const guard(device);
  std::size_t free = 0, total = 0;
  check(device, cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

inline void use_device(int device) { require_device(device); }

/// Waits for all work of the device, which is the current one. Where threads capture graphs this is done stream by stream: a wait for all of a device would
/// end what they capture.
__attribute__((noinline)) inline cudaError_t wait_for_all_streams(int device) {
  if (__atomic_load_n(&process_state().devices[device].captures, __ATOMIC_ACQUIRE) == 0) return cudaDeviceSynchronize();
  List<StreamHandle> streams;  // no capture begins on one of them while it is held
  {
    StreamLock const lock;
    StreamTable const& table = stream_table();
    for (uint32_t k = 2; k < table.count; ++k) {
      StreamState* const state = table.all[k];
      bool const is_there = !state->foreign || __atomic_load_n(&state->handles, __ATOMIC_ACQUIRE) > 0;
      bool const recorded = __atomic_load_n(&state->recorded, __ATOMIC_ACQUIRE);
      if (state->driver == process_state().stream_driver && state->ordinal == device && is_there && !recorded) streams.push_back(StreamHandle(state));
    }
  }
  cudaError_t code = cudaStreamSynchronize(cudaStreamLegacy);
  for (StreamHandle const& each : streams) {
    auto const native = static_cast<cudaStream_t>(each.state().native);
    if (code == cudaSuccess && !is_capturing(native)) code = cudaStreamSynchronize(native);
  }
  return code;
}

/// Gives what the pool keeps back to the driver, but for `kept` bytes in all. Waits for the device.
inline void empty_cache(int device, std::size_t kept = 0) {
  if (!is_ready(device)) return;
  DeviceGuard const guard(device);
  cudaMemPool_t pool = nullptr;
  check(device, give_back_kept(device), "cudaFreeAsync");
  check(device, wait_for_all_streams(device), "cudaDeviceSynchronize");
  check(device, cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(device, cudaMemPoolTrimTo(pool, kept), "cudaMemPoolTrimTo");
}

inline void set_release_threshold(int device, int64_t bytes) {
  DeviceGuard const guard(device);
  cudaMemPool_t pool = nullptr;
  auto threshold = static_cast<uint64_t>(bytes);
  bool const off = bytes != INT64_MAX;
  check(device, give_back_kept(device, &off), "cudaFreeAsync");
  check(device, cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(device, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
}

/// Throws CudaError while this thread records a graph on the device.
inline void refuse_while_recording(int device, char const* what) {
  if (SITU_LIKELY(!current_streams()[device].recorder)) return;
  fail<CudaError>("cuda:", device, ": ", what, " while work on this device is recorded: what is recorded has not run");
}

/// What Cuda<N> asks of the CUDA runtime, with the number of the device as an argument.
struct Runtime {
  /// Throws OutOfMemory, DeviceUnavailable, CudaError. The memory may be used by what is enqueued from now on.
  static void* allocate(int device, std::size_t bytes) {
    Place const place{device_kind::cuda, device};
    DeviceGuard const guard(device);
    cudaStream_t stream = current_stream(device);
    StreamRecorder* const recorder = current_streams()[device].recorder;
    if (SITU_UNLIKELY(recorder != nullptr)) {
      if (void* const kept = recorder->reuse(recorder, bytes)) return kept;
      stream = recorder->memory_stream ? static_cast<cudaStream_t>(recorder->memory_stream) : cudaStreamLegacy;
    }
    ObservedAllocation allocation(place, bytes);
    MemoryCounters& counters = memory_counters(place);
    if (SITU_UNLIKELY(!counters.within_limit(bytes))) fail_memory(device, bytes, nullptr);
    void* memory = take_kept(device, bytes, stream);
    cudaError_t code = memory ? cudaSuccess : cudaMallocAsync(&memory, bytes, stream);
    if (SITU_UNLIKELY(code == cudaErrorMemoryAllocation)) code = allocate_again(device, bytes, stream, memory);
    if (SITU_UNLIKELY(code == cudaErrorMemoryAllocation)) fail_memory(device, bytes, "cudaMallocAsync");
    check(device, code, "cudaMallocAsync of ", bytes, " bytes");
    counters.add(static_cast<int64_t>(bytes));
    if (SITU_UNLIKELY(counters.limit != 0)) keep_limit(device, bytes, stream, memory);
    if (SITU_UNLIKELY(recorder != nullptr)) recorder->keep(recorder, memory, bytes);
    return allocation.done(memory);
  }

  /// Freed when what is enqueued has run. Reports an error instead of throwing it; accepts that the driver is unloading at exit.
  static void deallocate(int device, void* memory, std::size_t bytes) noexcept {
    Place const place{device_kind::cuda, device};
    if (StreamRecorder* const recorder = current_streams()[device].recorder; SITU_UNLIKELY(recorder != nullptr) && recorder->take_back(recorder, memory)) return;
    ObservedAllocation::released(place, bytes);
    memory_counters(place).remove(static_cast<int64_t>(bytes));
    int previous = device;
    cudaError_t code = cudaGetDevice(&previous);
    if (code == cudaSuccess && previous != device) code = cudaSetDevice(device);
    if (code == cudaSuccess) code = free_or_keep(device, memory, bytes, current_stream(device));
    if (previous != device) return_to(previous);
    report(device, "cudaFreeAsync", code);
  }

  /// Within the device; enqueued.
  static void copy(int device, void* to, void const* from, std::size_t bytes) {
    DeviceGuard const guard(device);
    Place const here{device_kind::cuda, device};
    ObservedWork work(device, current_stream(device), here, here, bytes);
    check(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream(device)), "cudaMemcpyAsync of ", bytes, " bytes");
    work.enqueued();
  }

  /// From or to the host; after what is enqueued, and done when it returns.
  static void copy_from_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyHostToDevice);
  }
  static void copy_to_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyDeviceToHost);
  }
  /// The same for rows, which arrive side by side.
  static void copy_rows_to_host(int device, void* to, void const* from, PitchedCopy const& rows) {
    copy_and_wait(device, to, from, rows.width * rows.count, cudaMemcpyDeviceToHost, rows);
  }

  /// From another GPU; enqueued in the receiver's stream, which has been ordered behind what wrote the source.
  static void copy_from_peer(int device, void* to, int peer, void const* from, std::size_t bytes) {
    DeviceGuard const guard(device);
    connect(device, peer);
    cudaStream_t const stream = current_stream(device);
    ObservedWork work(device, stream, {device_kind::cuda, device}, {device_kind::cuda, peer}, bytes);
    check(device, cudaMemcpyPeerAsync(to, device, from, peer, bytes, stream), "cudaMemcpyPeerAsync of ", bytes, " bytes from cuda:", peer);
    work.enqueued();
  }
  static void copy_rows_from_peer(int device, void* to, int peer, void const* from, PitchedCopy const& rows) {
    DeviceGuard const guard(device);
    connect(device, peer);
    cudaStream_t const stream = current_stream(device);
    cudaMemcpy3DPeerParms copy{};
    copy.srcDevice = peer;
    copy.srcPtr = {const_cast<void*>(from), rows.pitch, rows.width, rows.count};
    copy.dstDevice = device;
    copy.dstPtr = {to, rows.width, rows.width, rows.count};
    copy.extent = {rows.width, rows.count, 1};
    ObservedWork work(device, stream, {device_kind::cuda, device}, {device_kind::cuda, peer}, rows.width * rows.count);
    check(device, cudaMemcpy3DPeerAsync(&copy, stream), "cudaMemcpy3DPeerAsync of ", rows.count, " rows of ", rows.width, " bytes from cuda:", peer);
    work.enqueued();
  }

  static void synchronize(int device) {
    refuse_while_recording(device, "synchronize was called");
    DeviceGuard const guard(device);
    ObservedWait const wait({device_kind::cuda, device});
    check(device, wait_for_all_streams(device), "cudaDeviceSynchronize");
  }

 private:
  static void copy_and_wait(int device, void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind, PitchedCopy const& rows = {}) {
    refuse_while_recording(device, "a copy that the host waits for was asked for");
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    Place const here{device_kind::cuda, device};
    ObservedTransfer const transfer(kind == cudaMemcpyHostToDevice ? here : place_of<Cpu>, kind == cudaMemcpyHostToDevice ? place_of<Cpu> : here, bytes);
    if (rows.count == 0) {
      check(device, cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync of ", bytes, " bytes");
    } else {
      cudaError_t const code = cudaMemcpy2DAsync(to, rows.width, from, rows.pitch, rows.width, rows.count, kind, stream);
      check(device, code, "cudaMemcpy2DAsync of ", rows.count, " rows of ", rows.width, " bytes");
    }
    check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  /// Opens the peer's pool to the device where the hardware can; copies are staged by the driver where it cannot.
  static void connect(int device, int peer) {
    require_device(peer);
    uint64_t& peers = process_state().devices[peer].peers;
    uint64_t const bit = uint64_t{1} << device;
    if (device == peer) return;
    uint64_t const sent = (uint64_t{1} << peer) | __atomic_load_n(&process_state().devices[peer].senders, __ATOMIC_ACQUIRE);
    uint64_t& senders = process_state().devices[device].senders;
    if (sent & ~__atomic_load_n(&senders, __ATOMIC_RELAXED)) __atomic_fetch_or(&senders, sent, __ATOMIC_RELEASE);
    if (__atomic_load_n(&peers, __ATOMIC_ACQUIRE) & bit) return;
    int can = 0;
    cudaMemPool_t pool = nullptr;
    if (cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can && cudaDeviceGetDefaultMemPool(&pool, peer) == cudaSuccess) {
      cudaMemAccessDesc access{};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = device;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      (void)cudaMemPoolSetAccess(pool, &access, 1);
    }
    (void)cudaGetLastError();
    __atomic_fetch_or(&peers, bit, __ATOMIC_RELEASE);
  }

  /// When all that is freed in any stream has come back, and what the pool keeps has been given back.
  __attribute__((noinline, cold)) static cudaError_t allocate_again(int device, std::size_t bytes, cudaStream_t stream, void*& memory) {
    (void)cudaGetLastError();
    if (is_capturing(stream)) return cudaErrorMemoryAllocation;
    if (current_streams()[device].recorder) {  // which nothing waits for: what is kept goes back to the pool in the order of its stream
      (void)give_back_kept(device);
      return cudaMallocAsync(&memory, bytes, stream);
    }
    __atomic_fetch_add(&memory_counters({device_kind::cuda, device}).retries, 1, __ATOMIC_RELAXED);
    empty_cache(device);
    return cudaMallocAsync(&memory, bytes, stream);
  }

  /// The pool may hold more than is in use: under a limit it gives that back.
  __attribute__((noinline, cold)) static void keep_limit(int device, std::size_t bytes, cudaStream_t stream, void* memory) {
    int64_t const limit = __atomic_load_n(&memory_counters({device_kind::cuda, device}).limit, __ATOMIC_RELAXED);
    if (limit == 0 || reserved_bytes(device) <= limit || is_capturing(stream) || current_streams()[device].recorder) return;
    empty_cache(device, static_cast<std::size_t>(limit));
    if (reserved_bytes(device) <= limit) return;
    deallocate(device, memory, bytes);
    fail_memory(device, bytes, nullptr);
  }

  [[noreturn]] __attribute__((noinline, cold)) static void fail_memory(int device, std::size_t bytes, char const* call) {
    (void)cudaGetLastError();
    Place const place{device_kind::cuda, device};
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    (void)cudaGetLastError();
    detail::fail_memory({place, bytes, static_cast<int64_t>(free), static_cast<int64_t>(total), reserved_bytes(device), -1, call,
                         "Free tensors, use float16 or bfloat16, work on smaller parts, or see what else runs on this GPU (nvidia-smi)"},
                        __atomic_load_n(&memory_counters(place).allocated, __ATOMIC_RELAXED));
  }
};

template <int>
using runtime_of = Runtime;

#else

inline int64_t reserved_bytes(int) noexcept { return 0; }
struct DeviceMemory {
  int64_t free = 0, total = 0;
};
inline DeviceMemory device_memory(int) { return {}; }
inline void empty_cache(int) {}
[[noreturn]] inline void use_device(int device) { fail<DeviceUnavailable>("cuda:", device, ": there is no such device: this program was built without CUDA"); }
inline void set_release_threshold(int device, int64_t) { use_device(device); }

/// In a build without CUDA, using any of this is one error.
template <int N>
struct MissingRuntime {
  static_assert(N < 0, "situ: Cuda_needs_SITU_WITH_CUDA: this file is compiled without CUDA; link the CMake target situ::cuda (or define "
                       "SITU_WITH_CUDA and link cudart), or compile with nvcc");
  static void* allocate(int, std::size_t);
  static void deallocate(int, void*, std::size_t) noexcept;
  static void copy(int, void*, void const*, std::size_t);
  static void copy_from_host(int, void*, void const*, std::size_t);
  static void copy_to_host(int, void*, void const*, std::size_t);
  static void copy_rows_to_host(int, void*, void const*, PitchedCopy const&);
  static void copy_from_peer(int, void*, int, void const*, std::size_t);
  static void copy_rows_from_peer(int, void*, int, void const*, PitchedCopy const&);
  static void synchronize(int);
};

template <int N>
using runtime_of = MissingRuntime<N>;

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
