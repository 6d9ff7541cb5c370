/// Memory of a GPU: stream-ordered, from the driver's pool, which keeps what is freed; and copies from, to and between GPUs.
#pragma once

#include <cstddef>
#include <cstdio>

#include <situ/device/cuda/stream.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Bytes that the pool holds, used or kept; 0 where the device has not been used.
inline int64_t reserved_bytes(int device) noexcept {
  if (device < 0 || device >= device_count() || !__atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE)) return 0;
  cudaMemPool_t pool = nullptr;
  uint64_t bytes = 0;
  if (cudaDeviceGetDefaultMemPool(&pool, device) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return static_cast<int64_t>(bytes);
}

/// What Cuda<N> asks of the CUDA runtime, with the number of the device as an argument.
struct Runtime {
  /// Throws OutOfMemory, DeviceUnavailable, CudaError. The memory may be used by what is enqueued from now on.
  static void* allocate(int device, std::size_t bytes) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    void* memory = nullptr;
    cudaError_t code = cudaMallocAsync(&memory, bytes, stream);
    if (code == cudaErrorMemoryAllocation) {  // what is freed in other streams comes back when they have run
      (void)cudaGetLastError();
      code = cudaDeviceSynchronize();
      if (code == cudaSuccess) code = cudaMallocAsync(&memory, bytes, stream);
    }
    if (code == cudaErrorMemoryAllocation) fail_memory(device, bytes);
    check(device, code, "cudaMallocAsync of ", bytes, " bytes");
    count_allocation(device, static_cast<int64_t>(bytes));
    return memory;
  }

  /// Freed when what is enqueued has run. Reports an error instead of throwing it; accepts that the driver is unloading at exit.
  static void deallocate(int device, void* memory, std::size_t bytes) noexcept {
    int previous = device;
    cudaError_t code = cudaGetDevice(&previous);
    if (code == cudaSuccess && previous != device) code = cudaSetDevice(device);
    if (code == cudaSuccess) code = cudaFreeAsync(memory, current_stream(device));
    if (previous != device) (void)cudaSetDevice(previous);
    count_allocation(device, -static_cast<int64_t>(bytes));
    if (code == cudaSuccess || code == cudaErrorCudartUnloading || code == cudaErrorContextIsDestroyed) return;
    (void)cudaGetLastError();
    std::fprintf(stderr, "situ: cuda:%d: cudaFreeAsync failed: %s (%s)\n", device, cudaGetErrorName(code), cudaGetErrorString(code));
  }

  /// Within the device; enqueued.
  static void copy(int device, void* to, void const* from, std::size_t bytes) {
    DeviceGuard const guard(device);
    check(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream(device)), "cudaMemcpyAsync of ", bytes, " bytes");
  }

  /// From or to the host; after what is enqueued, and done when it returns.
  static void copy_from_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyHostToDevice);
  }
  static void copy_to_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyDeviceToHost);
  }

  /// From another GPU; enqueued in the receiver's stream. It waits for the sender's stream, which then waits for the copy.
  static void copy_from_peer(int device, void* to, int peer, void const* from, std::size_t bytes) {
    require_device(device);
    connect(device, peer);
    Event sent, received;
    {
      DeviceGuard const guard(peer);
      sent.record(peer);
    }
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    check(device, cudaStreamWaitEvent(stream, sent.event, 0), "cudaStreamWaitEvent");
    check(device, cudaMemcpyPeerAsync(to, device, from, peer, bytes, stream), "cudaMemcpyPeerAsync of ", bytes, " bytes from cuda:", peer);
    received.record(device);
    DeviceGuard const back(peer);
    check(peer, cudaStreamWaitEvent(current_stream(peer), received.event, 0), "cudaStreamWaitEvent");
  }

  static void synchronize(int device) {
    DeviceGuard const guard(device);
    check(device, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  /// Of the device that is current when it is recorded; the driver keeps it alive until it has happened.
  struct Event {
    cudaEvent_t event = nullptr;
    Event() = default;
    Event(Event const&) = delete;
    Event& operator=(Event const&) = delete;
    ~Event() {
      if (event) (void)cudaEventDestroy(event);
    }
    void record(int device) {
      check(device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
      check(device, cudaEventRecord(event, current_stream(device)), "cudaEventRecord");
    }
  };

  static void copy_and_wait(int device, void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    check(device, cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync of ", bytes, " bytes");
    check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  /// Opens the peer's pool to the device where the hardware can; copies are staged by the driver where it cannot.
  static void connect(int device, int peer) {
    require_device(peer);
    uint64_t& peers = process_state().devices[peer].peers;
    uint64_t const bit = uint64_t{1} << device;
    if (device == peer || (__atomic_load_n(&peers, __ATOMIC_ACQUIRE) & bit)) return;
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

  [[noreturn]] __attribute__((noinline, cold)) static void fail_memory(int device, std::size_t bytes) {
    (void)cudaGetLastError();
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    (void)cudaGetLastError();
    fail<OutOfMemory>("cuda:", device, ": cudaMallocAsync of ", bytes, " bytes failed: cudaErrorMemoryAllocation (out of memory): ", free, " of ", total,
                      " bytes are free, ", __atomic_load_n(&process_state().devices[device].allocated, __ATOMIC_RELAXED),
                      " are allocated by situ, ", reserved_bytes(device),
                      " are reserved by its pool: free tensors, call gpu::empty_cache(), use float16, or work on smaller parts");
  }
};

template <int>
using runtime_of = Runtime;

#else

inline int64_t reserved_bytes(int) noexcept { return 0; }

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
  static void copy_from_peer(int, void*, int, void const*, std::size_t);
  static void synchronize(int);
};

template <int N>
using runtime_of = MissingRuntime<N>;

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI
