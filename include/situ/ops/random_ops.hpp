/// Random changes of expressions: dropout, and coins whose probabilities are elements. Fused with the expression that they take.
#pragma once

#include <situ/ops/cpu/random_in_place.hpp>
#include <situ/ops/random.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

#if defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
/// e, each element changed by `op`, on a device with CUDA's kernels: a tree with the element's index in it.
template <class D, class F, class E>
void randomize_on_cuda(typename F::element* data, Layout const& layout, E const& e, F const& op) {
  using T = typename F::element;
  auto const tree = make_apply(functions::mapped<F>{op}, prepend(lower<0>(e), Fields<Index>{Index{}, {}}));
  Geometry<leaf_count<E> + 1> where;
  Layout const* layouts[leaf_count<E> + 1];
  where.data[0] = data;
  where.contiguous = collect_operands(e, layout, true, where.data, layouts);
  where.rank = 1;
  where.sizes[0] = layout.size();
  if (!where.contiguous) {
    where.rank = bind_strides(layouts, leaf_count<E> + 1, where.sizes, &where.strides[0][0]);
    // What 32-bit indices do not reach is launched in parts, which count from 0.
    if (cuda::needs_parts(&where.strides[0][0], leaf_count<E> + 1, where.rank, layout.size())) return randomize_on_cuda<D>(data, layout, evaluated(e).contiguous(), op);
  }
  launch_elementwise<D, Program<std::remove_const_t<decltype(tree)>, T, leaf_count<E>>>(cuda_kernels{}, tree, where);
}
}  // namespace SITU_ABI_COMPILER
#else
inline namespace SITU_ABI_COMPILER {
template <class D, class F, class E>
void randomize_on_cuda(typename F::element*, Layout const&, E const&, F const&) {
  static_assert(compiled_by_nvcc<F>, "situ: random_numbers_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// A fresh tensor of the elements of e, each changed by `op`.
template <class F, class E>
auto randomized(E const& e, F const& op, char const* who) {
  using T = typename F::element;
  using D = result_device_t<device_of<E>>;
  auto result = Tensor<T, D>::uninitialized(e.shape(), who);
  if (result.size() == 0) return result;
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    randomize<D>(result.data(), result.layout(), e, op);
  } else {
    randomize_on_cuda<D>(result.data(), result.layout(), e, op);
  }
  return result;
}

}  // namespace detail

/// Each element 0 with probability p, else divided by 1 - p; outside of training the elements as they are.
///
///     dropout(x, 0.1)   dropout(x, 0.1, generator)   dropout(x, 0.1, training)   dropout(x, 0.1, training, generator)
///
/// Shape     that of x.
/// Dtype     a floating type, which stays.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    ShapeError unless p is in [0, 1].
/// Special   a dropped element is 0 whatever it was, NaN too. Which are dropped depends on the generator, its call and the element's index in
///           row-major order alone: not on the device, the number of threads, or the layout of x.
/// Cost      one launch; every input is read once and every element written once.
/// Gradient  dx = dy / (1 - p) where the element was kept, else 0.
template <class E>
  requires(expression<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, bool training, Generator& generator) {
  using T = value_of<E>;
  if (!(p >= 0 && p <= 1)) detail::fail<ShapeError>("dropout: the probability is ", p, "; it must be in [0, 1]");
  using D = detail::result_device_t<device_of<E>>;
  if (!training || p == 0) return Tensor<T, D>(detail::evaluated(x));
  detail::Draw const draw(generator);
  if (p == 1) return detail::filled<T, D>(x.shape(), 0, "dropout");
  return detail::randomized(x, detail::dropped<T>{draw.stream, detail::Chance::of(1 - p), static_cast<compute_t<T>>(1 / (1 - p))}, "dropout");
}
template <class E>
  requires(expression<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, bool training = true) {
  return dropout(x, p, training, detail::default_generator());
}
template <class E>
  requires(expression<E> && floating<value_of<E>>)
auto dropout(E const& x, double p, Generator& generator) {
  return dropout(x, p, true, generator);
}

/// 1 with the probability that the element of p is, else 0: as bernoulli(p, shape), of the type of p. No probability is checked: one that is
/// negative or NaN never happens, one above 1 always does. Fused with the expression p, as dropout.
template <class E>
  requires(expression<E> && floating<value_of<E>>)
auto bernoulli(E const& p, Generator& generator) {
  detail::Draw const draw(generator);
  return detail::randomized(p, detail::told_coins<value_of<E>>{draw.stream}, "bernoulli");
}
template <class E>
  requires(expression<E> && floating<value_of<E>>)
auto bernoulli(E const& p) {
  return bernoulli(p, detail::default_generator());
}

namespace error {
template <class T>
struct dropout_and_bernoulli_take_floating_tensors__use_cast {};
}  // namespace error
template <class E, class... Args, class Error = error::dropout_and_bernoulli_take_floating_tensors__use_cast<value_of<E>>>
  requires(expression<E> && !floating<value_of<E>>)
void dropout(E const&, double, Args const&...) = delete;
template <class E, class... Args, class Error = error::dropout_and_bernoulli_take_floating_tensors__use_cast<value_of<E>>>
  requires(expression<E> && !floating<value_of<E>>)
void bernoulli(E const&, Args const&...) = delete;

}  // namespace situ::inline SITU_ABI
