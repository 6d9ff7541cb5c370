/// Scattering on a GPU, the same from run to run.
///
/// Replacing: a first kernel finds the last element for each place, a second one writes it. Adding integers: atomic additions, in
/// any order. Adding floats: the elements for each place are counted and listed; short lists are put in order and added by one
/// thread, longer ones by a block.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/block_scan.hpp>
#include <situ/ops/cuda/walk.hpp>
#include <situ/ops/index_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// Writes a fault down, unless there is an earlier one.
SITU_DEVICE inline void record(IndexBounds const& bounds, int64_t index, int64_t position) {
  IndexFault& fault = *bounds.fault;
  if (*const_cast<int32_t volatile*>(&fault.state) != IndexFault::none) return;
  if (atomicCAS(&fault.state, static_cast<int32_t>(IndexFault::none), static_cast<int32_t>(IndexFault::being_written)) != IndexFault::none) return;
  fault.axis = bounds.axis;
  fault.operation = bounds.operation;
  fault.index = index;
  fault.position = position;
  fault.extent = bounds.extent;
  __threadfence_system();
  *const_cast<int32_t volatile*>(&fault.state) = IndexFault::there;
}

SITU_DEVICE inline int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x); }
inline dim3 blocks_for(int64_t threads) { return dim3(static_cast<unsigned>((threads + block_threads - 1) / block_threads)); }

/// An index space for threads, which find their place by division: fast where 31 bits suffice.
template <int Operands>
struct IndexWalk {
  int rank;
  bool wide;
  int64_t count;
  WalkedAxis sizes[max_rank];
  static constexpr int operands = Operands;
  int64_t strides[Operands][max_rank];

  explicit IndexWalk(IndexSpace<Operands> const& space) : rank(space.rank), wide(false), count(space.count()) {
    wide = count >= index_limit;
    for (int k = 0; k < rank; ++k) {
      sizes[k] = WalkedAxis::of(space.sizes[k]);
      for (int o = 0; o < Operands; ++o) strides[o][k] = space.strides[o][k];
    }
  }
  /// Of the operands after the first, whose offset is p.
  SITU_DEVICE void offsets(int64_t p, int64_t* result) const {
#pragma unroll
    for (int o = 1; o < Operands; ++o) result[o] = 0;
    walk<1>(*this, 0, rank, p, result);
  }
};

template <class Join, class Ix>
struct ScatterArguments {
  using Program = ScatterProgram<Join, Ix>;
  Program program;
  IndexWalk<3> walk;
  uint32_t* places;  ///< replacing: 1 + the last element for each place; adding: where each place's list begins, and the end of all
  uint32_t* list;    ///< adding: the numbers of elements, place after place

  /// The place that element p goes to, and the offset of its source; false where its index is out of range.
  SITU_DEVICE bool find(int64_t p, int64_t& to, int64_t& from) const {
    int64_t offsets[3];
    walk.offsets(p, offsets);
    int64_t i = static_cast<int64_t>(program.index[p]);
    bool const good = program.bounds.resolve(i);
    to = offsets[Program::target] + i * program.axis_stride;
    from = offsets[Program::source];
    return good;
  }
};

template <class A>
__global__ void __launch_bounds__(block_threads) claim_kernel(const __grid_constant__ A arguments) {
  int64_t const p = global_thread();
  int64_t to, from;
  if (p >= arguments.walk.count) return;
  if (arguments.find(p, to, from)) atomicMax(arguments.places + to, static_cast<uint32_t>(p + 1));
  else record(arguments.program.bounds, static_cast<int64_t>(arguments.program.index[p]), p);
}
template <class A>
__global__ void __launch_bounds__(block_threads) replace_kernel(const __grid_constant__ A arguments) {
  int64_t const p = global_thread();
  int64_t to, from;
  if (p < arguments.walk.count && arguments.find(p, to, from) && arguments.places[to] == static_cast<uint32_t>(p + 1)) {
    arguments.program.to[to] = arguments.program.from[from];
  }
}

/// Integers wrap, so the order of additions does not matter.
template <class T>
SITU_DEVICE void add_integer(T* to, T value) {
  if constexpr (sizeof(T) == 8) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  } else if constexpr (sizeof(T) == 4) {
    atomicAdd(reinterpret_cast<unsigned*>(to), static_cast<unsigned>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    if (value) *to = true;
  } else {  // inside of its word
    auto const address = reinterpret_cast<std::uintptr_t>(to);
    auto* const word = reinterpret_cast<unsigned*>(address & ~std::uintptr_t{3});
    unsigned const shift = static_cast<unsigned>(address & 3) * 8, bits = sizeof(T) == 1 ? 0xffu : 0xffffu;
    unsigned before = *word, expected;
    do {
      expected = before;
      unsigned const sum = ((expected >> shift) + static_cast<unsigned>(value)) & bits;
      before = atomicCAS(word, expected, (expected & ~(bits << shift)) | sum << shift);
    } while (before != expected);
  }
}
template <class A>
__global__ void __launch_bounds__(block_threads) add_integers_kernel(const __grid_constant__ A arguments) {
  int64_t const p = global_thread();
  int64_t to, from;
  if (p >= arguments.walk.count) return;
  if (arguments.find(p, to, from)) add_integer(arguments.program.to + to, arguments.program.from[from]);
  else record(arguments.program.bounds, static_cast<int64_t>(arguments.program.index[p]), p);
}

// ---- floats: lists of the elements for each place -------------------------------------------------------------------

template <class A>
__global__ void __launch_bounds__(block_threads) count_places_kernel(const __grid_constant__ A arguments) {
  int64_t const p = global_thread();
  int64_t to, from;
  if (p >= arguments.walk.count) return;
  if (arguments.find(p, to, from)) atomicAdd(arguments.places + to, 1u);
  else record(arguments.program.bounds, static_cast<int64_t>(arguments.program.index[p]), p);
}

inline constexpr int scan_each = 16;  ///< numbers for each thread
inline constexpr int64_t scan_chunk = block_threads * scan_each;

struct RunningArguments {
  uint32_t* values;
  uint32_t* sums;  ///< one for each chunk
  int64_t count;
  bool apply;      ///< else only the sums of chunks are found
};

/// Sums of chunks; or, with the sums of the chunks before known, every value becomes the sum of all up to and with it.
template <class A>
__global__ void __launch_bounds__(block_threads) running_sum_kernel(const __grid_constant__ A arguments) {
  int64_t const first = global_thread() * scan_each;
  uint32_t mine = 0, total;
#pragma unroll 1
  for (int j = 0; j < scan_each; ++j) mine += first + j < arguments.count ? arguments.values[first + j] : 0;
  uint32_t sum = block_sum_before<block_threads>(mine, total);
  if (!arguments.apply) {
    if (threadIdx.x == 0) arguments.sums[blockIdx.x] = total;
    return;
  }
  sum += arguments.sums[blockIdx.x];
#pragma unroll 1
  for (int j = 0; j < scan_each && first + j < arguments.count; ++j) {
    sum += arguments.values[first + j];
    arguments.values[first + j] = sum;
  }
}

/// Fills the lists from behind, in any order: the ends of lists become their beginnings.
template <class A>
__global__ void __launch_bounds__(block_threads) list_kernel(const __grid_constant__ A arguments) {
  int64_t const p = global_thread();
  int64_t to, from;
  if (p < arguments.walk.count && arguments.find(p, to, from)) arguments.list[atomicSub(arguments.places + to, 1u) - 1] = static_cast<uint32_t>(p);
}

inline constexpr unsigned short_list = 32;    ///< for one thread
inline constexpr unsigned sorted_list = 2048; ///< put in order by a block; longer ones are looked for among all elements instead

/// A thread for each place: short lists in order.
template <class A>
__global__ void __launch_bounds__(block_threads) add_short_kernel(const __grid_constant__ A arguments) {
  int64_t const place = global_thread();
  if (place >= arguments.program.target_size) return;
  uint32_t const begin = arguments.places[place], end = arguments.places[place + 1];
  if (begin == end || end - begin > short_list) return;
  uint32_t* const list = arguments.list;
#pragma unroll 1
  for (uint32_t k = begin + 1; k < end; ++k) {  // insertion
    uint32_t const p = list[k];
    uint32_t j = k;
#pragma unroll 1
    for (; j > begin && list[j - 1] > p; --j) list[j] = list[j - 1];
    list[j] = p;
  }
  auto sum = arguments.program.to[place];
#pragma unroll 1
  for (uint32_t k = begin; k < end; ++k) {
    int64_t offsets[3];
    arguments.walk.offsets(list[k], offsets);
    sum += arguments.program.from[offsets[A::Program::source]];
  }
  arguments.program.to[place] = sum;
}

/// A block for the longer lists of its places: every thread adds some of the elements, in order, and the sums are joined as a tree.
template <class A>
__global__ void __launch_bounds__(block_threads) add_long_kernel(const __grid_constant__ A arguments) {
  using T = typename A::Program::value_type;
  __shared__ uint32_t order[sorted_list];
  __shared__ T parts[block_threads];
  __shared__ int found[block_threads];
  __shared__ int found_count;
  unsigned const me = threadIdx.x;
#pragma unroll 1
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * block_threads; base < arguments.program.target_size; base += static_cast<int64_t>(gridDim.x) * block_threads) {
    __syncthreads();
    if (me == 0) found_count = 0;
    __syncthreads();
    if (base + me < arguments.program.target_size && arguments.places[base + me + 1] - arguments.places[base + me] > short_list) {
      found[atomicAdd(&found_count, 1)] = static_cast<int>(me);
    }
    __syncthreads();
#pragma unroll 1
    for (int f = 0; f < found_count; ++f) {
      int64_t const place = base + found[f];
      uint32_t const begin = arguments.places[place], length = arguments.places[place + 1] - begin;
      T sum = 0;
      if (length <= sorted_list) {
        unsigned padded = 64;
        while (padded < length) padded *= 2;
        for (unsigned k = me; k < padded; k += block_threads) order[k] = k < length ? arguments.list[begin + k] : 0xffffffffu;
#pragma unroll 1
        for (unsigned size = 2; size <= padded; size *= 2) {  // a bitonic network
#pragma unroll 1
          for (unsigned step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (unsigned k = me; k < padded / 2; k += block_threads) {
              unsigned const a = 2 * k - (k & (step - 1)), b = a + step;
              uint32_t const x = order[a], y = order[b];
              if ((x > y) == ((a & size) == 0)) order[a] = y, order[b] = x;
            }
          }
        }
        __syncthreads();
#pragma unroll 1
        for (unsigned k = me; k < length; k += block_threads) {
          int64_t offsets[3];
          arguments.walk.offsets(order[k], offsets);
          sum += arguments.program.from[offsets[A::Program::source]];
        }
      } else {
#pragma unroll 1
        for (int64_t p = me; p < arguments.walk.count; p += block_threads) {
          int64_t to, from;
          if (arguments.find(p, to, from) && to == place) sum += arguments.program.from[from];
        }
      }
      parts[me] = sum;
#pragma unroll 1
      for (unsigned half = block_threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (me < half) parts[me] += parts[me + half];
      }
      if (me == 0) arguments.program.to[place] += parts[0];
      __syncthreads();
    }
  }
}

/// For what the host finds before a launch: in the order of what is enqueued, as far as messages go.
inline void record_on_host(IndexBounds const& bounds, int64_t index, int64_t position) { record_fault(bounds, index, position); }

inline void clear_memory(int device, void* memory, std::size_t bytes) {
  DeviceGuard const guard(device);
  check(device, cudaMemsetAsync(memory, 0, bytes, current_stream(device)), "cudaMemsetAsync of ", bytes, " bytes");
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

template <class D, class Join, class Ix>
void launch_scatter(cuda_kernels, ScatterProgram<Join, Ix> const& program) {
  using T = typename Join::value_type;
  using A = cuda::ScatterArguments<Join, Ix>;
  constexpr int device = device_traits<D>::ordinal, threads = cuda::block_threads;
  char const* const who = program.bounds.operation;
  A arguments{program, cuda::IndexWalk<3>(program.space), nullptr, nullptr};
  int64_t const count = arguments.walk.count, places = program.target_size;
  if (count >= (int64_t{1} << 32) - 1) {
    fail<ShapeError>(who, ": the index has ", count, " elements; on a GPU it may have less than 2^32 - 1: scatter it in parts");
  }
  dim3 const blocks = cuda::blocks_for(count);
  if constexpr (Join::adds && std::is_integral_v<T>) {
    cuda::launch(device, who, cuda::add_integers_kernel<A>, blocks, threads, arguments);
  } else if constexpr (!Join::adds) {
    auto const bytes = static_cast<std::size_t>(places) * sizeof(uint32_t);
    Temporary<D> const winners(bytes);
    arguments.places = static_cast<uint32_t*>(winners.get());
    if (places > 0) cuda::clear_memory(device, winners.get(), bytes);
    cuda::launch(device, who, cuda::claim_kernel<A>, blocks, threads, arguments);
    cuda::launch(device, who, cuda::replace_kernel<A>, blocks, threads, arguments);
  } else {
    // places[k] counts the elements for place k, and becomes the sum of the counts up to k; listing takes each down to where
    // its list begins, and the end of all stands behind them.
    int64_t const chunks = (places + 1 + cuda::scan_chunk - 1) / cuda::scan_chunk;
    auto const bytes = static_cast<std::size_t>(places + 1 + chunks + 1) * sizeof(uint32_t);
    Temporary<D> const counts(bytes), list(static_cast<std::size_t>(count) * sizeof(uint32_t));
    arguments.places = static_cast<uint32_t*>(counts.get());
    arguments.list = static_cast<uint32_t*>(list.get());
    uint32_t* const sums = arguments.places + places + 1;
    cuda::clear_memory(device, counts.get(), bytes);
    cuda::launch(device, who, cuda::count_places_kernel<A>, blocks, threads, arguments);
    if (places == 0) return;  // every index is out of range
    cuda::RunningArguments running{arguments.places, sums, places + 1, false};
    cuda::launch(device, who, cuda::running_sum_kernel<cuda::RunningArguments>, dim3(static_cast<unsigned>(chunks)), threads, running);
    cuda::launch(device, who, cuda::total_before_kernel<uint32_t>, dim3(1), cuda::total_before_threads, cuda::TotalBeforeArguments<uint32_t>{sums, chunks});
    running.apply = true;
    cuda::launch(device, who, cuda::running_sum_kernel<cuda::RunningArguments>, dim3(static_cast<unsigned>(chunks)), threads, running);
    cuda::launch(device, who, cuda::list_kernel<A>, blocks, threads, arguments);
    cuda::launch(device, who, cuda::add_short_kernel<A>, cuda::blocks_for(places), threads, arguments);
    int64_t const wanted = (places + threads - 1) / threads, full = cuda::full_grid(device);
    if (count > cuda::short_list) {
      cuda::launch(device, who, cuda::add_long_kernel<A>, dim3(static_cast<unsigned>(wanted < full ? wanted : full)), threads, arguments);
    }
  }
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
