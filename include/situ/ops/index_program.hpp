/// Gathering and scattering bound to memory, for every device's kernels.
#pragma once

#include <situ/device/fault.hpp>
#include <situ/expr/lower.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The unsigned integer that elements of T are moved as: kernels that only move elements exist once for each size.
template <class T>
using moved_as = unsigned_of_size<T>;

/// The places that an operation goes through, in row-major order, and the steps of its operands. Axes that all operands step
/// through alike are joined. Operand 0 is contiguous: its offset is the number of the place.
template <int Operands>
struct IndexSpace {
  int rank;  ///< at least 1
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];

  IndexSpace(Shape const& shape, Shape const (&steps)[Operands]) {
    for (int k = 0; k < max_rank && k < shape.rank(); ++k) {  // the first bound is known to g++ -O3
      sizes[k] = shape[k];
      for (int o = 0; o < Operands; ++o) strides[o][k] = steps[o][k];
    }
    rank = coalesce(sizes, &strides[0][0], Operands, shape.rank());
    if (rank > 0) return;
    rank = 1;
    sizes[0] = 1;
    for (int o = 0; o < Operands; ++o) strides[o][0] = 0;
  }
  int64_t count() const {
    int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= sizes[k];
    return n;
  }
};

/// out[p] = from[offset of p + index * axis_stride], where the offset leaves out the indexed axis.
template <class Word, class Ix>
struct GatherProgram {
  enum : int { output, source, indices };
  Word* out;
  Word const* from;
  Ix const* index;
  int64_t axis_stride;
  IndexBounds bounds;
  IndexSpace<3> space;
};

/// to[offset of p + index * axis_stride] takes from[p], one after the other in row-major order of p.
template <class Join, class Ix>
struct ScatterProgram {
  using value_type = typename Join::value_type;
  enum : int { indices, target, source };
  value_type* to;
  value_type const* from;
  Ix const* index;
  int64_t axis_stride;
  int64_t target_size;  ///< elements that `to` has
  IndexBounds bounds;
  IndexSpace<3> space;
};

/// How an element that arrives joins the one that is there.
template <class Word>
struct replaces {
  using value_type = Word;
  static constexpr bool adds = false;
  SITU_HOST_DEVICE static void join(Word& there, Word arriving) { there = arriving; }
};
template <class T>
struct adds_to {
  using value_type = T;
  static constexpr bool adds = true;
  SITU_HOST_DEVICE static void join(T& there, T arriving) {
    if constexpr (std::is_same_v<T, bool>) there = there || arriving;
    else if constexpr (std::is_integral_v<T>) {  // wraps
      using U = unsigned_of_size<T>;
      there = static_cast<T>(static_cast<U>(static_cast<U>(there) + static_cast<U>(arriving)));
    } else {
      there += arriving;
    }
  }
};

/// Rows of 0 and 1: out[p, c] = (index[p] == c).
template <class Word, class Ix>
struct OneHotProgram {
  Word* out;
  Ix const* index;
  int64_t count, classes;
  Word one;
  IndexBounds bounds;  ///< indices are not counted from the end here
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
