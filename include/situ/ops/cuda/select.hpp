/// Selecting by a mask on a GPU: blocks of the mask are counted, the counts become places, then every block writes its elements.
/// A thread looks at 16 neighbouring bytes of the mask.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cuda/block_scan.hpp>
#include <situ/ops/select_program.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int mask_bytes = 16;
static_assert(select_block == block_threads * mask_bytes);

struct MaskArguments {
  unsigned char const* mask;
  int64_t size;
  int64_t* places;  ///< one for each block, and the total
};

/// This thread's bytes of the mask, 0 past its end.
struct MaskBytes {
  unsigned words[4];
  int64_t first;

  SITU_DEVICE explicit MaskBytes(MaskArguments const& arguments)
      : words{}, first((static_cast<int64_t>(blockIdx.x) * block_threads + static_cast<int>(threadIdx.x)) * mask_bytes) {
    unsigned char const* const from = arguments.mask + first;
    int64_t const left = arguments.size - first;
    if (left >= mask_bytes && reinterpret_cast<std::uintptr_t>(from) % mask_bytes == 0) {
      uint4 const v = *reinterpret_cast<uint4 const*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
#pragma unroll
      for (int j = 0; j < mask_bytes; ++j) {
        if (j < left) words[j / 4] |= static_cast<unsigned>(from[j]) << (j % 4 * 8);
      }
    }
  }
  SITU_DEVICE int count() const { return __popc(words[0]) + __popc(words[1]) + __popc(words[2]) + __popc(words[3]); }
  SITU_DEVICE bool operator[](int j) const { return (words[j / 4] >> (j % 4 * 8) & 1u) != 0; }
};

template <class A>
__global__ void __launch_bounds__(block_threads) count_kernel(const __grid_constant__ A arguments) {
  int total;
  (void)block_sum_before<block_threads>(MaskBytes(arguments).count(), total);
  if (threadIdx.x == 0) arguments.places[blockIdx.x] = total;
}

template <class Word>
struct MaskedSelectArguments {
  MaskArguments mask;
  Word* to;
  Word const* from;
};

template <class Word>
__global__ void __launch_bounds__(block_threads) masked_select_kernel(const __grid_constant__ MaskedSelectArguments<Word> arguments) {
  MaskBytes const mask(arguments.mask);
  int total;
  int64_t at = arguments.mask.places[blockIdx.x] + block_sum_before<block_threads>(mask.count(), total);
#pragma unroll
  for (int j = 0; j < mask_bytes; ++j) {
    if (mask[j]) arguments.to[at++] = arguments.from[mask.first + j];
  }
}

struct NonzeroArguments {
  MaskArguments mask;
  int64_t* to;
  int rank;
  bool wide;  ///< the mask has more elements than fast division reaches
  int64_t sizes[max_rank];
  FastDivisor fast[max_rank];
};

/// The indices of an element as row number `row` of the result; one copy of this code for the 16 elements of a thread.
SITU_DEVICE __noinline__ inline void write_place(NonzeroArguments const& arguments, int64_t place, int64_t row) {
  int64_t* const to = arguments.to + row * arguments.rank;
#pragma unroll 1
  for (int k = arguments.rank - 1; k >= 0; --k) {
    int64_t const q = arguments.wide ? place / arguments.sizes[k] : arguments.fast[k].quotient(static_cast<uint32_t>(place));
    to[k] = place - q * arguments.sizes[k];
    place = q;
  }
}

template <class A>
__global__ void __launch_bounds__(block_threads) nonzero_kernel(const __grid_constant__ A arguments) {
  MaskBytes const mask(arguments.mask);
  int total;
  int64_t at = arguments.mask.places[blockIdx.x] + block_sum_before<block_threads>(mask.count(), total);
#pragma unroll
  for (int j = 0; j < mask_bytes; ++j) {
    if (mask[j]) write_place(arguments, mask.first + j, at++);
  }
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

template <class D>
void launch_count(cuda_kernels, bool const* mask, int64_t* places, int64_t size) {
  constexpr int device = device_traits<D>::ordinal;
  int64_t const blocks = select_blocks(size);
  cuda::MaskArguments const arguments{reinterpret_cast<unsigned char const*>(mask), size, places};
  cuda::launch(device, "counting a mask", cuda::count_kernel<cuda::MaskArguments>, dim3(static_cast<unsigned>(blocks)), cuda::block_threads, arguments);
  cuda::launch(device, "counting a mask", cuda::total_before_kernel<int64_t>, dim3(1), cuda::total_before_threads, cuda::TotalBeforeArguments<int64_t>{places, blocks});
}

template <class D>
void launch_nonzero(cuda_kernels, int64_t* to, bool const* mask, int64_t const* places, Shape const& shape) {
  cuda::NonzeroArguments arguments{};
  int64_t const size = product(shape);
  arguments.mask = {reinterpret_cast<unsigned char const*>(mask), size, const_cast<int64_t*>(places)};
  arguments.to = to;
  arguments.rank = shape.rank();
  arguments.wide = size >= int64_t{1} << 31;
  for (int k = 0; k < shape.rank(); ++k) {
    arguments.sizes[k] = shape[k];
    arguments.fast[k] = cuda::FastDivisor::of(arguments.wide ? 1 : shape[k]);
  }
  cuda::launch(device_traits<D>::ordinal, "nonzero", cuda::nonzero_kernel<cuda::NonzeroArguments>, dim3(static_cast<unsigned>(select_blocks(size))), cuda::block_threads, arguments);
}

/// Gives false where e must be a contiguous tensor first.
template <class D, class T, class E>
bool launch_select(cuda_kernels, T* to, E const& e, Tensor<bool, D> const& mask, int64_t const* places) {
  if constexpr (std::is_same_v<E, Tensor<T, D>>) {
    using Word = cuda::word_of<T>;
    if (!e.is_contiguous() || !(e.shape() == mask.shape())) return false;
    cuda::MaskedSelectArguments<Word> arguments{};
    arguments.mask = {reinterpret_cast<unsigned char const*>(mask.data()), mask.size(), const_cast<int64_t*>(places)};
    arguments.to = reinterpret_cast<Word*>(to);
    arguments.from = reinterpret_cast<Word const*>(e.data());
    cuda::launch(device_traits<D>::ordinal, "masked_select", cuda::masked_select_kernel<Word>, dim3(static_cast<unsigned>(select_blocks(mask.size()))), cuda::block_threads, arguments);
    return true;
  } else {
    return false;
  }
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
