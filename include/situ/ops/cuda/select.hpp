/// Selecting by a mask on a GPU: blocks of the mask are counted, the counts become places, then every block writes its elements.
/// A thread looks at 16 neighbouring bytes of the mask.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cuda/block_scan.hpp>
#include <situ/ops/cuda/walk.hpp>
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
  /// The same for a j that is not known when the kernel is compiled, without an array in local memory.
  SITU_DEVICE bool at(int j) const {
    unsigned const word = j < 8 ? (j < 4 ? words[0] : words[1]) : (j < 12 ? words[2] : words[3]);
    return (word >> (j % 4 * 8) & 1u) != 0;
  }
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

/// Elements of a formula, which is computed where the mask is 1 alone.
template <class P>
struct SelectArguments {
  static constexpr int operands = P::leaves + 1;  ///< the inputs from number 1 on
  typename P::tree_type tree;
  MaskArguments mask;
  typename P::out_type* to;
  void const* data[operands];
  int64_t strides[operands][max_rank];
  WalkedAxis sizes[max_rank];
  int rank;
  bool wide;    ///< the mask has more elements than fast division reaches
  bool packed;  ///< every input lies as the mask does
  uint64_t vectors = 0;
  explicit SelectArguments(typename P::tree_type const& formula) : tree(formula) {}
  SITU_DEVICE int64_t run_stride(int) const { return 0; }
};

template <class P>
__global__ void __launch_bounds__(block_threads) select_kernel(const __grid_constant__ SelectArguments<P> arguments) {
  using A = SelectArguments<P>;
  using Out = typename P::out_type;
  MaskBytes const mask(arguments.mask);
  int total;
  int64_t at = arguments.mask.places[blockIdx.x] + block_sum_before<block_threads>(mask.count(), total);
#pragma unroll 1
  for (int j = 0; j < mask_bytes; ++j) {
    if (!mask.at(j)) continue;
    int64_t const index = mask.first + j;
    int64_t offsets[A::operands];
#pragma unroll
    for (int o = 0; o < A::operands; ++o) offsets[o] = arguments.packed ? index : 0;
    if (!arguments.packed) walk<1>(arguments, 0, arguments.rank, index, offsets);
    Held<typename P::tree_type, 1> held;
    hold(held, WalkSource<A>{arguments, offsets, 1});
    Lanes<Out, 1> result;
    result.clear();
    result.insert(0, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(arguments.tree, held, 0, index))));
    result.store_each(arguments.to + at++, 1, 1);
  }
}

struct NonzeroArguments {
  MaskArguments mask;
  int64_t* to;
  int rank;
  bool wide;  ///< the mask has more elements than fast division reaches
  WalkedAxis sizes[max_rank];
};

/// The indices of an element as row number `row` of the result; one copy of this code for the 16 elements of a thread.
SITU_DEVICE __noinline__ inline void write_place(NonzeroArguments const& arguments, int64_t place, int64_t row) {
  int64_t* const to = arguments.to + row * arguments.rank;
#pragma unroll 1
  for (int k = arguments.rank - 1; k >= 0; --k) {
    int64_t const q = arguments.sizes[k].quotient(place, arguments.wide);
    to[k] = place - q * arguments.sizes[k].size;
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
  arguments.wide = size >= cuda::index_limit;
  for (int k = 0; k < shape.rank(); ++k) arguments.sizes[k] = cuda::WalkedAxis::of(shape[k]);
  cuda::launch(device_traits<D>::ordinal, "nonzero", cuda::nonzero_kernel<cuda::NonzeroArguments>, dim3(static_cast<unsigned>(select_blocks(size))), cuda::block_threads, arguments);
}

/// Selects from a tensor that lies as the mask does by words, from all else by computing what is selected. Always true: nothing has to be
/// evaluated first.
template <class D, class T, class E>
bool launch_select(cuda_kernels, T* to, E const& e, Tensor<bool, D> const& mask, int64_t const* places) {
  constexpr int device = device_traits<D>::ordinal;
  dim3 const blocks(static_cast<unsigned>(select_blocks(mask.size())));
  cuda::MaskArguments const where{reinterpret_cast<unsigned char const*>(mask.data()), mask.size(), const_cast<int64_t*>(places)};
  if constexpr (std::is_same_v<E, Tensor<T, D>>) {
    if (e.is_contiguous() && e.shape() == mask.shape()) {
      using Word = cuda::word_of<T>;
      cuda::MaskedSelectArguments<Word> const words{where, reinterpret_cast<Word*>(to), reinterpret_cast<Word const*>(e.data())};
      cuda::launch(device, "masked_select", cuda::masked_select_kernel<Word>, blocks, cuda::block_threads, words);
      return true;
    }
  }
  using P = Program<tree_of<E>, T, leaf_count<E>>;
  cuda::SelectArguments<P> arguments(lower<0>(e));
  arguments.mask = where;
  arguments.to = to;
  arguments.wide = mask.size() >= cuda::index_limit;
  Shape const& shape = mask.shape();
  int64_t sizes[max_rank];
  for (int k = 0; k < shape.rank(); ++k) sizes[k] = shape[k], arguments.strides[0][k] = mask.strides()[k];
  arguments.data[0] = nullptr;
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    arguments.data[o] = leaf.data();
    broadcast_strides(leaf.layout(), shape, arguments.strides[o]);
    ++o;
  });
  int in_place = 0;  // elements stay numbered as they are
  arguments.rank = coalesce(sizes, &arguments.strides[0][0], o, shape.rank(), &in_place);
  arguments.packed = arguments.rank <= 1;
  for (int k = 0; k < arguments.rank; ++k) {
    arguments.sizes[k] = cuda::WalkedAxis::of(sizes[k]);
    for (int input = 1; input < o; ++input) arguments.packed = arguments.packed && arguments.strides[input][k] == 1;
  }
  cuda::launch(device, "masked_select", cuda::select_kernel<P>, blocks, cuda::block_threads, arguments);
  return true;
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
