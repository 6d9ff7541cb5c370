/// The CPU's gradient of index_select: slices added at their places, each by one thread, in their order.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/expr/cpu/dispatch.hpp>
#include <situ/expr/lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// out[b, i, :] = Σ g[b, j, :] over the j with index[j] = i, in the order of j. A thread has some i, and looks for them.
template <class T, class Ix>
struct AddSlices {
  T* out;
  T const* from;
  Ix const* index;
  int64_t before, extent, count, after;

  template <class Isa>
  SITU_INLINE static void run(AddSlices const* self_, int64_t first, int64_t last) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    AddSlices const self = *self_;
    int64_t const n = self.after;
    for (int64_t b = 0; b < self.before; ++b) {
      T* const out = self.out + b * self.extent * n;
      T const* from = self.from + b * self.count * n;
      __builtin_memset(static_cast<void*>(out + first * n), 0, static_cast<std::size_t>((last - first) * n) * sizeof(T));
      for (int64_t j = 0; j < self.count; ++j, from += n) {
        int64_t i = static_cast<int64_t>(self.index[j]);
        i += i < 0 ? self.extent : 0;
        if (i < first || i >= last) continue;
        T* const to = out + i * n;
        int64_t k = 0;
        for (; k + N <= n; k += N) store_lanes<T, N, Isa>(load_lanes<T, N, Isa>(to + k) + load_lanes<T, N, Isa>(from + k), to + k);
        for (; k < n; ++k) to[k] += from[k];
      }
    }
  }
  void operator()(int64_t first, int64_t last) const { dispatch<AddSlices>(this, first, last); }
};

}  // namespace detail::cpu

namespace detail {

/// The gradient of index_select along `axis` of a tensor of this shape. Indices have been checked.
template <class T, class D, class Ix>
Tensor<T, D> added_slices(Tensor<T, D> const& g, Shape const& shape, int axis, Tensor<Ix, D> const& index) {
  auto result = Tensor<T, D>::uninitialized(shape, "index_select");
  if (result.size() == 0) return result;
  Tensor<T, D> const from = g.contiguous();
  Tensor<Ix, D> const indices = index.contiguous();
  int64_t before = 1, after = 1;
  for (int k = 0; k < axis; ++k) before *= shape[k];
  for (int k = axis + 1; k < shape.rank(); ++k) after *= shape[k];
  int64_t const extent = shape[axis], most = (extent + 63) / 64, least = (int64_t{1} << 15) / (before * after) + 1;
  cpu::AddSlices<T, Ix> const kernel{result.data(), from.data(), indices.data(), before, extent, indices.size(), after};
  device_traits<D>::launch(kernel, extent, most > least ? most : least);
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
