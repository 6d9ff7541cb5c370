/// Linear algebra: systems of equations, inverses, determinants and decompositions of matrices.
///
///     x = solve(a, b)      auto [q, r] = qr(a)      auto [u, s, vh] = svd(a)      auto [eigenvalues, eigenvectors] = eigh(a)
///
/// Shape     the last two axes are the rows and columns of a matrix, the leading ones a batch of them; results are contiguous.
/// Dtype     float and double; other types do not compile. Both operands of one operation promote.
/// Device    runs where x lives. Cpu, Pinned and Emulated<N> use LAPACK, in builds with SITU_WITH_LAPACK (without it, a call does
///           not compile and says so). Cuda<N> uses cuSOLVER and cuBLAS, loaded at the first call; a tensor needs no nvcc, an
///           expression as argument does, and so do pinv, matrix_rank and lstsq. What can fail waits for the device, to say so.
/// Throws    ShapeError for shapes that do not fit; LinalgError for a singular or indefinite matrix, for an iteration that did not
///           converge, and for NaN or infinity where an iteration would not end (LAPACK): it names the place in the batch.
/// Cost      the argument is read once, into memory that the routine then works in; an expression is evaluated straight into it. On
///           Cuda batches of matrices up to 256 x 256 go into one call (eigh and svd: up to 32 x 32, by Jacobi's method).
/// Source    Anderson et al., LAPACK Users' Guide, 3rd edition, 1999; the names are those of the array API, the semantics PyTorch's.
#pragma once

#include <situ/ops/cpu/lapack.hpp>
#include <situ/ops/cuda/linalg.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/ops/reduce.hpp>

namespace situ::inline SITU_ABI {

/// a = q r.
template <class T, class D>
struct QrResult {
  Tensor<T, D> q, r;
};
/// a = u diag(s) vh.
template <class T, class D>
struct SvdResult {
  Tensor<T, D> u, s, vh;
};
/// a v = v diag(eigenvalues), where v = eigenvectors.
template <class T, class D>
struct EighResult {
  Tensor<T, D> eigenvalues, eigenvectors;
};
/// det = sign exp(logabsdet).
template <class T, class D>
struct SlogdetResult {
  Tensor<T, D> sign, logabsdet;
};
template <class T, class D>
struct LstsqResult {
  Tensor<T, D> solution, residuals;
  Tensor<int64_t, D> rank;
  Tensor<T, D> singular_values;
};

struct QrOptions {
  bool complete = false;  ///< q is square
};
struct SvdOptions {
  bool full_matrices = true;  ///< u and vh are square
};
/// Which triangle is meant: the lower one, or the upper one. The other one is not read.
struct TriangleOptions {
  bool upper = false;
};
struct RankOptions {
  double rtol = -1;  ///< singular values up to rtol times the largest count as 0; below 0: max(rows, columns) times epsilon
};

namespace detail {
inline namespace SITU_ABI_LAPACK {
inline namespace SITU_ABI_CUDA {

template <class L, class R>
struct linalg_pair_obstacle
    : std::conditional_t<on_same_device<L, R>, linalg_obstacle<L, R>, different_devices<operand_device_t<L>, operand_device_t<R>>> {};
template <class L, class R>
using linalg_pair_obstacle_of = typename linalg_pair_obstacle<L, R>::type;

/// A fresh tensor with the values of an expression, broadcast to its shape.
template <class T, class D, class E>
Tensor<T, D> fresh(Shape const& shape, E const& e, char const* who) {
  auto result = Tensor<T, D>::uninitialized(shape, who);
  if (result.size() > 0) Linalg<D>::write(result, e);
  return result;
}
template <class E>
using fresh_t = Tensor<value_of<E>, result_device_t<device_of<E>>>;
/// The matrices of an expression as LAPACK sees them transposed.
template <class E>
fresh_t<E> fresh_rows(E const& e, char const* who) {
  return fresh<value_of<E>, result_device_t<device_of<E>>>(e.shape(), e, who);
}
/// The matrices of x, as LAPACK sees them: a tensor of their columns, with room for more.
template <class T, class D, class E>
Tensor<T, D> fresh_columns(E const& x, MatrixShape const& shape, int64_t room, char const* who) {
  auto result = Tensor<T, D>::uninitialized(with_axes(shape.batch, room, shape.rows), who);
  if (product(shape.batch) * shape.rows * shape.columns > 0) Linalg<D>::write(result.slice(-2, 0, shape.columns).transpose(-2, -1), x);
  return result;
}
/// The matrices of x transposed, contiguous.
template <class T, class D>
Tensor<T, D> transposed_copy(Tensor<T, D> const& x, char const* who) {
  auto const view = x.transpose(-2, -1);
  return fresh<T, D>(view.shape(), view, who);
}

template <class T>
double rank_tolerance(RankOptions const& options, MatrixShape const& shape) {
  constexpr double epsilon = sizeof(T) == 4 ? 0x1p-23 : 0x1p-52;
  return options.rtol >= 0 ? options.rtol : epsilon * static_cast<double>(shape.rows > shape.columns ? shape.rows : shape.columns);
}

/// Whether a right side holds one vector for each matrix, rather than matrices: as PyTorch tells them apart.
inline bool holds_vectors(Shape const& a, Shape const& b) {
  return b.rank() == 1 || (b.rank() == a.rank() - 1 && b == Shape(a.data(), a.rank() - 1));
}

/// The batch of a result, and whether the right side fits the rows of the matrix.
inline Shape common_batch(MatrixShape const& as, Shape const& a, Shape const& b, bool vectors, char const* who) {
  int const own_axes = vectors ? 1 : 2;
  int64_t const rows = b[b.rank() - own_axes];
  if (rows != as.rows) fail<ShapeError>(who, ": shapes ", a, " and ", b, " do not fit: the matrix has ", as.rows, as.rows == 1 ? " row" : " rows", ", the right side ", rows);
  return broadcast(as.batch, Shape(b.data(), b.rank() - own_axes), who);
}

template <class E>
SvdResult<value_of<E>, result_device_t<device_of<E>>> svd_of(E const& x, char job, char const* who) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  MatrixShape const shape(x.shape(), who);
  int64_t const k = shape.smaller();
  auto s = Tensor<T, D>::uninitialized(with_axes(shape.batch, k), who);
  Tensor<T, D> u, vh;
  if (job != 'N') {
    u = Tensor<T, D>::uninitialized(with_axes(shape.batch, shape.rows, job == 'A' ? shape.rows : k), who);
    vh = Tensor<T, D>::uninitialized(with_axes(shape.batch, job == 'A' ? shape.columns : k, shape.columns), who);
  }
  MatrixReports<D> const reports(shape.batch);
  Linalg<D>::svd(fresh_rows(x, who), s, u, vh, job, reports);
  reports.check(who, words_of_convergence);
  return {u, s, vh};
}

template <class E>
EighResult<value_of<E>, result_device_t<device_of<E>>> eigh_of(E const& x, bool upper, bool vectors, char const* who) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  MatrixShape const shape = square_shape(x.shape(), who);
  auto values = Tensor<T, D>::uninitialized(with_axes(shape.batch, shape.rows), who);
  auto a = fresh_rows(x, who);
  MatrixReports<D> const reports(shape.batch);
  Linalg<D>::eigh(a, values, upper, vectors, reports);
  reports.check(who, words_of_convergence);
  if (!vectors) return {values, {}};
  return {values, transposed_copy(a, who)};
}

}  // namespace SITU_ABI_CUDA
}  // namespace SITU_ABI_LAPACK
}  // namespace detail

inline namespace SITU_ABI_LAPACK {

// The twins that tell why a call does not compile. They have results, so that there is nothing else to complain about.
#define SITU_NO_MATRIX(RESULT, NAME, ...)                                               \
  template <class E, class Error = detail::linalg_obstacle_of<E>>                       \
    requires expression<E>                                                              \
  RESULT<value_of<E>, device_of<E>> NAME(E const& x __VA_OPT__(, ) __VA_ARGS__) = delete;
#define SITU_NO_PAIR(RESULT, NAME, ...)                                                 \
  template <class A, class B, class Error = detail::linalg_pair_obstacle_of<A, B>>      \
    requires expression<A> && expression<B>                                             \
  RESULT<value_of<A>, device_of<A>> NAME(A const& a, B const& b __VA_OPT__(, ) __VA_ARGS__) = delete;

/// The solution x of a x = b.
///
/// Shape     (..., n, n) and (..., n, k) → (..., n, k); the leading axes broadcast, and a matrix that serves several right sides
///           is factored once. b is one vector, or one for each matrix: (..., n, n) and (..., n) → (..., n), where b has one
///           axis, or has the shape of a without its last axis.
/// Throws    ShapeError; LinalgError when a matrix is singular (a pivot of 0: a nearly singular one gives large numbers).
/// Special   NaN in, NaN out.
/// Cost      2/3 n³ + 2 n² k: LU with partial pivoting (getrf, getrs). Waits for the device.
/// Gradient  ∂b = a⁻ᵀ ∂x,  ∂a = −∂b xᵀ.
template <class A, class B>
  requires(detail::matrices<A, B> && on_same_device<A, B>)
auto solve(A const& a, B const& b) {
  using T = promote_t<value_of<A>, value_of<B>>;
  using D = detail::result_device_t<typename detail::common_device<device_of<A>, device_of<B>>::type>;
  auto const as = detail::square_shape(a.shape(), "solve");
  if (b.rank() == 0) detail::fail<ShapeError>("solve: the right side has shape []: a vector has 1 axis, a matrix 2");
  bool const vectors = detail::holds_vectors(a.shape(), b.shape());
  Shape const batch = detail::common_batch(as, a.shape(), b.shape(), vectors, "solve");
  int64_t const columns = vectors ? 1 : b.shape().back();
  Shape const shape = vectors ? detail::with_axes(batch, as.rows) : detail::with_axes(batch, as.rows, columns);

  auto const factors = detail::fresh<T, D>(a.shape(), a, "solve");
  auto x = vectors ? detail::fresh<T, D>(shape, b, "solve").unsqueeze(-2)
                   : detail::fresh_columns<T, D>(b, detail::MatrixShape(shape, "solve"), columns, "solve");
  detail::MatrixReports<D> const reports(as.batch);
  detail::Linalg<D>::solve(factors, x, reports);
  reports.check("solve", detail::words_of_singular);
  return vectors ? x.squeeze(-2) : detail::transposed_copy(x, "solve");
}
SITU_NO_PAIR(Tensor, solve)

/// The inverse of square matrices. To solve a x = b, solve(a, b) is faster and more accurate.
///
/// Shape     (..., n, n) → the same.
/// Throws    ShapeError; LinalgError when a matrix is singular.
/// Cost      2 n³ (getrf, getri). Waits for the device.
/// Gradient  ∂x = −yᵀ ∂y yᵀ.
template <class E>
  requires detail::matrices<E>
auto inv(E const& x) {
  auto const shape = detail::square_shape(x.shape(), "inv");
  detail::MatrixReports<detail::result_device_t<device_of<E>>> const reports(shape.batch);
  auto const result = detail::Linalg<detail::result_device_t<device_of<E>>>::inverse(detail::fresh_rows(x, "inv"), reports);
  reports.check("inv", detail::words_of_singular);
  return result;
}
SITU_NO_MATRIX(Tensor, inv)

/// The determinant: 0 of a singular matrix, 1 of an empty one. It is often beyond what T holds: see slogdet.
///
/// Shape     (..., n, n) → (...).
/// Cost      2/3 n³ (getrf). Enqueued on the host's devices; waits on Cuda.
/// Gradient  ∂x = ∂y y x⁻ᵀ.
template <class E>
  requires detail::matrices<E>
auto det(E const& x) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  auto const shape = detail::square_shape(x.shape(), "det");
  auto result = Tensor<T, D>::uninitialized(shape.batch, "det");
  detail::Linalg<D>::determinant(detail::fresh_rows(x, "det"), result.data(), static_cast<T*>(nullptr), static_cast<T*>(nullptr));
  return result;
}
SITU_NO_MATRIX(Tensor, det)

/// The determinant as its sign and the logarithm of its magnitude: 0 and −inf of a singular matrix.
///
/// Shape     (..., n, n) → two times (...).
/// Cost      as det.
/// Gradient  ∂x = ∂logabsdet x⁻ᵀ; none of the sign.
template <class E>
  requires detail::matrices<E>
auto slogdet(E const& x) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  auto const shape = detail::square_shape(x.shape(), "slogdet");
  SlogdetResult<T, D> result{Tensor<T, D>::uninitialized(shape.batch, "slogdet"), Tensor<T, D>::uninitialized(shape.batch, "slogdet")};
  detail::Linalg<D>::determinant(detail::fresh_rows(x, "slogdet"), static_cast<T*>(nullptr), result.sign.data(), result.logabsdet.data());
  return result;
}
SITU_NO_MATRIX(SlogdetResult, slogdet)

/// The Cholesky factor of symmetric positive definite matrices: x = l lᵀ, or under {.upper = true} x = uᵀ u.
///
/// Shape     (..., n, n) → the same; the other triangle is 0. Only the triangle that is asked for is read.
/// Throws    ShapeError; LinalgError when a matrix is not positive definite; on the host also for NaN.
/// Cost      1/3 n³ (potrf). Waits for the device.
template <class E>
  requires detail::matrices<E>
auto cholesky(E const& x, TriangleOptions const& options = {}) {
  auto const shape = detail::square_shape(x.shape(), "cholesky");
  detail::MatrixReports<detail::result_device_t<device_of<E>>> const reports(shape.batch);
  auto const result = detail::fresh_rows(x, "cholesky");
  detail::Linalg<detail::result_device_t<device_of<E>>>::cholesky(result, options.upper, reports);
  reports.check("cholesky", detail::words_of_indefinite);
  return result;
}
SITU_NO_MATRIX(Tensor, cholesky, TriangleOptions const& options = {})

/// x = q r: q has orthonormal columns, r is 0 below its diagonal (whose signs are LAPACK's).
///
/// Shape     (..., m, n) → q (..., m, k), r (..., k, n), k = min(m, n); under {.complete = true} k = m.
/// Cost      4 m n k: Householder reflections (geqrf, orgqr). Enqueued.
template <class E>
  requires detail::matrices<E>
auto qr(E const& x, QrOptions const& options = {}) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  detail::MatrixShape const shape(x.shape(), "qr");
  int64_t const k = options.complete ? shape.rows : shape.smaller();
  auto columns = detail::fresh_columns<T, D>(x, shape, k > shape.columns ? k : shape.columns, "qr");
  auto r = Tensor<T, D>::uninitialized(detail::with_axes(shape.batch, k, shape.columns), "qr");
  detail::Linalg<D>::qr(columns, r, k);
  return QrResult<T, D>{detail::transposed_copy(columns.slice(-2, 0, k), "qr"), r};
}
SITU_NO_MATRIX(QrResult, qr, QrOptions const& options = {})

/// x = u diag(s) vh: u and v have orthonormal columns, s falls and is not negative.
///
/// Shape     (..., m, n) → u (..., m, m), s (..., k), vh (..., n, n), k = min(m, n); under {.full_matrices = false}
///           u (..., m, k), vh (..., k, n), and x = matmul(u * s.unsqueeze(-2), vh).
/// Throws    ShapeError; LinalgError for NaN and infinity (LAPACK), and when the iteration does not converge.
/// Special   the signs of a column of u and of the row of vh beside it are free: they differ between libraries.
/// Cost      divide and conquer (gesdd); QR iteration on Cuda (gesvd). Waits for the device.
template <class E>
  requires detail::matrices<E>
auto svd(E const& x, SvdOptions const& options = {}) {
  return detail::svd_of(x, options.full_matrices ? 'A' : 'S', "svd");
}
SITU_NO_MATRIX(SvdResult, svd, SvdOptions const& options = {})

/// The singular values alone, (..., min(m, n)), falling.
template <class E>
  requires detail::matrices<E>
auto svdvals(E const& x) {
  return detail::svd_of(x, 'N', "svdvals").s;
}
SITU_NO_MATRIX(Tensor, svdvals)

/// Eigenvalues, rising, and orthonormal eigenvectors of symmetric matrices, of which one triangle is read.
///
/// Shape     (..., n, n) → eigenvalues (..., n), eigenvectors (..., n, n), one in each column.
/// Throws    ShapeError; LinalgError for NaN and infinity (LAPACK), and when the iteration does not converge.
/// Special   the sign of an eigenvector is free: it differs between libraries.
/// Cost      about 9 n³: divide and conquer (syevd). Waits for the device.
template <class E>
  requires detail::matrices<E>
auto eigh(E const& x, TriangleOptions const& options = {}) {
  return detail::eigh_of(x, options.upper, true, "eigh");
}
SITU_NO_MATRIX(EighResult, eigh, TriangleOptions const& options = {})

/// The eigenvalues alone, (..., n), rising.
template <class E>
  requires detail::matrices<E>
auto eigvalsh(E const& x, TriangleOptions const& options = {}) {
  return detail::eigh_of(x, options.upper, false, "eigvalsh").eigenvalues;
}
SITU_NO_MATRIX(Tensor, eigvalsh, TriangleOptions const& options = {})

/// How many singular values are greater than rtol times the largest; int64.
///
/// Shape     (..., m, n) → (...). Throws and Cost as svdvals.
template <class E>
  requires detail::matrices<E>
auto matrix_rank(E const& x, RankOptions const& options = {}) {
  double const rtol = detail::rank_tolerance<value_of<E>>(options, detail::MatrixShape(x.shape(), "matrix_rank"));
  auto const s = detail::svd_of(x, 'N', "matrix_rank").s;
  return sum(s > s.slice(-1, 0, 1) * rtol, -1);
}
SITU_NO_MATRIX(Tensor, matrix_rank, RankOptions const& options = {})

/// The Moore–Penrose inverse: v diag(1/s) uᵀ, over the singular values greater than rtol times the largest.
///
/// Shape     (..., m, n) → (..., n, m). Throws and Cost as svd.
template <class E>
  requires detail::matrices<E>
auto pinv(E const& x, RankOptions const& options = {}) {
  double const rtol = detail::rank_tolerance<value_of<E>>(options, detail::MatrixShape(x.shape(), "pinv"));
  auto const [u, s, vh] = detail::svd_of(x, 'S', "pinv");
  auto const inverted = where(s > s.slice(-1, 0, 1) * rtol, reciprocal(s), 0);
  return matmul(vh.transpose(-2, -1) * inverted.unsqueeze(-2), u.transpose(-2, -1));
}
SITU_NO_MATRIX(Tensor, pinv, RankOptions const& options = {})

/// The least squares solution: the x of least norm among those that make |a x − b|₂ least.
///
/// Shape     (..., m, n) and (..., m, k) → solution (..., n, k), rank (...), singular_values (..., min(m, n)); residuals
///           Σ(a x − b)² over the rows, (..., k), where m > n and every matrix has rank n, else empty, [0]. The leading axes
///           broadcast. b may hold vectors, as for solve: solution (..., n), residuals (...).
/// Throws    as svd.
/// Cost      svd and two products. Waits for the device.
template <class A, class B>
  requires(detail::matrices<A, B> && on_same_device<A, B>)
auto lstsq(A const& a, B const& b, RankOptions const& options = {}) {
  using T = promote_t<value_of<A>, value_of<B>>;
  using D = detail::result_device_t<typename detail::common_device<device_of<A>, device_of<B>>::type>;
  detail::MatrixShape const as(a.shape(), "lstsq");
  if (b.rank() == 0) detail::fail<ShapeError>("lstsq: the right side has shape []: a vector has 1 axis, a matrix 2");
  bool const vectors = detail::holds_vectors(a.shape(), b.shape());
  detail::common_batch(as, a.shape(), b.shape(), vectors, "lstsq");

  auto const matrix = detail::converted<T>(detail::evaluated(a));
  auto const right = detail::converted<T>(detail::evaluated(b));
  auto const columns = vectors ? right.unsqueeze(-1) : right;
  auto const [u, s, vh] = detail::svd_of(matrix, 'S', "lstsq");
  double const rtol = detail::rank_tolerance<T>(options, as);
  auto const divisors = s.unsqueeze(-1);
  auto const parts = matmul(u.transpose(-2, -1), columns);
  Tensor<T, D> solution = matmul(vh.transpose(-2, -1), where(divisors > divisors.slice(-2, 0, 1) * rtol, parts / divisors, 0));  // 1 / s may be infinite

  LstsqResult<T, D> result{vectors ? solution.squeeze(-1) : solution, {}, sum(s > s.slice(-1, 0, 1) * rtol, -1), s};
  if (as.rows > as.columns && (result.rank.size() == 0 || min(result.rank).item() == as.columns)) {
    Tensor<T, D> residuals = sum(square(matmul(matrix, solution) - columns), -2);
    result.residuals = vectors ? residuals.squeeze(-1) : residuals;
  }
  return result;
}
SITU_NO_PAIR(LstsqResult, lstsq, RankOptions const& options = {})

#undef SITU_NO_MATRIX
#undef SITU_NO_PAIR

}  // namespace SITU_ABI_LAPACK
}  // namespace situ::inline SITU_ABI
