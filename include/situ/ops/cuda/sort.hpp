/// Sorting on a GPU with kernels of our own: CUB's headers alone would cost every program several seconds of compile time.
///
/// Rows of at most 2048 elements are sorted in shared memory, several in a block where they are short. Longer ones by radix, digits of 8
/// bits, the least significant first: each pass counts the digits of every tile, scans the counts, and scatters tiles that were put in order
/// in shared memory first, so that writes come in runs. All rows go through the same launches. Nothing is atomic across blocks: ranks come from
/// the order of threads, so the sort is stable.
/// Source    Merrill & Grimshaw 2011, doi:10.1142/S0129626411000187; ranks within warps by matching digits, Ashkiani et al. 2016,
///           doi:10.1145/2851141.2851169.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/device/cuda/launch.hpp>
#include <situ/ops/sort_keys.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int shared_row = 2048;    // elements of the rows of a block
inline constexpr int sort_warps = block_threads / 32;

// ---- rows in shared memory ------------------------------------------------------------------------------------------

template <class T>
struct BlockSortArguments {
  SortProblem<T> problem;
  int padded;  ///< n up to a power of 2: how many elements of the block a row takes
};

/// Bitonic sort of (key, index): no two are equal, so it is stable.
template <class T>
__global__ void __launch_bounds__(block_threads) block_sort_kernel(const __grid_constant__ BlockSortArguments<T> arguments) {
  using K = sort_key_t<T>;
  constexpr int each = shared_row / block_threads;
  __shared__ K keys[shared_row];
  __shared__ uint16_t indices[shared_row];
  SortProblem<T> const& problem = arguments.problem;
  int const m = arguments.padded, n = static_cast<int>(problem.n), me = static_cast<int>(threadIdx.x);
  int64_t const first_row = static_cast<int64_t>(blockIdx.x) * (shared_row / m);
  K const flip = problem.descending ? static_cast<K>(~K(0)) : K(0);
#pragma unroll
  for (int k = 0; k < each; ++k) {
    int const t = me + k * block_threads, i = t & (m - 1);
    int64_t const row = first_row + t / m;
    keys[t] = row < problem.rows && i < n ? static_cast<K>(sort_key(problem.source[row * n + i]) ^ flip) : static_cast<K>(~K(0));
    indices[t] = static_cast<uint16_t>(i);
  }
#pragma unroll 1
  for (int size = 2; size <= m; size *= 2) {
#pragma unroll 1
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
#pragma unroll
      for (int k = 0; k < each / 2; ++k) {
        int const p = me + k * block_threads, i = 2 * p - (p & (stride - 1)), j = i + stride;
        K const a = keys[i], b = keys[j];
        uint16_t const x = indices[i], y = indices[j];
        bool const rising = ((i & (m - 1)) & size) == 0, greater = a > b || (a == b && x > y);
        if (greater == rising) {
          keys[i] = b, keys[j] = a;
          indices[i] = y, indices[j] = x;
        }
      }
    }
  }
  __syncthreads();
  T elements[each];
#pragma unroll
  for (int k = 0; k < each; ++k) {
    int const t = me + k * block_threads, i = t & (m - 1);
    int64_t const row = first_row + t / m;
    if (row < problem.rows && i < n) elements[k] = problem.source[row * n + indices[t]];
  }
  __syncthreads();  // `values` may be the source
#pragma unroll
  for (int k = 0; k < each; ++k) {
    int const t = me + k * block_threads, i = t & (m - 1);
    int64_t const row = first_row + t / m;
    if (row >= problem.rows || i >= n) continue;
    if (problem.values) problem.values[row * n + i] = elements[k];
    if (problem.indices) problem.indices[row * n + i] = indices[t];
  }
}

// ---- long rows ------------------------------------------------------------------------------------------------------

/// Elements of a tile for each thread.
template <class T>
inline constexpr int tile_items = sizeof(T) == 8 ? 8 : 16;
template <class T>
inline constexpr int tile_size = tile_items<T> * block_threads;

template <class T>
struct RadixArguments {
  T const* from;
  T* to;
  uint32_t const* indices_from;  ///< null in the first pass: the elements' places
  uint32_t* indices_to;          ///< null in the last pass
  int64_t* result_indices;       ///< in the last pass
  uint32_t* counts;              ///< [row][digit][tile]; scanned: how many before in the digit
  uint32_t* totals;              ///< [row][digit]
  int64_t n;
  uint32_t tiles;
  int shift;
  bool descending;

  SITU_DEVICE unsigned digit(T x) const { return static_cast<unsigned>(sort_key(x) >> shift) & 255u; }
};

template <class T>
__global__ void __launch_bounds__(block_threads) count_digits_kernel(const __grid_constant__ RadixArguments<T> a) {
  __shared__ uint32_t counts[sort_warps][256];
  int const me = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int w = 0; w < sort_warps; ++w) counts[w][me] = 0;
  __syncthreads();
  uint32_t const row = blockIdx.x / a.tiles, tile = blockIdx.x % a.tiles;
  T const* const from = a.from + static_cast<int64_t>(row) * a.n;
  int64_t const first = static_cast<int64_t>(tile) * tile_size<T>;
#pragma unroll
  for (int k = 0; k < tile_items<T>; ++k) {
    int64_t const i = first + k * block_threads + me;
    if (i < a.n) atomicAdd(&counts[me / 32][a.digit(from[i])], 1u);
  }
  __syncthreads();
  uint32_t sum = 0;
#pragma unroll
  for (int w = 0; w < sort_warps; ++w) sum += counts[w][me];
  a.counts[(static_cast<int64_t>(row) * 256 + me) * a.tiles + tile] = sum;
}

/// The sum of x over the lanes of a warp up to this one.
SITU_DEVICE inline uint32_t warp_inclusive_sum(uint32_t x) {
  int const lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    uint32_t const other = __shfl_up_sync(0xffffffffu, x, static_cast<unsigned>(step));
    if (lane >= step) x += other;
  }
  return x;
}
/// The sum of x over the threads of a block before this one. For all threads of a block.
SITU_DEVICE inline uint32_t block_exclusive_sum(uint32_t x) {
  __shared__ uint32_t sums[sort_warps];
  int const lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t const inclusive = warp_inclusive_sum(x);
  __syncthreads();
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  uint32_t before = 0;
#pragma unroll
  for (int w = 0; w < sort_warps; ++w) before += w < warp ? sums[w] : 0u;
  return before + inclusive - x;
}

template <class Count>  // a template, so that it may stand in a header
struct CountScanArguments {
  Count* counts;  ///< `segments` times `length`
  Count* totals;  ///< one for each segment
  int64_t segments;
  uint32_t length;
};
/// Counts become the sums of those before them in their segment; a warp for each segment.
template <class Count>
__global__ void __launch_bounds__(block_threads) scan_counts_kernel(const __grid_constant__ CountScanArguments<Count> a) {
  int64_t const segment = static_cast<int64_t>(blockIdx.x) * sort_warps + threadIdx.x / 32;
  if (segment >= a.segments) return;
  Count* const counts = a.counts + segment * a.length;
  uint32_t const lane = threadIdx.x % 32;
  uint32_t sum = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < a.length; base += 32) {
    uint32_t const i = base + lane, x = i < a.length ? counts[i] : 0u;
    uint32_t const inclusive = warp_inclusive_sum(x);
    if (i < a.length) counts[i] = sum + inclusive - x;
    sum += __shfl_sync(0xffffffffu, inclusive, 31);
  }
  if (lane == 0) a.totals[segment] = sum;
}

template <class T, bool Indexed>
__global__ void __launch_bounds__(block_threads) scatter_kernel(const __grid_constant__ RadixArguments<T> a) {
  constexpr int items = tile_items<T>;
  using Raw = sort_key_t<T>;  // elements in shared memory, as bits
  __shared__ uint32_t ranks[sort_warps][256];  // of each warp: how many of a digit so far; then how many in the warps before
  __shared__ Raw elements[tile_size<T>];
  __shared__ uint32_t indices[Indexed ? tile_size<T> : 1];
  __shared__ uint32_t starts[256];  // in the tile
  __shared__ int64_t places[256];   // of the result, less starts
  int const me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32;
  uint32_t const row = blockIdx.x / a.tiles, tile = blockIdx.x % a.tiles;
  int64_t const row_first = static_cast<int64_t>(row) * a.n, tile_first = static_cast<int64_t>(tile) * tile_size<T>;
  int64_t const left = a.n - tile_first;
  int const valid = left < tile_size<T> ? static_cast<int>(left) : tile_size<T>;
#pragma unroll
  for (int w = 0; w < sort_warps; ++w) ranks[w][me] = 0;
  __syncthreads();

  T mine[items];
  uint32_t rank[items];
#pragma unroll
  for (int k = 0; k < items; ++k) {
    int const t = warp * (32 * items) + k * 32 + lane;
    if (t < valid) mine[k] = a.from[row_first + tile_first + t];
  }
#pragma unroll
  for (int k = 0; k < items; ++k) {
    int const t = warp * (32 * items) + k * 32 + lane;
    unsigned const digit = t < valid ? a.digit(mine[k]) : 256u;
    unsigned const peers = __match_any_sync(0xffffffffu, digit);
    unsigned const before = static_cast<unsigned>(__popc(peers & ((1u << lane) - 1u)));
    uint32_t const so_far = digit < 256u ? ranks[warp][digit] : 0u;
    __syncwarp();
    if (before == 0 && digit < 256u) ranks[warp][digit] = so_far + static_cast<uint32_t>(__popc(peers));
    __syncwarp();
    rank[k] = so_far + before;
  }
  __syncthreads();

  {  // a digit for each thread, in the order of the result
    int const d = a.descending ? 255 - me : me;
    uint32_t here = 0;
#pragma unroll
    for (int w = 0; w < sort_warps; ++w) {
      uint32_t const count = ranks[w][d];
      ranks[w][d] = here;
      here += count;
    }
    uint32_t const start = block_exclusive_sum(here);
    uint32_t const smaller = block_exclusive_sum(a.totals[static_cast<int64_t>(row) * 256 + d]);
    starts[d] = start;
    places[d] = row_first + smaller + a.counts[(static_cast<int64_t>(row) * 256 + d) * a.tiles + tile] - start;
  }
  __syncthreads();

#pragma unroll
  for (int k = 0; k < items; ++k) {
    int const t = warp * (32 * items) + k * 32 + lane;
    if (t >= valid) continue;
    unsigned const digit = a.digit(mine[k]);
    uint32_t const place = starts[digit] + ranks[warp][digit] + rank[k];
    elements[place] = bits_to<Raw>(mine[k]);
    if constexpr (Indexed) indices[place] = a.indices_from ? a.indices_from[row_first + tile_first + t] : static_cast<uint32_t>(tile_first + t);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < items; ++k) {
    int const t = k * block_threads + me;
    if (t >= valid) continue;
    T const x = bits_to<T>(elements[t]);
    int64_t const place = places[a.digit(x)] + t;
    if (a.to) a.to[place] = x;
    if constexpr (Indexed) {
      if (a.result_indices) a.result_indices[place] = indices[t];
      else a.indices_to[place] = indices[t];
    }
  }
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Rows of 2049 elements and more, as many passes as elements have bytes.
template <bool Indexed, class D, class T>
void launch_radix_sort(SortProblem<T> const& problem) {
  constexpr int device = device_traits<D>::ordinal, passes = static_cast<int>(sizeof(T));
  auto const count = static_cast<std::size_t>(problem.rows * problem.n);
  int64_t const tiles = (problem.n + cuda::tile_size<T> - 1) / cuda::tile_size<T>, blocks = problem.rows * tiles, segments = problem.rows * 256;
  Temporary<D> const counts(static_cast<std::size_t>(blocks) * 256 * sizeof(uint32_t)), totals(static_cast<std::size_t>(segments) * sizeof(uint32_t));
  // Passes write to `spare` and to the result in turn; without a place for values, to two spares.
  Temporary<D> const spare(passes > 1 || problem.source == problem.values ? count * sizeof(T) : 0);
  Temporary<D> const other(passes > 2 && !problem.values ? count * sizeof(T) : 0);
  Temporary<D> const places(Indexed && passes > 1 ? count * sizeof(uint32_t) : 0), other_places(Indexed && passes > 2 ? count * sizeof(uint32_t) : 0);
  cuda::RadixArguments<T> a{};
  a.from = problem.source;
  if (passes == 1 && problem.source == problem.values) {
    device_traits<D>::copy(spare.get(), problem.source, count * sizeof(T));
    a.from = static_cast<T const*>(spare.get());
  }
  a.counts = static_cast<uint32_t*>(counts.get());
  a.totals = static_cast<uint32_t*>(totals.get());
  a.n = problem.n;
  a.tiles = static_cast<uint32_t>(tiles);
  a.descending = problem.descending;
  for (int pass = 0; pass < passes; ++pass) {
    bool const last = pass + 1 == passes, to_result = (passes - pass) % 2 == 1;
    a.shift = 8 * pass;
    a.to = last ? problem.values : !to_result ? static_cast<T*>(spare.get()) : problem.values ? problem.values : static_cast<T*>(other.get());
    if constexpr (Indexed) {
      a.indices_to = last ? nullptr : static_cast<uint32_t*>(to_result ? other_places.get() : places.get());
      a.result_indices = last ? problem.indices : nullptr;
    }
    cuda::launch(device, "sort", cuda::count_digits_kernel<T>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, a);
    cuda::CountScanArguments<uint32_t> const scan{a.counts, a.totals, segments, a.tiles};
    cuda::launch(device, "sort", cuda::scan_counts_kernel<uint32_t>, dim3(static_cast<unsigned>((segments + cuda::sort_warps - 1) / cuda::sort_warps)), cuda::block_threads, scan);
    cuda::launch(device, "sort", cuda::scatter_kernel<T, Indexed>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, a);
    a.from = a.to;
    a.indices_from = a.indices_to;
  }
}

/// Sorts on D, which has CUDA's kernels; see SortProblem. `Indexed`: that there is a place for indices. Enqueued on the device's current stream.
template <bool Indexed, class D, class T>
void launch_sort(cuda_kernels, SortProblem<T> const& problem) {
  if (problem.rows == 0 || problem.n == 0) return;
  if (problem.n > cuda::shared_row) return launch_radix_sort<Indexed, D>(problem);
  int padded = 1;
  while (padded < problem.n) padded *= 2;
  int64_t const rows_per_block = cuda::shared_row / padded, blocks = (problem.rows + rows_per_block - 1) / rows_per_block;
  cuda::BlockSortArguments<T> const arguments{problem, padded};
  cuda::launch(device_traits<D>::ordinal, "sort", cuda::block_sort_kernel<T>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, arguments);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
