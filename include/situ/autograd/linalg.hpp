/// Linear algebra of Variables: solve, inv, det, slogdet, cholesky.
///
/// Shapes, dtypes, devices and what is thrown are those of ops/linalg.hpp. Gradients need the same options and libraries.
/// Source    M. B. Giles, Collected matrix derivative results for forward and reverse mode algorithmic differentiation, 2008;
///           I. Murray, Differentiation of the Cholesky decomposition, arXiv:1602.07527, for that one's gradient.
#pragma once

#include <situ/autograd/matmul.hpp>
#include <situ/autograd/operands.hpp>
#include <situ/ops/matrix_parts.hpp>
#include <situ/ops/linalg.hpp>
#include <situ/ops/matmul.hpp>

namespace situ::inline SITU_ABI {
namespace error {
template <class... Ts>
struct this_operation_has_no_gradient__take_the_value_or_detach {};
}  // namespace error

namespace detail {

/// Operands that record, on a device that this build has linear algebra for.
template <class... Es>
concept recorded_matrices = recorded_operands<Es...> && !requires { typename linalg_obstacle<Es...>::type; };
template <class... Es>
concept recorded_no_matrices = recorded_operands<Es...> && requires { typename linalg_obstacle<Es...>::type; };

/// a x = b:   ∂L/∂b = a⁻ᵀ g,   ∂L/∂a = −(∂L/∂b) xᵀ
template <class T, class D, class DA, class DB>
struct SolveRule {
  using twice = void;
  Saved<T, DA> a;
  Saved<T, DB> b;  ///< for second derivatives
  Saved<T, D> x;
  bool vectors;

  template <class IntoA, class IntoB>
  void operator()(Variable<T, D> const& g, IntoA const& into_a, IntoB const& into_b) const {
    using V = Variable<T, D>;
    V const matrix = record_transfer<D>(a.variable());
    V const back = solve(matrix.transpose(-2, -1), vectors ? g.unsqueeze(-1) : g);
    if (into_b.needed()) into_b.add(vectors ? back.squeeze(-1) : back);
    if (!into_a.needed()) return;
    V const found = solve(matrix, record_transfer<D>(b.variable()));
    into_a.add(-matmul(back, (vectors ? found.unsqueeze(-1) : found).transpose(-2, -1)));
  }
  template <class IntoA, class IntoB>
  void operator()(Tensor<T, D> const& g, IntoA const& into_a, IntoB const& into_b) const {
    if (!into_a.needed() && !into_b.needed()) return;
    Tensor<T, D> const columns = vectors ? g.unsqueeze(-1) : g;
    Tensor<T, D> const back = solve(a.tensor().transpose(-2, -1), columns);
    if (into_b.needed()) into_b.add(vectors ? back.squeeze(-1) : back);
    if (into_a.needed()) into_a.add(matmul(-back, (vectors ? x.tensor().unsqueeze(-1) : x.tensor()).transpose(-2, -1)));
  }
};

/// y = x⁻¹:   ∂L/∂x = −yᵀ g yᵀ
template <class T, class D, class DX>
struct InverseRule {
  using twice = void;
  Saved<T, DX> x;  ///< for second derivatives
  Saved<T, D> y;
  template <class Into>
  void operator()(Variable<T, D> const& g, Into const& into) const {
    if (!into.needed()) return;
    Variable<T, D> const t = inv(record_transfer<D>(x.variable())).transpose(-2, -1);
    into.add(-matmul(matmul(t, g), t));
  }
  template <class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (!into.needed()) return;
    auto const t = y.tensor().transpose(-2, -1);
    into.add(matmul(matmul(-t, g), t));
  }
};

/// The cofactors of matrices, singular ones too: det(u) det(vᵀ) u diag(Πⱼ≠ᵢ sⱼ) vᵀ. NaN where a matrix holds NaN or infinity.
template <class T, class D>
Tensor<T, D> cofactors(Tensor<T, D> const& x) {
  Tensor<bool, D> const finite = all(isfinite(x), {-2, -1}, keepdim);
  auto const [u, s, vh] = svd(where(finite, x, 0));
  int64_t const n = x.shape().back();
  Tensor<T, D> const others = prod(where(eye<bool>(n, D{}), 1, s.unsqueeze(-2)), -1);
  Tensor<T, D> const signs = det(u) * det(vh);
  return where(finite, matmul(u * (others.unsqueeze(-2) * signs.unsqueeze(-1).unsqueeze(-1)), vh), std::numeric_limits<T>::quiet_NaN());
}
/// y = det x:   ∂L/∂x = g y x⁻ᵀ, which are g times the cofactors
template <class T, class D, class DX>
struct DeterminantRule {
  using twice = void;
  Saved<T, DX> x;
  Saved<T, D> y;
  template <class Into>
  void operator()(Variable<T, D> const& g, Into const& into) const {
    if (!into.needed()) return;
    Variable<T, D> const matrix = record_transfer<D>(x.variable());
    into.add((g * det(matrix)).unsqueeze(-1).unsqueeze(-1) * inv(matrix).transpose(-2, -1));
  }
  template <class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (!into.needed()) return;
    auto const each = [](auto const& v) { return v.unsqueeze(-1).unsqueeze(-1); };
    Tensor<T, D> inverse;
    try {
      inverse = inv(x.tensor());
    } catch (LinalgError const&) {  // there is a singular one among them
      return into.add(each(g) * cofactors(Tensor<T, D>(x.tensor())));
    }
    into.add(each(g) * each(y.tensor()) * inverse.transpose(-2, -1));
  }
};

/// y = log |det x|:   ∂L/∂x = g x⁻ᵀ
template <class T, class D, class DX>
struct LogDeterminantRule {
  using twice = void;
  Saved<T, DX> x;
  template <class Into>
  void operator()(Variable<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(g.unsqueeze(-1).unsqueeze(-1) * inv(record_transfer<D>(x.variable())).transpose(-2, -1));
  }
  template <class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(g.unsqueeze(-1).unsqueeze(-1) * inv(x.tensor()).transpose(-2, -1));
  }
};

/// x = l lᵀ:   ∂L/∂x = l⁻ᵀ Φ l⁻¹, with Φ the lower triangle of lᵀ g mirrored and halved, so that it is symmetric
template <class T, class D>
struct CholeskyRule {
  Saved<T, D> factor;
  bool upper;
  template <class Into>
  void operator()(Tensor<T, D> const& g_, Into const& into) const {
    if (!into.needed()) return;
    auto const as_lower = [&](Tensor<T, D> const& t) { return upper ? t.transpose(-2, -1) : t; };
    Tensor<T, D> const g = as_lower(g_), lt = as_lower(factor.tensor()).transpose(-2, -1);
    Tensor<T, D> const product = matmul(lt, g), strict = tril(product, -1);
    Tensor<T, D> const phi = (tril(product) + strict.transpose(-2, -1)) * 0.5;
    into.add(solve(lt, solve(lt, phi).transpose(-2, -1)));
  }
};

}  // namespace detail

/// The solution x of a x = b, where one of them records.
///
/// Gradient  ∂L/∂b = a⁻ᵀ g, ∂L/∂a = −(∂L/∂b) xᵀ: a solve with the transposed matrix, and a product. Twice differentiable.
template <class A, class B>
  requires detail::recorded_matrices<A, B>
auto solve(A const& a_, B const& b_) {
  using T = promote_t<value_of<A>, value_of<B>>;
  auto const a = detail::operation_input<T>(a_);
  auto const b = detail::operation_input<T>(b_);
  auto x = solve(a.value(), b.value());
  using D = device_of<decltype(x)>;
  using Rule = detail::SolveRule<T, D, device_of<decltype(a)>, device_of<decltype(b)>>;
  if (!detail::is_recording(a, b)) return Variable<T, D>(std::move(x), false);
  detail::Saved<T, D> const saved = a.requires_grad() ? detail::Saved<T, D>(x) : detail::Saved<T, D>();
  bool const vectors = detail::holds_vectors(a.shape(), b.shape());
  return detail::record("Solve", std::move(x), Rule{detail::saved_input(a), detail::saved_if(a.requires_grad(), b), saved, vectors}, a, b);
}

/// The inverse of square matrices.
///
/// Gradient  ∂L/∂x = −yᵀ g yᵀ: two products. Twice differentiable.
template <class E>
  requires detail::recorded_matrices<E>
auto inv(E const& x_) {
  auto const x = detail::recorded(x_);
  auto y = inv(x.value());
  using T = value_of<E>;
  using D = device_of<decltype(y)>;
  detail::Saved<T, D> const saved(y);
  return detail::record("Inverse", std::move(y), detail::InverseRule<T, D, device_of<decltype(x)>>{detail::saved_input(x), saved}, x);
}

/// The determinant.
///
/// Gradient  ∂L/∂x = g y x⁻ᵀ: an inverse; with singular matrices among them the cofactors, by singular values. Twice differentiable where none is singular.
template <class E>
  requires detail::recorded_matrices<E>
auto det(E const& x_) {
  auto const x = detail::recorded(x_);
  auto y = det(x.value());
  using T = value_of<E>;
  using D = device_of<decltype(y)>;
  detail::Saved<T, D> const saved(y);
  return detail::record("Det", std::move(y), detail::DeterminantRule<T, D, device_of<decltype(x)>>{detail::saved_input(x), saved}, x);
}

/// What slogdet gives: auto [sign, logabsdet] = slogdet(x).
template <class T, class D>
struct SlogdetVariable {
  Tensor<T, D> sign;
  Variable<T, D> logabsdet;
};
/// The determinant as its sign and the logarithm of its magnitude. The sign is constant.
///
/// Gradient  ∂L/∂x = g x⁻ᵀ: an inverse, which throws LinalgError where a matrix is singular. Twice differentiable.
template <class E>
  requires detail::recorded_matrices<E>
auto slogdet(E const& x_) {
  auto const x = detail::recorded(x_);
  auto [sign, logabsdet] = slogdet(x.value());
  using T = value_of<E>;
  using D = device_of<decltype(sign)>;
  return SlogdetVariable<T, D>{std::move(sign), detail::record("Slogdet", std::move(logabsdet), detail::LogDeterminantRule<T, D, device_of<decltype(x)>>{detail::saved_input(x)}, x)};
}

/// The Cholesky factor of symmetric positive definite matrices.
///
/// Gradient  symmetric, as PyTorch's: l⁻ᵀ Φ l⁻¹ with Φ = ½ (tril(lᵀ g) + its strict lower triangle, transposed).
template <class E>
  requires detail::recorded_matrices<E>
auto cholesky(E const& x_, TriangleOptions const& options = {}) {
  auto const x = detail::recorded(x_);
  auto y = cholesky(x.value(), options);
  using T = value_of<E>;
  using D = device_of<decltype(y)>;
  detail::Saved<T, D> const saved(y);
  return detail::record("Cholesky", std::move(y), detail::CholeskyRule<T, D>{saved, options.upper}, x);
}

/// matrix_rank reads the values: it has no gradient.
template <class E>
  requires detail::recorded_matrices<E>
auto matrix_rank(E const& x, RankOptions const& options = {}) {
  return matrix_rank(detail::values_of(x), options);
}

// What has no gradient here says so, and what to do.
#define SITU_NO_GRADIENT(RESULT, NAME, ...)                                                                      \
  template <class E, class Error = error::this_operation_has_no_gradient__take_the_value_or_detach<value_of<E>>> \
    requires differentiable<E>                                                                                   \
  RESULT<value_of<E>, device_of<E>> NAME(E const& x __VA_OPT__(, ) __VA_ARGS__) = delete;
SITU_NO_GRADIENT(QrResult, qr, QrOptions const& options = {})
SITU_NO_GRADIENT(SvdResult, svd, SvdOptions const& options = {})
SITU_NO_GRADIENT(Tensor, svdvals)
SITU_NO_GRADIENT(EighResult, eigh, TriangleOptions const& options = {})
SITU_NO_GRADIENT(Tensor, eigvalsh, TriangleOptions const& options = {})
SITU_NO_GRADIENT(Tensor, pinv, RankOptions const& options = {})
#undef SITU_NO_GRADIENT
template <class A, class B, class Error = error::this_operation_has_no_gradient__take_the_value_or_detach<value_of<A>, value_of<B>>>
  requires((differentiable<A> && any_formula<B>) || (any_formula<A> && differentiable<B>))
LstsqResult<value_of<A>, device_of<A>> lstsq(A const& a, B const& b, RankOptions const& options = {}) = delete;

#define SITU_NO_RECORDED_MATRIX(NAME)                                          \
  template <class E, class Error = detail::linalg_obstacle_of<E>>              \
    requires detail::recorded_no_matrices<E>                                   \
  Variable<value_of<E>, device_of<E>> NAME(E const&, auto const&...) = delete;
SITU_NO_RECORDED_MATRIX(inv)
SITU_NO_RECORDED_MATRIX(det)
SITU_NO_RECORDED_MATRIX(slogdet)
SITU_NO_RECORDED_MATRIX(cholesky)
SITU_NO_RECORDED_MATRIX(matrix_rank)
#undef SITU_NO_RECORDED_MATRIX
template <class A, class B, class Error = detail::linalg_obstacle_of<A, B>>
  requires detail::recorded_no_matrices<A, B>
Variable<value_of<A>, device_of<A>> solve(A const&, B const&) = delete;
template <class A, class B, class Error = detail::different_devices_of<A, B>>
  requires detail::strange_recorded_operands<A, B>
void solve(A const&, B const&) = delete;

}  // namespace situ::inline SITU_ABI
