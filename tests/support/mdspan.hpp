/// The namespace `spans`: mdspan and what belongs to it, of the standard library where it has it, else of CUDA's (libcu++).
#pragma once

#if __cplusplus > 202002L && __has_include(<mdspan>)
#include <mdspan>
namespace spans = std;
#else
#include <cuda/std/mdspan>
namespace spans = cuda::std;
#endif

namespace situ_test {

/// The element of an mdspan of two axes, whatever it is written as.
template <class M>
auto& at(M const& m, int i, int j) {
  using Index = typename M::index_type;
  return m.accessor().access(m.data_handle(), static_cast<std::size_t>(m.mapping()(static_cast<Index>(i), static_cast<Index>(j))));
}

}  // namespace situ_test
