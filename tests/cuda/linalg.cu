#include <doctest/doctest.h>

#include <cublas_v2.h>
#include <cusolverDn.h>

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda/prototypes.hpp>
#include <ops/expected/linalg.hpp>
#include <situ/device/graph.hpp>
#include <situ/ops/linalg.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::linalg_cases;
using situ_test::LinalgCase;
using Gpu = Cuda<0>;

namespace {

// ---- the prototypes that situ writes by hand are those of the libraries -----------------------------------------------

#define SITU_SAME(OURS, THEIRS) static_assert(situ_test::called_alike<decltype(OURS), decltype(&THEIRS)>)
#define SITU_SAME_FOR(T, P)                                                             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getrf_size, cusolverDn##P##getrf_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getrf, cusolverDn##P##getrf);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getrs, cusolverDn##P##getrs);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::potrf_size, cusolverDn##P##potrf_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::potrf, cusolverDn##P##potrf);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::geqrf_size, cusolverDn##P##geqrf_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::geqrf, cusolverDn##P##geqrf);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::orgqr_size, cusolverDn##P##orgqr_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::orgqr, cusolverDn##P##orgqr);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::gesvd_size, cusolverDn##P##gesvd_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::gesvd, cusolverDn##P##gesvd);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::syevd_size, cusolverDn##P##syevd_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::syevd, cusolverDn##P##syevd);             \
  SITU_SAME(detail::cuda::SolverFunctions<T>::potrf_batched, cusolverDn##P##potrfBatched); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::syevj_size, cusolverDn##P##syevjBatched_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::syevj_batched, cusolverDn##P##syevjBatched); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::gesvdj_size, cusolverDn##P##gesvdjBatched_bufferSize); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::gesvdj_batched, cusolverDn##P##gesvdjBatched); \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getrf_batched, cublas##P##getrfBatched);  \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getrs_batched, cublas##P##getrsBatched);  \
  SITU_SAME(detail::cuda::SolverFunctions<T>::getri_batched, cublas##P##getriBatched);  \
  SITU_SAME(detail::cuda::SolverFunctions<T>::geqrf_batched, cublas##P##geqrfBatched);  \
  SITU_SAME(detail::cuda::SolverFunctions<T>::geam, cublas##P##geam);                   \
  SITU_SAME(detail::cuda::SolverFunctions<T>::pack_triangle, cublas##P##trttp);         \
  SITU_SAME(detail::cuda::SolverFunctions<T>::unpack_triangle, cublas##P##tpttr)
SITU_SAME_FOR(float, S);
SITU_SAME_FOR(double, D);
SITU_SAME(detail::cuda::SolverFunctions<float>::copy, cublasScopy_v2);
SITU_SAME(detail::cuda::SolverFunctions<double>::copy, cublasDcopy_v2);
SITU_SAME(detail::cuda::SolverLibrary::create, cusolverDnCreate);
SITU_SAME(detail::cuda::SolverLibrary::set_stream, cusolverDnSetStream);
SITU_SAME(detail::cuda::SolverLibrary::syevj_options_create, cusolverDnCreateSyevjInfo);
SITU_SAME(detail::cuda::SolverLibrary::syevj_options_destroy, cusolverDnDestroySyevjInfo);
SITU_SAME(detail::cuda::SolverLibrary::gesvdj_options_create, cusolverDnCreateGesvdjInfo);
SITU_SAME(detail::cuda::SolverLibrary::gesvdj_options_destroy, cusolverDnDestroyGesvdjInfo);
static_assert(detail::cuda::fill_lower == CUBLAS_FILL_MODE_LOWER && detail::cuda::fill_upper == CUBLAS_FILL_MODE_UPPER);
static_assert(detail::cuda::as_it_is == CUBLAS_OP_N && detail::cuda::as_its_transpose == CUBLAS_OP_T);
static_assert(detail::cuda::values_alone == CUSOLVER_EIG_MODE_NOVECTOR && detail::cuda::values_and_vectors == CUSOLVER_EIG_MODE_VECTOR);

// ---- values -----------------------------------------------------------------------------------------------------------

using Numbers = std::vector<double>;

template <class T>
Tensor<T> matrix(int64_t rows, int64_t columns, Numbers const& values) {
  return Tensor<double>(values, {rows, columns}).to<T>();
}

/// The largest difference, relative to the largest expected value or 1; infinite where the shapes differ.
template <class T>
double error_of(Tensor<T, Gpu> const& got, Shape const& shape, Numbers const& expected) {
  if (!(got.shape() == shape) || !got.is_contiguous()) return HUGE_VAL;
  std::vector<T> const values = got.to_vector();
  double scale = 1, error = 0;
  for (double v : expected) scale = std::fmax(scale, std::fabs(v));
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const difference = std::fabs(static_cast<double>(values[k]) - expected[k]);
    error = situ_test::worse(error, difference);
  }
  return error / scale;
}

/// a b, by plain loops on the host.
template <class T>
Tensor<double> product(Tensor<T, Gpu> const& a_, Tensor<T, Gpu> const& b_) {
  Tensor<double> const a = a_.cpu().template to<double>(), b = b_.cpu().template to<double>();
  return sum(a.unsqueeze(2) * b.unsqueeze(0), 1);
}
Numbers numbers(Tensor<double> const& x) { return x.contiguous().to_vector(); }

template <class T>
bool close(Tensor<double> const& got, Tensor<double> const& expected, double tolerance) {
  if (!(got.shape() == expected.shape())) return false;
  return got.size() == 0 || max(abs(got - expected)).item() <= tolerance * std::fmax(1.0, max(abs(expected)).item());
}
template <class T>
bool orthonormal(Tensor<T, Gpu> const& q, double tolerance) {
  return close<T>(product(Tensor<T, Gpu>(q.t()), q), eye<double>(q.size(1)), tolerance);
}

template <class T>
Tensor<T, Gpu> laid_out(Tensor<T> const& x, int layout) {
  int64_t const m = x.size(0), n = x.size(1);
  switch (layout) {
    case 1: return x.t().contiguous().to(Gpu{}).t();
    case 2: {
      auto wide = full<T>({2 * m + 1, 3 * n + 2}, T(NAN));
      wide(range(1, end(), 2), range(1, 3 * n + 1, 3)) = x;
      return wide.to(Gpu{})(range(1, end(), 2), range(1, 3 * n + 1, 3));
    }
    case 3: return Tensor<T>(x.flip(0).flip(1)).contiguous().to(Gpu{}).flip(0).flip(1);
    default: return x.to(Gpu{});
  }
}

template <class T>
void check_case(LinalgCase const& c, Tensor<T, Gpu> const& a, Tensor<T, Gpu> const& b) {
  double const eps = sizeof(T) == 4 ? 5e-5 : 1e-12;
  int64_t const m = c.rows, n = c.columns, k = m < n ? m : n;
  Tensor<double> const given = matrix<double>(m, n, c.a);
  if (m == n) {
    CHECK(error_of(det(a), {}, {c.det}) < eps);
    if (c.rank == n) {
      auto const [sign, logabsdet] = slogdet(a);
      CHECK(error_of(sign, {}, {c.sign}) == 0);
      CHECK(error_of(logabsdet, {}, {c.logabsdet}) < eps);
      CHECK(error_of(inv(a), {n, n}, c.inverse) < eps);
      CHECK(error_of(solve(a, b), {n, 2}, c.solution) < eps);
      CHECK(error_of(solve(a, b.select(1, 1)), {n}, numbers(matrix<double>(n, 2, c.solution).select(1, 1))) < eps);
    } else {
      CHECK_THROWS_AS((void)inv(a), LinalgError);
      CHECK_THROWS_AS((void)solve(a, b), LinalgError);
    }
  }
  if (!c.eigenvalues.empty()) {
    for (bool const upper : {false, true}) {
      auto const [values, vectors] = eigh(a, {.upper = upper});
      CHECK(error_of(values, {n}, c.eigenvalues) < eps);
      CHECK(orthonormal(vectors, eps));
      CHECK(close<T>(product(a, vectors), Tensor<double>(vectors.cpu().template to<double>() * Tensor<double>(c.eigenvalues)), eps));
      CHECK(error_of(eigvalsh(a, {.upper = upper}), {n}, c.eigenvalues) < eps);
      if (!c.cholesky.empty()) {
        Tensor<double> const lower = matrix<double>(n, n, c.cholesky);
        CHECK(error_of(cholesky(a, {.upper = upper}), {n, n}, numbers(upper ? Tensor<double>(lower.t()) : lower)) < eps);
      } else {
        CHECK_THROWS_AS((void)cholesky(a, {.upper = upper}), LinalgError);
      }
    }
  }
  for (bool const whole : {false, true}) {
    auto const [q, r] = qr(a, {.complete = whole});
    CHECK(q.shape() == Shape{m, whole ? m : k});
    CHECK(r.shape() == Shape{whole ? m : k, n});
    CHECK(orthonormal(q, eps));
    CHECK(close<T>(product(q, r), given, eps));
    auto const triangle = r.cpu();
    for (int64_t i = 0; i < triangle.size(0); ++i) {
      for (int64_t j = 0; j < i && j < n; ++j) CHECK(triangle(i, j) == 0);
    }
    auto const [u, s, vh] = svd(a, {.full_matrices = whole});
    CHECK(u.shape() == Shape{m, whole ? m : k});
    CHECK(vh.shape() == Shape{whole ? n : k, n});
    CHECK(error_of(s, {k}, c.singular_values) < eps);
    CHECK(orthonormal(u, eps));
    CHECK(orthonormal(Tensor<T, Gpu>(vh.t()), eps));
    Tensor<T, Gpu> const scaled = Tensor<T>(u.cpu().slice(1, 0, k) * s.cpu()).to(Gpu{});
    CHECK(close<T>(product(scaled, Tensor<T, Gpu>(vh.slice(0, 0, k))), given, eps));
  }
  CHECK(error_of(svdvals(a), {k}, c.singular_values) < eps);
}

}  // namespace

TEST_CASE_TEMPLATE("matrices of any layout give on a GPU what NumPy gives", T, float, double) {
  for (LinalgCase const& c : linalg_cases()) {
    CAPTURE(c.name);
    for (int layout = 0; layout < 4; ++layout) {
      CAPTURE(layout);
      check_case(c, laid_out(matrix<T>(c.rows, c.columns, c.a), layout), laid_out(matrix<T>(c.rows, 2, c.b), layout));
    }
  }
}

TEST_CASE("on a GPU a batch gives what its matrices give one by one, also where it goes into one call") {
  struct Case {
    std::int64_t count, rows, columns;
  };
  for (Case const& c : {Case{3, 5, 5}, Case{70, 3, 3}, Case{4, 40, 40}, Case{2, 300, 300}, Case{5, 7, 4}, Case{5, 4, 7}, Case{3, 50, 20}, Case{3, 20, 50}}) {
    CAPTURE(c.count);
    CAPTURE(c.rows);
    CAPTURE(c.columns);
    auto host = zeros<double>({c.count, c.rows, c.columns});
    for (std::int64_t k = 0; k < host.size(); ++k) host.data()[k] = std::sin(static_cast<double>(k * k % 1009 + 3 * k)) + (k % (c.columns + 1) == 0 ? 2.0 : 0.0);
    auto const a = host.to(Gpu{});
    std::vector<QrResult<double, Gpu>> qrs{qr(a), qr(a, {.complete = true})};
    std::vector<SvdResult<double, Gpu>> svds{svd(a), svd(a, {.full_matrices = false})};
    auto const values = svdvals(a);
    for (std::int64_t i = 0; i < c.count; i += c.count > 10 ? 13 : 1) {
      CAPTURE(i);
      auto const one = a.select(0, i);
      for (int whole : {0, 1}) {
        auto const& [q, r] = qrs[static_cast<std::size_t>(whole)];
        CHECK(orthonormal(Tensor<double, Gpu>(q.select(0, i)), 1e-11));
        CHECK(close<double>(product(Tensor<double, Gpu>(q.select(0, i)), Tensor<double, Gpu>(r.select(0, i))), host.select(0, i), 1e-11));
        auto const& [u, s, vh] = svds[static_cast<std::size_t>(1 - whole)];
        std::int64_t const k = s.size(1);
        CHECK(orthonormal(Tensor<double, Gpu>(u.select(0, i)), 1e-11));
        CHECK(orthonormal(Tensor<double, Gpu>(vh.select(0, i).t()), 1e-11));
        Tensor<double, Gpu> const scaled = Tensor<double>(u.select(0, i).cpu().slice(1, 0, k) * s.select(0, i).cpu()).to(Gpu{});
        CHECK(close<double>(product(scaled, Tensor<double, Gpu>(vh.select(0, i).slice(0, 0, k))), host.select(0, i), 1e-11));
        CHECK(close<double>(s.select(0, i).cpu(), values.select(0, i).cpu(), 1e-11));
      }
    }
    if (c.rows != c.columns) continue;
    auto const b = Tensor<double>(host.slice(-1, 0, 2) * 2.0 + 1.0).to(Gpu{});
    auto const x = solve(a, b), inverse = inv(a), determinant = det(a), vector = solve(a, b.select(-1, 0).contiguous());
    Tensor<double> const spread = host.transpose(-2, -1);
    auto definite = zeros<double>(host.shape()), symmetric = Tensor<double>(host + spread);
    for (std::int64_t i = 0; i < c.count; ++i) definite.select(0, i) = product(a.select(0, i), Tensor<double, Gpu>(spread.select(0, i).to(Gpu{})));
    auto const positive = definite.to(Gpu{});
    auto const lower = cholesky(positive), upper = cholesky(positive, {.upper = true});
    auto const eigen = eigh(symmetric.to(Gpu{}));
    auto const eigenvalues = eigvalsh(symmetric.to(Gpu{}));
    for (std::int64_t i = 0; i < c.count; i += c.count > 10 ? 13 : 1) {
      CAPTURE(i);
      auto const one = a.select(0, i);
      CHECK(close<double>(product(one, Tensor<double, Gpu>(x.select(0, i))), b.select(0, i).cpu(), 1e-10));
      CHECK(close<double>(x.select(0, i).select(-1, 0).cpu(), vector.select(0, i).cpu(), 1e-12));
      CHECK(close<double>(product(one, Tensor<double, Gpu>(inverse.select(0, i))), eye<double>(c.rows), 1e-10));
      double const alone = det(one).item();
      CHECK(std::fabs(determinant.select(0, i).item() - alone) <= 1e-10 * std::fabs(alone));
      CHECK(close<double>(product(Tensor<double, Gpu>(lower.select(0, i)), Tensor<double, Gpu>(upper.select(0, i))), definite.select(0, i), 1e-11));
      CHECK(max(abs(Tensor<double>(lower.select(0, i).cpu()) - Tensor<double>(upper.select(0, i).cpu().t()))).item() < 1e-9);
      CHECK(lower.select(0, i).cpu().item(0, c.rows - 1) == 0);
      CHECK(orthonormal(Tensor<double, Gpu>(eigen.eigenvectors.select(0, i)), 1e-11));
      Tensor<double> const vectors = eigen.eigenvectors.select(0, i).cpu();
      CHECK(close<double>(product(Tensor<double, Gpu>(symmetric.select(0, i).to(Gpu{})), Tensor<double, Gpu>(eigen.eigenvectors.select(0, i))),
                          Tensor<double>(vectors * eigen.eigenvalues.select(0, i).cpu()), 1e-11));
      CHECK(close<double>(eigen.eigenvalues.select(0, i).cpu(), eigenvalues.select(0, i).cpu(), 1e-11));
    }
  }
}

TEST_CASE("on a GPU rank, pseudoinverse and least squares are what NumPy gives") {
  for (LinalgCase const& c : linalg_cases()) {
    CAPTURE(c.name);
    auto const a = matrix<double>(c.rows, c.columns, c.a).to(Gpu{}), b = matrix<double>(c.rows, 2, c.b).to(Gpu{});
    CHECK(matrix_rank(a).item() == c.rank);
    CHECK(error_of(pinv(a), {c.columns, c.rows}, c.pinv) < 1e-11);
    auto const [solution, residuals, rank, values] = lstsq(a, b);
    CHECK(error_of(solution, {c.columns, 2}, c.solution) < 1e-11);
    CHECK(error_of(residuals, c.residuals.empty() ? Shape{0} : Shape{2}, c.residuals) < 1e-11);
    CHECK(rank.item() == c.rank);
  }
}

TEST_CASE("on a GPU batches broadcast, empty matrices have results, and failures name their place") {
  Tensor<double> const one{{4, 1}, {2, 3}}, other{{1, 2}, {3, 4}};
  auto host = zeros<double>({2, 1, 2, 2});
  host(0, 0, all()) = one;
  host(1, 0, all()) = other;
  auto const a = host.to(Gpu{});
  auto const b = arange<double>(12).reshape({3, 2, 2}).to(Gpu{});
  auto const x = solve(a, b);
  CHECK(x.shape() == Shape{2, 3, 2, 2});
  CHECK(close<double>(product(Tensor<double, Gpu>(a.select(0, 1).select(0, 0)), Tensor<double, Gpu>(x.select(0, 1).select(0, 2))), b.select(0, 2).cpu(), 1e-12));
  CHECK(inv(a.select(1, 0).select(0, 0).unsqueeze(0).expand({3, 2, 2})).shape() == Shape{3, 2, 2});

  auto const none = zeros<float>({2, 0, 0}, Gpu{}), tall = zeros<float>({3, 0}, Gpu{});
  CHECK(det(none).to_vector() == std::vector<float>{1, 1});
  CHECK(inv(none).shape() == Shape{2, 0, 0});
  CHECK(eigh(none).eigenvectors.shape() == Shape{2, 0, 0});
  CHECK(svd(tall).u.to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(qr(tall, {.complete = true}).q.to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1});

  host(1, 0, all()) = 0;
  try {
    (void)inv(host.to(Gpu{}));
    FAIL("nothing was thrown");
  } catch (LinalgError const& error) {
    CHECK(std::string(error.what()) == "inv: matrix [1, 0] of the batch [2, 1] is singular: a pivot of its LU factorisation is 0; lstsq and pinv take singular matrices");
  }
}

TEST_SUITE("without a gpu") {
  TEST_CASE("cuSOLVER and cuBLAS have every function that situ looks for, or are not installed") {
    try {
      CHECK((detail::cuda::solver_library().of<double>().gesvd != nullptr));
    } catch (CudaError const& error) {
      CHECK(std::string(error.what()).find(".so.") != std::string::npos);  // a library, not a function in it
    }
  }
}

TEST_CASE("a batch of matrices, which the host lists, is not recorded") {
  Tensor<float, Gpu> const batch = rand({3, 8, 8}).to(Gpu{});
  (void)qr(batch);
  CHECK_THROWS_AS(gpu::Graph{[&] { (void)qr(batch); }}, CudaError);
  (void)qr(batch);
  synchronize(Gpu{});
}
