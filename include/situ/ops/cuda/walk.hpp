/// Walks of strided operands: from the number of a row, an output or a line to where its elements lie, by division that is fast where 31 bits
/// suffice; and loads of neighbouring elements, 16 bytes at a time where memory allows it.
#pragma once

#include <situ/expr/cuda/launch.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// An axis of a walk: its extent, divided by quickly.
struct WalkedAxis {
  int64_t size;
  FastDivisor fast;

  static WalkedAxis of(int64_t size) { return {size, FastDivisor::of(size > 0 && size < index_limit ? size : 1)}; }
  /// i / size; `wide` says that i may exceed 31 bits.
  SITU_DEVICE __forceinline__ int64_t quotient(int64_t i, bool wide) const {
    return wide ? i / size : static_cast<int64_t>(fast.quotient(static_cast<uint32_t>(i)));
  }
};

/// Adds to the offsets of the operands from number First on what index `i` of the axes [first, last) does, the last one running fastest.
///
/// `arguments` is what kernels are launched with: strides[operands][max_rank], sizes[max_rank] and wide.
template <int First, class A>
SITU_DEVICE __forceinline__ void walk(A const& arguments, int first, int last, int64_t i, int64_t* offsets) {
#pragma unroll 1
  for (int k = last - 1; k >= first; --k) {
    int64_t const q = arguments.sizes[k].quotient(i, arguments.wide);
    int64_t const place = i - q * arguments.sizes[k].size;
    i = q;
#pragma unroll
    for (int o = First; o < A::operands; ++o) offsets[o] += arguments.strides[o][k] * place;
  }
}

/// Loads `count` neighbours of leaf K, which is operand K + 1, from its offset on. `arguments` has data, run_stride(operand) and `vectors`,
/// whose bit o says that operand o takes 16-byte accesses.
template <class A>
struct WalkSource {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (N > 1 && count == N && (arguments.vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_repeating(from, arguments.run_stride(K + 1), count);
  }
};

/// A vector of leaf K, which is operand K + 1, from its offset on; with Mixed, of operands whose bit is not set one element, repeated.
template <bool Mixed>
struct VectorSource {
  void* const* data;
  int64_t const* offsets;
  uint64_t vectors;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(data[K + 1]) + offsets[K + 1];
    if (!Mixed || (vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_one(from);
  }
};

/// Whether `lanes` elements can be accessed at once along a run: its stride is 1, and no other axis, of `rank` ones, leads off the grid.
inline bool takes_vectors(void const* data, int element_bytes, int lanes, int64_t run_stride, int64_t const* strides, int rank) {
  bool result = run_stride == 1 && reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(lanes * element_bytes) == 0;
  for (int k = 0; k < rank; ++k) result = result && strides[k] % lanes == 0;
  return result;
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
