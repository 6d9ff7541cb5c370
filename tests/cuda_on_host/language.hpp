/// CUDA's kernels for a compiler of the host: included in front of a .cu file, whose kernels then are functions that runtime.cpp runs thread by thread.
/// So a machine without a GPU sees what they compute, and where they write. Not seen: races, the order of memory, times, capture.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define SITU_TEST_ON_HOST
#undef __constant__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __noinline__
#undef __shared__
#define __constant__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __shared__ static  // one block runs at a time, or one cluster, whose blocks write the same to each of theirs

namespace on_host {

struct Index {
  unsigned x, y, z;
};
/// Of the thread that runs.
extern Index thread_index, block_index;
extern dim3 block_size, grid_size;
extern unsigned cluster_size;

/// Waits for all threads of the block that have not ended; gives for how many of them the condition holds.
int wait_for_block(bool condition);
/// The same for the warp.
void wait_for_warp();
/// The barrier of a cluster, in two steps.
void arrive_at_cluster();
void wait_for_cluster();
/// What the threads of a cluster show each other, and which is the first one of the block.
extern unsigned char shown[8 * 1024][16];
extern int first_thread;

inline int thread() { return first_thread + static_cast<int>(thread_index.x + block_size.x * (thread_index.y + block_size.y * thread_index.z)); }

template <class T>
void show(T const& value) {
  static_assert(sizeof(T) <= sizeof shown[0]);
  std::memcpy(shown[thread()], &value, sizeof value);
  wait_for_warp();
}
template <class T>
T from_lane(T const& value, int lane) {
  show(value);
  T result;
  std::memcpy(&result, shown[thread() / 32 * 32 + lane], sizeof result);
  wait_for_warp();
  return result;
}

}  // namespace on_host

#define threadIdx (::on_host::thread_index)
#define blockIdx (::on_host::block_index)
#define blockDim (::on_host::block_size)
#define gridDim (::on_host::grid_size)

inline void __syncthreads() { on_host::wait_for_block(false); }
inline int __syncthreads_count(int condition) { return on_host::wait_for_block(condition != 0); }
inline int __syncthreads_or(int condition) { return on_host::wait_for_block(condition != 0) != 0; }
inline void __syncwarp(unsigned = 0xffffffffu) { on_host::wait_for_warp(); }
inline unsigned __clusterSizeInBlocks() { return on_host::cluster_size; }
inline void __cluster_barrier_arrive() { on_host::arrive_at_cluster(); }
inline void __cluster_barrier_arrive_relaxed() { on_host::arrive_at_cluster(); }
inline void __cluster_barrier_wait() { on_host::wait_for_cluster(); }
inline void* __cluster_map_shared_rank(void* shared, unsigned) { return shared; }
inline void __threadfence() {}
inline void __threadfence_system() {}

inline int __any_sync(unsigned, int condition) {
  on_host::show(condition);
  int any = 0;
  for (int lane = 0; lane < 32; ++lane) any |= on_host::shown[on_host::thread() / 32 * 32 + lane][0];
  on_host::wait_for_warp();
  return any != 0;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
  int const first = (on_host::thread() & 31) / width * width;
  return on_host::from_lane(value, first + (lane & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return on_host::from_lane(value, (on_host::thread() & 31) ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned step, int width = 32) {
  int const lane = on_host::thread() & 31, from = lane - static_cast<int>(step);
  return on_host::from_lane(value, from < lane / width * width ? lane : from);
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  on_host::show(value);
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1u) && std::memcmp(on_host::shown[on_host::thread() / 32 * 32 + lane], &value, sizeof value) == 0) same |= 1u << lane;
  }
  on_host::wait_for_warp();
  return same;
}

template <class T>
T atomicAdd(T* to, std::type_identity_t<T> value) {
  T const before = *to;
  *to = before + value;
  return before;
}
template <class T>
T atomicSub(T* to, std::type_identity_t<T> value) {
  T const before = *to;
  *to = before - value;
  return before;
}
template <class T>
T atomicMax(T* to, std::type_identity_t<T> value) {
  T const before = *to;
  if (value > before) *to = value;
  return before;
}
template <class T>
T atomicCAS(T* to, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  T const before = *to;
  if (before == expected) *to = value;
  return before;
}

template <class T>
T __ldg(T const* from) {
  return *from;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32); }
inline float __uint_as_float(unsigned bits) {
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

#define __CUDACC__ 1
