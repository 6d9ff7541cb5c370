/// Products of matrices, vectors and batches of them.
///
///     C = A B,   cᵢⱼ = Σₖ aᵢₖ bₖⱼ
///
/// Shape     [m, k] and [k, n] give [m, n]. A tensor of one axis is a row on the left, a column on the right, and that axis is not in
///           the result. Axes before the last two are batches, which broadcast: [b, 1, m, k] and [c, k, n] give [b, c, m, n].
/// Dtype     operands promote. 16-bit floats are summed in float and rounded once; integers wrap. bool with bool does not compile.
/// Device    runs where the operands live; enqueued, not waited for.
/// Throws    ShapeError when the inner extents differ or the batches do not broadcast.
/// Special   a sum of nothing is 0: [2, 0] and [0, 3] give zeros. On processors that multiply bfloat16 by twos (AVX512_BF16, in programs of
///           g++) subnormal bfloat16, and subnormal sums, may count as 0: in products of matrices of some size.
/// Cost      2 m n k operations. Operands of any strides (transposed, sliced, flipped, broadcast) are read where they lie; formulas
///           are evaluated once. The same result for any number of threads. With SITU_WITH_BLAS by the BLAS, on CUDA by cuBLAS.
/// Gradient  ∂L/∂A = (∂L/∂C) Bᵀ,  ∂L/∂B = Aᵀ (∂L/∂C).
#pragma once

#include <situ/ops/cpu/blas.hpp>
#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/cuda/matmul.hpp>
#include <situ/ops/matmul_plan.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace error {
template <class Left, class Right>
struct bool_tensors_have_no_product__use_cast {};
}  // namespace error

namespace detail {

/// An operand of a product: a tensor of T, the given one where it is one.
template <class T, class E>
decltype(auto) product_operand(E const& e) {
  if constexpr (std::is_same_v<E, Tensor<T, device_of<E>>>) return (e);
  else return Tensor<T, result_device_t<device_of<E>>>(e);
}

inline namespace SITU_ABI_COMPILER {
/// A tensor without gaps: itself, or a copy. Throws LayoutError where a kernel would make the copy, and nvcc does not compile the file.
template <class T, class D>
Tensor<T, D> without_gaps(Tensor<T, D> const& x, [[maybe_unused]] char const* who, [[maybe_unused]] char const* what) {
#if !defined(__CUDACC__)
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>) {
    if (!x.is_contiguous()) fail<LayoutError>(who, ": ", what, " with strides ", x.strides(), " is packed by a kernel: compile the file with nvcc, or pass a contiguous one");
    return x;
  } else {
    return x.contiguous();
  }
#else
  return x.contiguous();
#endif
}
}  // namespace SITU_ABI_COMPILER

/// What is done with the sums of a product before they are stored: plus `bias`, an element for each column, then the activation.
template <class T, class Activation>
struct FinishBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(C* tile, int64_t stride, T const* bias, int64_t bias_i, int64_t bias_j, int64_t rows, int64_t columns) {
    constexpr int N = cpu::tile_sizes<C, Isa>.lanes;
    for (int64_t i = 0; i < rows; ++i) {
      C* const row = tile + i * stride;
      for (int64_t j = 0; j < columns; j += N) {
        alignas(64) C lanes[N] = {};
        int64_t const count = columns - j < N ? columns - j : N;
        T const* const from = bias ? bias + i * bias_i + j * bias_j : nullptr;
        pack<C, N, Isa> x;
        bool const whole = count == N;
        if (whole) {
          x = pack<C, N, Isa>::load(row + j);
        } else {
          for (int64_t l = 0; l < count; ++l) lanes[l] = row[j + l];
          x = pack<C, N, Isa>::load(lanes);
        }
        if (from && whole && bias_j == 1) {
          x = x + cpu::load_product<T, N, Isa>(from);
        } else if (from) {
          for (int64_t l = 0; l < count; ++l) lanes[l] = static_cast<C>(from[l * bias_j]);
          x = x + pack<C, N, Isa>::load(lanes);
        }
        pack<C, N, Isa> const y = value(x);
        if (whole) {
          y.store(row + j);
        } else {
          y.store(lanes);
          for (int64_t l = 0; l < count; ++l) row[j + l] = lanes[l];
        }
      }
    }
    return 0;
  }

 private:
  template <class P>
  SITU_INLINE static P value(P const& x) {
    if constexpr (std::is_signed_v<T> && integer<T> && !std::is_same_v<Activation, identity>) {  // sums are unsigned and wide, the activation is of a T
      using S = std::make_signed_t<C>;
      constexpr int above = 8 * static_cast<int>(sizeof(C) - sizeof(T));
      return bitcast<C>(Activation::value((bitcast<S>(x) << above) >> above));
    } else {
      return Activation::value(x);
    }
  }
};

template <class T, class Activation>
void finish_tile(cpu::Product<T> const& p, product_t<T>* tile, int64_t stride, int64_t i, int64_t j, int64_t rows, int64_t columns) {
  T const* bias = p.bias ? p.bias + i * p.bias_i + j * p.bias_j : nullptr;
  bool const is_column = columns == 1 && stride == 1;  // the sums of a product with one column lie side by side
  if (is_column) cpu::dispatch<FinishBody<T, Activation>>(tile, int64_t{0}, bias, int64_t{0}, p.bias_i, int64_t{1}, rows);
  else cpu::dispatch<FinishBody<T, Activation>>(tile, stride, bias, p.bias_i, p.bias_j, rows, columns);
}

inline namespace SITU_ABI_BLAS {

/// Runs a planned product on D, which has the CPU's kernels. `c` is contiguous; `bias` is null or has an element for each column.
/// Gives whether bias and activation have been applied, as they always have here.
template <class D, class Activation, class T>
bool launch_product(cpu_kernels, ProductPlan const& plan, T const* a, T const* b, T* c, T const* bias) {
  if (extended(extended(plan.batches(), plan.m), plan.n) == 0) return true;
  cpu::Product<T> p{plan.m, plan.n, plan.k, a, plan.a_i, plan.a_k, b, plan.b_k, plan.b_j, c, plan.n, 1};
  p.bias = bias, p.bias_j = 1;
  if constexpr (!std::is_same_v<Activation, identity>) p.finish = &finish_tile<T, Activation>;
  else if (bias) p.finish = &finish_tile<T, Activation>;
  cpu::run_product<D>(p, plan.rank, plan.sizes, plan.a, plan.b, plan.c);
  return true;
}

template <class T, class A, class B>
auto product(A const& a_, B const& b_, char const* who) {
  using D = result_device_t<typename common_device<device_of<A>, device_of<B>>::type>;
  auto const& a = product_operand<T>(a_);
  auto const& b = product_operand<T>(b_);
  ProductPlan const plan = plan_product(a.layout(), b.layout(), who);
  auto result = Tensor<T, D>::uninitialized(plan.shape, who);
  (void)launch_product<D, identity, T>(typename device_traits<D>::kernels{}, plan, a.data(), b.data(), result.data(), nullptr);
  return result;
}

}  // namespace SITU_ABI_BLAS

template <class A, class B>
concept factors = expression<A> && expression<B> && on_same_device<A, B>;
template <class A, class B>
concept bool_factors = std::is_same_v<promote_t<value_of<A>, value_of<B>>, bool>;

[[noreturn]] __attribute__((noinline, cold)) inline void fail_rank(char const* who, Shape const& a, Shape const& b, int rank) {
  fail<ShapeError>(who, ": shapes ", a, " and ", b, " were given: both operands must have ", rank, rank == 1 ? " axis" : " axes", "; matmul takes others");
}

}  // namespace detail

inline namespace SITU_ABI_BLAS {

/// The product of two matrices, vectors, or batches of them; see the top of this file.
///
/// Example   matmul(a, b.t());  matmul(batch, matrix);  matmul(square(x), v)
template <class A, class B>
  requires(detail::factors<A, B> && !detail::bool_factors<A, B>)
auto matmul(A const& a, B const& b) {
  return detail::product<promote_t<value_of<A>, value_of<B>>>(a, b, "matmul");
}

/// Batches of matrices: [b, m, k] and [b, k, n] give [b, m, n]; nothing broadcasts. Otherwise as matmul.
template <class A, class B>
  requires(detail::factors<A, B> && !detail::bool_factors<A, B>)
auto bmm(A const& a, B const& b) {
  if (a.rank() != 3 || b.rank() != 3) detail::fail_rank("bmm", a.shape(), b.shape(), 3);
  if (a.size(0) != b.size(0)) {
    detail::fail<ShapeError>("bmm: shapes ", a.shape(), " and ", b.shape(), " cannot be multiplied: ", a.size(0), " != ", b.size(0), b.size(0) == 1 ? " batch" : " batches", "; matmul broadcasts");
  }
  return detail::product<promote_t<value_of<A>, value_of<B>>>(a, b, "bmm");
}

}  // namespace SITU_ABI_BLAS

/// Σ aᵢ bᵢ of two vectors of the same length, as a tensor without axes: a reduction, fused with formulas given as operands.
///
/// Dtype     as matmul. Throws ShapeError for other ranks, and for different lengths.
template <class A, class B>
  requires(detail::factors<A, B> && !detail::bool_factors<A, B>)
auto dot(A const& a, B const& b) {
  using T = promote_t<value_of<A>, value_of<B>>;
  using D = detail::result_device_t<typename detail::common_device<device_of<A>, device_of<B>>::type>;
  if (a.rank() != 1 || b.rank() != 1) detail::fail_rank("dot", a.shape(), b.shape(), 1);
  if (a.size() != b.size()) {
    detail::fail<ShapeError>("dot: shapes ", a.shape(), " and ", b.shape(), " cannot be multiplied: ", a.size(), " != ", b.size());
  }
  auto total = sum(a * b);
  if constexpr (std::is_same_v<value_of<decltype(total)>, T>) return total;
  else return Tensor<T, D>(cast<T>(total));
}

/// aᵢ bⱼ of two vectors: [m] and [n] give [m, n].
///
/// Throws    ShapeError for other ranks. Cost   one pass over the result.
template <class A, class B>
  requires(detail::factors<A, B> && !detail::bool_factors<A, B>)
auto outer(A const& a, B const& b) {
  using D = detail::result_device_t<typename detail::common_device<device_of<A>, device_of<B>>::type>;
  if (a.rank() != 1 || b.rank() != 1) detail::fail_rank("outer", a.shape(), b.shape(), 1);
  return Tensor<promote_t<value_of<A>, value_of<B>>, D>(detail::evaluated(a).unsqueeze(1) * detail::evaluated(b));
}

#define SITU_PRODUCT_REJECTIONS(NAME)                                                                                        \
  template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>> \
    requires(expression<A> && expression<B> && !on_same_device<A, B>)                                                        \
  void NAME(A const&, B const&) = delete;                                                                                    \
  template <class A, class B, class Error = error::bool_tensors_have_no_product__use_cast<value_of<A>, value_of<B>>>         \
    requires(detail::factors<A, B> && detail::bool_factors<A, B>)                                                            \
  void NAME(A const&, B const&) = delete;
SITU_PRODUCT_REJECTIONS(matmul)
SITU_PRODUCT_REJECTIONS(bmm)
SITU_PRODUCT_REJECTIONS(dot)
SITU_PRODUCT_REJECTIONS(outer)
#undef SITU_PRODUCT_REJECTIONS

}  // namespace situ::inline SITU_ABI
