// Without SITU_WITH_LAPACK this file tests that nothing of it can be called; with it, that all of it is right.
#include <situ/ops/linalg.hpp>

#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/transfer.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <ops/expected/linalg.hpp>
#include <support/compare.hpp>
#include <support/probe.hpp>

using namespace situ;
using situ_test::linalg_cases;
using situ_test::LinalgCase;
using situ_test::thrown;

namespace {

template <class T, class D>
concept decomposes = requires(Tensor<T, D> const& x) {
  solve(x, x);
  inv(x);
  det(x);
  slogdet(x);
  cholesky(x, {.upper = true});
  qr(x, {.complete = true});
  svd(x, {.full_matrices = false});
  svdvals(x);
  eigh(x);
  eigvalsh(x);
  matrix_rank(x);
  pinv(x, {.rtol = 0.1});
  lstsq(x, x);
};
template <class T, class D>
concept inverts = requires(Tensor<T, D> const& x) { inv(x); };
template <class L, class R>
concept solves = requires(L const& a, R const& b) { solve(a, b); };

}  // namespace

TEST_CASE("linear algebra of other types than float and double does not compile") {
  CHECK_FALSE(inverts<int32_t, Cpu>);
  CHECK_FALSE(inverts<bool, Cpu>);
  CHECK_FALSE(inverts<float16, Cpu>);
  CHECK_FALSE(inverts<bfloat16, Emulated<0>>);
  CHECK_FALSE(solves<Tensor<float>, Tensor<int64_t>>);
  CHECK_FALSE(solves<Tensor<float>, Tensor<float, Emulated<0>>>);
}

#if !defined(SITU_WITH_LAPACK)

TEST_CASE("without LAPACK linear algebra on the host's kernels does not compile") {
  CHECK_FALSE(inverts<float, Cpu>);
  CHECK_FALSE(inverts<double, Pinned>);
  CHECK_FALSE(inverts<float, Emulated<0>>);
  CHECK_FALSE(solves<Tensor<float>, Tensor<float>>);
}

#else

#include <lapacke.h>  // that situ's prototypes are these is checked by the compiler: they are the same functions

namespace {

using Numbers = std::vector<double>;

template <class T>
double tolerance() {
  return sizeof(T) == 4 ? 2e-5 : 2e-13;
}

/// The largest difference, relative to the largest expected value or 1; infinite where the shapes differ.
template <class T, class D>
double error_of(Tensor<T, D> const& got, Shape const& shape, Numbers const& expected) {
  if (!(got.shape() == shape) || !got.is_contiguous()) return std::numeric_limits<double>::infinity();
  std::vector<T> const values = got.to_vector();
  if (values.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double scale = 1, error = 0;
  for (double v : expected) scale = std::fmax(scale, std::fabs(v));
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const difference = std::fabs(static_cast<double>(values[k]) - expected[k]);
    error = situ_test::worse(error, difference);
  }
  return error / scale;
}

/// Matrices as plain numbers, by rows.
struct Plain {
  int64_t rows, columns;
  Numbers values;
  double& at(int64_t i, int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  double at(int64_t i, int64_t j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};
template <class T, class D>
Plain plain(Tensor<T, D> const& x) {
  std::vector<T> const values = x.to_vector();
  return {x.size(0), x.size(1), Numbers(values.begin(), values.end())};
}
Plain product(Plain const& a, Plain const& b) {
  Plain c{a.rows, b.columns, Numbers(static_cast<std::size_t>(a.rows * b.columns), 0.0)};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}
Plain transposed(Plain const& a) {
  Plain c{a.columns, a.rows, Numbers(a.values.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) c.at(j, i) = a.at(i, j);
  }
  return c;
}
Plain identity(int64_t n) {
  Plain c{n, n, Numbers(static_cast<std::size_t>(n * n), 0.0)};
  for (int64_t i = 0; i < n; ++i) c.at(i, i) = 1;
  return c;
}
/// Scales the columns of a.
Plain scaled(Plain a, Numbers const& s) {
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) a.at(i, j) *= s[static_cast<std::size_t>(j)];
  }
  return a;
}
Plain first_columns(Plain const& a, int64_t n) {
  Plain c{a.rows, n, {}};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < n; ++j) c.values.push_back(a.at(i, j));
  }
  return c;
}
double distance(Plain const& a, Plain const& b) {
  if (a.rows != b.rows || a.columns != b.columns) return std::numeric_limits<double>::infinity();
  double scale = 1, error = 0;
  for (double v : b.values) scale = std::fmax(scale, std::fabs(v));
  for (std::size_t k = 0; k < a.values.size(); ++k) {
    double const difference = std::fabs(a.values[k] - b.values[k]);
    error = situ_test::worse(error, difference);
  }
  return error / scale;
}
template <class T, class D>
double orthonormality(Tensor<T, D> const& q) {
  Plain const p = plain(q);
  return distance(product(transposed(p), p), identity(p.columns));
}

/// The same values in other layouts. Only host tensors are written element by element; `place` moves whole storages.
constexpr int layouts = 5;
constexpr char const* layout_names[] = {"contiguous", "transposed", "with steps", "flipped", "in a larger matrix"};
template <class T, class D>
Tensor<T, D> laid_out(Tensor<T> const& x, int layout, D device) {
  int64_t const m = x.size(0), n = x.size(1);
  switch (layout) {
    case 1: return x.t().contiguous().to(device).t();
    case 2: {
      auto wide = full<T>({2 * m + 1, 3 * n + 2}, std::numeric_limits<T>::quiet_NaN());
      wide(range(1, end(), 2), range(1, 3 * n + 1, 3)) = x;
      return wide.to(device)(range(1, end(), 2), range(1, 3 * n + 1, 3));
    }
    case 3: return Tensor<T>(x.flip(0).flip(1)).contiguous().to(device).flip(0).flip(1);
    case 4: {
      auto large = full<T>({m + 2, n + 3}, std::numeric_limits<T>::quiet_NaN());
      large(range(1, m + 1), range(2, n + 2)) = x;
      return large.to(device)(range(1, m + 1), range(2, n + 2));
    }
    default: return x.clone().to(device);
  }
}

template <class T>
Tensor<T> matrix(int64_t rows, int64_t columns, Numbers const& values) {
  return Tensor<double>(values, {rows, columns}).template to<T>();
}

/// Numbers between -1 and 1 that look random.
template <class T>
Tensor<T> scattered(Shape const& shape, unsigned seed = 1) {
  auto result = empty<T>(shape);
  unsigned state = seed * 2654435761u;
  for (int64_t i = 0; i < result.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    result.data()[i] = static_cast<T>(static_cast<double>(state >> 8) / 8388608 - 1);
  }
  return result;
}

template <class T_, class D_>
struct On {
  using T = T_;
  using D = D_;
};
#define SITU_LINALG_TYPES On<float, Cpu>, On<double, Cpu>, On<float, Emulated<0>>, On<double, Emulated<0>>

template <class T, class D>
void check_case(LinalgCase const& c, Tensor<T, D> const& a, Tensor<T, D> const& b) {
  double const eps = tolerance<T>();
  int64_t const m = c.rows, n = c.columns, k = m < n ? m : n;
  Plain const given{m, n, c.a};
  bool const regular = m == n && c.rank == n;

  if (m == n) {
    CHECK(error_of(det(a), {}, {c.det}) < eps);
    auto const [sign, logabsdet] = slogdet(a);
    if (regular) {
      CHECK(error_of(sign, {}, {c.sign}) == 0);
      CHECK(error_of(logabsdet, {}, {c.logabsdet}) < eps);
      CHECK(error_of(inv(a), {n, n}, c.inverse) < eps);
      CHECK(error_of(solve(a, b), {n, 2}, c.solution) < eps);
      Plain const second = transposed({n, 2, c.solution});
      CHECK(error_of(solve(a, b.select(1, 1)), {n}, Numbers(second.values.begin() + n, second.values.end())) < eps);
    } else {
      CHECK(sign.item() == 0);
      CHECK(logabsdet.item() == -std::numeric_limits<T>::infinity());
      CHECK(thrown<LinalgError>([&] { (void)inv(a); }, "inv: the matrix is singular: a pivot of its LU factorisation is 0; lstsq and pinv take singular matrices") == "");
      CHECK(thrown<LinalgError>([&] { (void)solve(a, b); }, "solve: the matrix is singular: a pivot of its LU factorisation is 0; lstsq and pinv take singular matrices") == "");
    }
  }
  if (!c.eigenvalues.empty()) {
    for (bool const upper : {false, true}) {
      auto const [values, vectors] = eigh(a, {.upper = upper});
      CHECK(error_of(values, {n}, c.eigenvalues) < eps);
      CHECK(orthonormality(vectors) < eps);
      CHECK(distance(product(given, plain(vectors)), scaled(plain(vectors), c.eigenvalues)) < eps);
      CHECK(error_of(eigvalsh(a, {.upper = upper}), {n}, c.eigenvalues) < eps);
    }
    if (!c.cholesky.empty()) {
      CHECK(error_of(cholesky(a), {n, n}, c.cholesky) < eps);
      CHECK(error_of(cholesky(a, {.upper = true}), {n, n}, transposed({n, n, c.cholesky}).values) < eps);
    } else {
      CHECK_THROWS_AS((void)cholesky(a), LinalgError);
    }
  }
  for (bool const complete : {false, true}) {
    auto const [q, r] = qr(a, {.complete = complete});
    int64_t const middle = complete ? m : k;
    CHECK(q.shape() == Shape{m, middle});
    CHECK(r.shape() == Shape{middle, n});
    CHECK(q.is_contiguous());
    CHECK(orthonormality(q) < eps);
    CHECK(distance(product(plain(q), plain(r)), given) < eps);
    Plain triangle = plain(r);
    for (int64_t i = 0; i < middle; ++i) {
      for (int64_t j = 0; j < i && j < n; ++j) CHECK(triangle.at(i, j) == 0);
      bool const flip = i < n && triangle.at(i, i) < 0;
      for (int64_t j = 0; flip && j < n; ++j) triangle.at(i, j) = -triangle.at(i, j);
    }
    if (!complete && !c.r.empty()) CHECK(distance(triangle, {k, n, c.r}) < eps);
  }
  for (bool const square : {false, true}) {
    auto const [u, s, vh] = svd(a, {.full_matrices = square});
    CHECK(u.shape() == Shape{m, square ? m : k});
    CHECK(vh.shape() == Shape{square ? n : k, n});
    CHECK(u.is_contiguous());
    CHECK(vh.is_contiguous());
    CHECK(error_of(s, {k}, c.singular_values) < eps);
    CHECK(orthonormality(u) < eps);
    CHECK(orthonormality(Tensor<T>(vh.cpu().t())) < eps);
    Plain const v = transposed(plain(vh));
    CHECK(distance(product(scaled(first_columns(plain(u), k), c.singular_values), transposed(first_columns(v, k))), given) < eps);
  }
  CHECK(error_of(svdvals(a), {k}, c.singular_values) < eps);
  CHECK(matrix_rank(a).item() == c.rank);
  CHECK(error_of(pinv(a), {n, m}, c.pinv) < 10 * eps);
  auto const least = lstsq(a, b);
  CHECK(error_of(least.solution, {n, 2}, c.solution) < 10 * eps);
  CHECK(least.rank.item() == c.rank);
  CHECK(error_of(least.singular_values, {k}, c.singular_values) < eps);
  CHECK(error_of(least.residuals, c.residuals.empty() ? Shape{0} : Shape{2}, c.residuals) < 10 * eps);
  auto const one = lstsq(a, b.select(1, 0));
  CHECK(one.solution.shape() == Shape{n});
  CHECK(one.residuals.shape() == (c.residuals.empty() ? Shape{0} : Shape{}));
}

}  // namespace

TEST_CASE("float and double have linear algebra on every device of the host's kernels") {
  CHECK(decomposes<float, Cpu>);
  CHECK(decomposes<double, Pinned>);
  CHECK(decomposes<float, Emulated<1>>);
  static_assert(std::is_same_v<decltype(svd(std::declval<Tensor<double, Pinned>>()).u), Tensor<double, Cpu>>);
  static_assert(std::is_same_v<decltype(solve(std::declval<Tensor<float>>(), std::declval<Tensor<double, Pinned>>())), Tensor<double, Cpu>>);
  static_assert(std::is_same_v<decltype(matrix_rank(std::declval<Tensor<float>>())), Tensor<int64_t, Cpu>>);
}

TEST_CASE_TEMPLATE("matrices of any layout give what NumPy gives", X, SITU_LINALG_TYPES) {
  using T = typename X::T;
  using D = typename X::D;
  for (LinalgCase const& c : linalg_cases()) {
    CAPTURE(c.name);
    for (int layout = 0; layout < layouts; ++layout) {
      CAPTURE(layout_names[layout]);
      check_case(c, laid_out(matrix<T>(c.rows, c.columns, c.a), layout, D{}), laid_out(matrix<T>(c.rows, 2, c.b), layout, D{}));
    }
  }
}

TEST_CASE_TEMPLATE("larger matrices are decomposed to the precision of their type", X, SITU_LINALG_TYPES) {
  using T = typename X::T;
  using D = typename X::D;
  double const eps = tolerance<T>() * 5;
  for (Shape const& shape : {Shape{70, 70}, Shape{130, 40}, Shape{40, 130}, Shape{33, 32}}) {
    CAPTURE(to_string(shape));
    int64_t const m = shape[0], n = shape[1], k = m < n ? m : n;
    Tensor<T> const host = scattered<T>(shape);
    Tensor<T, D> const a = host.to(D{});
    Plain const given = plain(host);
    auto const [q, r] = qr(a);
    CHECK(orthonormality(q) < eps);
    CHECK(distance(product(plain(q), plain(r)), given) < eps);
    auto const [whole_q, whole_r] = qr(a, {.complete = true});
    CHECK(orthonormality(whole_q) < eps);
    CHECK(distance(product(plain(whole_q), plain(whole_r)), given) < eps);
    auto const [u, s, vh] = svd(a, {.full_matrices = false});
    auto const host_s = s.to_vector();
    Numbers const values(host_s.begin(), host_s.end());
    for (std::size_t i = 1; i < values.size(); ++i) CHECK(values[i] <= values[i - 1]);
    CHECK(orthonormality(u) < eps);
    CHECK(distance(product(scaled(plain(u), values), plain(vh)), given) < eps);
    CHECK(matrix_rank(a).item() == k);
    Plain const p = plain(pinv(a));
    CHECK(distance(product(product(given, p), given), given) < 10 * eps);

    Plain const square = m < n ? product(given, transposed(given)) : product(transposed(given), given);
    Tensor<T, D> const positive = matrix<T>(k, k, square.values).to(D{});
    auto const lower = plain(cholesky(positive));
    CHECK(distance(product(lower, transposed(lower)), square) < eps);
    auto const [eigenvalues, vectors] = eigh(positive);
    auto const host_values = eigenvalues.to_vector();
    CHECK(orthonormality(vectors) < eps);
    CHECK(distance(scaled(plain(vectors), Numbers(host_values.begin(), host_values.end())), product(square, plain(vectors))) < eps);
    if (m == n) {
      Tensor<T, D> const b = scattered<T>({n, 7}, 5).to(D{});
      CHECK(distance(product(given, plain(solve(a, b))), plain(b)) < 100 * eps);
      CHECK(distance(product(given, plain(inv(a))), identity(n)) < 100 * eps);
    }
  }
}

TEST_CASE_TEMPLATE("a batch gives what its matrices give one by one", X, SITU_LINALG_TYPES) {
  using T = typename X::T;
  using D = typename X::D;
  double const eps = tolerance<T>();
  Tensor<T> const host = scattered<T>({3, 2, 4, 4}) + eye<T>(4) * 3;
  // As it is, and as a view in which the batch stands last and matrices are transposed.
  for (Tensor<T, D> const& a : {Tensor<T, D>(host.to(D{})), Tensor<T, D>(Tensor<T>(host.permute({3, 2, 1, 0})).contiguous().to(D{}).permute({3, 2, 1, 0}))}) {
    auto const same = [&](auto const& whole, auto f) {
      bool result = true;
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 2; ++j) {
          Tensor<T, D> const part = f(a.select(0, i).select(0, j));
          auto const values = part.to_vector();
          result = result && error_of(Tensor<T, D>(whole.select(0, i).select(0, j)), part.shape(), Numbers(values.begin(), values.end())) < eps;
        }
      }
      return result;
    };
    CHECK(same(inv(a), [](auto const& x) { return inv(x); }));
    CHECK(same(det(a), [](auto const& x) { return det(x); }));
    CHECK(same(slogdet(a).logabsdet, [](auto const& x) { return slogdet(x).logabsdet; }));
    CHECK(same(qr(a).q, [](auto const& x) { return qr(x).q; }));
    CHECK(same(qr(a).r, [](auto const& x) { return qr(x).r; }));
    CHECK(same(svd(a).u, [](auto const& x) { return svd(x).u; }));
    CHECK(same(svd(a).s, [](auto const& x) { return svd(x).s; }));
    CHECK(same(svd(a).vh, [](auto const& x) { return svd(x).vh; }));
    CHECK(same(eigh(a).eigenvectors, [](auto const& x) { return eigh(x).eigenvectors; }));
    CHECK(same(eigvalsh(a), [](auto const& x) { return eigvalsh(x); }));
    CHECK(same(pinv(a), [](auto const& x) { return pinv(x); }));
    CHECK(matrix_rank(a).shape() == Shape{3, 2});
  }
}

TEST_CASE_TEMPLATE("the leading axes of a system and its right side broadcast", X, SITU_LINALG_TYPES) {
  using T = typename X::T;
  using D = typename X::D;
  double const eps = tolerance<T>();
  Tensor<T, D> const a = Tensor<T>(scattered<T>({3, 1, 4, 4}) + eye<T>(4) * 3).to(D{});
  Tensor<T, D> const b = scattered<T>({2, 4, 5}, 3).to(D{});
  auto const x = solve(a, b);
  auto const y = lstsq(a, b).solution;
  CHECK(x.shape() == Shape{3, 2, 4, 5});
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      auto const part = solve(Tensor<T, D>(a.select(0, i).select(0, 0)), Tensor<T, D>(b.select(0, j)));
      auto const values = part.to_vector();
      Numbers const expected(values.begin(), values.end());
      CHECK(error_of(Tensor<T, D>(x.select(0, i).select(0, j)), {4, 5}, expected) < eps);
      CHECK(error_of(Tensor<T, D>(y.select(0, i).select(0, j)), {4, 5}, expected) < 20 * eps);
    }
  }
  // One vector for all matrices, one for each, and an expanded matrix.
  Tensor<T, D> const v = b.select(0, 0).select(1, 2);
  auto const for_all = solve(a, v);
  CHECK(for_all.shape() == Shape{3, 1, 4});
  Tensor<T, D> const three = a.squeeze(1), rows = b.select(0, 1).t().slice(0, 0, 3);
  auto const for_each = solve(three, rows);
  CHECK(for_each.shape() == Shape{3, 4});
  for (int64_t i = 0; i < 3; ++i) {
    Tensor<T, D> const one = three.select(0, i);
    auto const first = solve(one, v).to_vector(), second = solve(one, Tensor<T, D>(rows.select(0, i))).to_vector();
    CHECK(error_of(Tensor<T, D>(for_all.select(0, i)), {1, 4}, Numbers(first.begin(), first.end())) < eps);
    CHECK(error_of(Tensor<T, D>(for_each.select(0, i)), {4}, Numbers(second.begin(), second.end())) < eps);
  }
  Tensor<T, D> const expanded = three.select(0, 0).unsqueeze(0).expand({6, 4, 4});
  CHECK(inv(expanded).shape() == Shape{6, 4, 4});
  auto const inverse = inv(Tensor<T, D>(three.select(0, 0))).to_vector();
  CHECK(error_of(Tensor<T, D>(inv(expanded).select(0, 5)), {4, 4}, Numbers(inverse.begin(), inverse.end())) < eps);
}

/// {{4, 4}, {6, 4}} times 2^n: its determinant is -8 times 4^n, its inverse {{-0.5, 0.5}, {0.75, -0.5}} times 2^-n.
template <class T, class D>
Tensor<T, D> hilly(int n) {
  T const s = std::ldexp(T(1), n);
  return Tensor<T>{{4 * s, 4 * s}, {6 * s, 4 * s}}.to(D{});
}

TEST_CASE_TEMPLATE("elements near the ends of the range do not make a determinant overflow, or lose digits", X, SITU_LINALG_TYPES) {
  using T = typename X::T;
  using D = typename X::D;
  // Exact: products of powers of two.
  int const top = std::numeric_limits<T>::max_exponent, bottom = std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits;
  auto const two = [](int n) { return std::ldexp(T(1), n); };
  auto const diagonal = [&](std::vector<int> const& exponents) {
    Tensor<T> x = zeros<T>({static_cast<int64_t>(exponents.size()), static_cast<int64_t>(exponents.size())});
    for (int k = 0; k < x.size(0); ++k) x(k, k) = two(exponents[static_cast<std::size_t>(k)]);
    return Tensor<T, D>(x.to(D{}));
  };
  CHECK(det(diagonal({top - 1, top - 1, -top, 3 - top})).item() == 2);
  CHECK(det(diagonal({-top + 2, -top + 2, top - 1, top - 1})).item() == 4);
  CHECK(det(diagonal({bottom, top - 1, -3})).item() == two(bottom + top - 4));
  CHECK(det(diagonal({bottom, 2})).item() == two(bottom + 2));  // the least number times 4
  CHECK(slogdet(diagonal({bottom, bottom, bottom})).logabsdet.item() == doctest::Approx(3 * bottom * std::log(2.0)).epsilon(1e-6));
  for (int n : {top - 4, bottom + 2, bottom + 9, 0}) {
    auto const x = hilly<T, D>(n);
    auto const [sign, logarithm] = slogdet(x);
    CHECK(sign.item() == -1);
    CHECK(std::fabs(static_cast<double>(logarithm.item()) - std::log(8.0) - 2 * n * std::log(2.0)) <= std::fabs(2 * n * std::log(2.0)) * 1e-7 + 1e-6);
    CHECK(solve(x, Tensor<T>{8 * two(n), 10 * two(n)}.to(D{})).to_vector() == std::vector<T>{1, 1});
    CHECK(solve(x, Tensor<T>{{two(n), 0}, {0, two(n)}}.to(D{})).to_vector() == std::vector<T>{T(-0.5), T(0.5), T(0.75), T(-0.5)});
  }
  // The largest differences and growth: {{s, s}, {-s, s}} with s = max * 3/4.
  T const s = std::numeric_limits<T>::max() / 4 * 3;
  auto const growing = Tensor<T>{{s, s}, {-s, s}}.to(D{});
  CHECK(static_cast<double>(slogdet(growing).logabsdet.item()) == doctest::Approx(std::log(2.0) + 2 * std::log(static_cast<double>(s))).epsilon(1e-6));
  CHECK(solve(growing, Tensor<T>{s, 0}.to(D{})).to_vector() == std::vector<T>{T(0.5), T(0.5)});
  // A batch in which one matrix alone is scaled; the inverse's columns are.
  Tensor<T, D> batch = zeros<T>({3, 2, 2}, D{});
  batch[0] = hilly<T, D>(0), batch[1] = hilly<T, D>(top - 8), batch[2] = hilly<T, D>(-top + 10);
  auto const inverses = inv(batch);
  CHECK(inverses[0].to_vector() == std::vector<T>{T(-0.5), T(0.5), T(0.75), T(-0.5)});
  CHECK(inverses[1].to_vector() == std::vector<T>{-two(7 - top), two(7 - top), T(1.5) * two(7 - top), -two(7 - top)});
  CHECK(inverses[2].to_vector() == std::vector<T>{-two(top - 11), two(top - 11), T(1.5) * two(top - 11), -two(top - 11)});
  auto const rows = Tensor<T>{{two(bottom + 2), two(bottom + 2)}, {T(6), T(4)}}.to(D{});  // one row alone: of -2^(bottom + 3)
  CHECK(det(rows).item() == -two(bottom + 3));
  CHECK(solve(rows, Tensor<T>{two(bottom + 3), T(10)}.to(D{})).to_vector() == std::vector<T>{1, 1});
  // Singular values whose inverse overflows: the solution of (s A) x = s b is that of A x = b, here [1, 2].
  int const least = bottom + 8;
  auto const tiny = Tensor<T>{{two(least), 0}, {0, two(least)}, {two(least), two(least)}}.to(D{});
  auto const fit = lstsq(tiny, Tensor<T>{two(least), 2 * two(least), 3 * two(least)}.to(D{}));
  CHECK(fit.rank.item() == 2);
  auto const found = fit.solution.to_vector();
  CHECK(static_cast<double>(found[0]) == doctest::Approx(1).epsilon(0.02));
  CHECK(static_cast<double>(found[1]) == doctest::Approx(2).epsilon(0.02));
  // The roots of an infinite diagonal, as in NumPy.
  CHECK(cholesky(Tensor<T>{{T(INFINITY), 0}, {0, 4}}.to(D{})).to_vector() == std::vector<T>{T(INFINITY), 0, 0, 2});
  T const inf = T(INFINITY), nan = T(NAN);
  CHECK_THROWS_AS(cholesky(Tensor<T>{{inf, nan}, {nan, 4}}.to(D{})), LinalgError);
  CHECK_THROWS_AS(cholesky(Tensor<T>{{inf, inf}, {inf, 4}}.to(D{})), LinalgError);
  CHECK_THROWS_AS(cholesky(Tensor<T>{{nan, 0}, {0, 4}}.to(D{})), LinalgError);
  CHECK_THROWS_AS(cholesky(Tensor<T>{{-inf, 0}, {0, 4}}.to(D{})), LinalgError);
  CHECK_THROWS_AS(cholesky(Tensor<T>{{4, nan}, {nan, inf}}.to(D{}), {.upper = true}), LinalgError);
  // What is not finite, or 0, stays so.
  CHECK(det(Tensor<T>{{0, two(top - 1)}, {0, 1}}.to(D{})).item() == 0);
  CHECK(std::isnan(static_cast<double>(det(Tensor<T>{{T(NAN), two(bottom)}, {1, 1}}.to(D{})).item())));
}

TEST_CASE_TEMPLATE("empty matrices and empty batches have results", D, Cpu, Emulated<0>) {
  auto const none = zeros<float>({0, 0}, D{}), tall = zeros<float>({3, 0}, D{}), wide = zeros<float>({0, 2}, D{});
  auto const no_batch = zeros<float>({0, 3, 3}, D{}), two_none = zeros<float>({2, 0, 0}, D{});
  CHECK(det(none).item() == 1);
  CHECK(det(two_none).to_vector() == std::vector<float>{1, 1});
  CHECK(slogdet(none).sign.item() == 1);
  CHECK(slogdet(none).logabsdet.item() == 0);
  CHECK(inv(two_none).shape() == Shape{2, 0, 0});
  CHECK(cholesky(none).shape() == Shape{0, 0});
  CHECK(eigh(two_none).eigenvectors.shape() == Shape{2, 0, 0});
  CHECK(solve(none, zeros<float>({0, 4}, D{})).shape() == Shape{0, 4});
  CHECK(solve(eye<float>(2, D{}), zeros<float>({2, 0}, D{})).shape() == Shape{2, 0});
  CHECK(qr(tall).q.shape() == Shape{3, 0});
  CHECK(qr(tall).r.shape() == Shape{0, 0});
  CHECK(qr(tall, {.complete = true}).q.to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(qr(wide).q.shape() == Shape{0, 0});
  CHECK(qr(wide).r.shape() == Shape{0, 2});
  CHECK(svd(tall).u.to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(svd(tall).s.shape() == Shape{0});
  CHECK(svd(wide).vh.to_vector() == std::vector<float>{1, 0, 0, 1});
  CHECK(matrix_rank(tall).item() == 0);
  CHECK(pinv(tall).shape() == Shape{0, 3});
  auto const least = lstsq(tall, ones<float>({3, 2}, D{}));
  CHECK(least.solution.shape() == Shape{0, 2});
  CHECK(least.residuals.to_vector() == std::vector<float>{3, 3});
  CHECK(lstsq(wide, zeros<float>({0, 1}, D{})).solution.to_vector() == std::vector<float>{0, 0});

  CHECK(det(no_batch).shape() == Shape{0});
  CHECK(inv(no_batch).shape() == Shape{0, 3, 3});
  CHECK(svd(no_batch).s.shape() == Shape{0, 3});
  CHECK(eigvalsh(no_batch).shape() == Shape{0, 3});
  CHECK(qr(no_batch).r.shape() == Shape{0, 3, 3});
  CHECK(solve(no_batch, ones<float>({1, 3, 2}, D{})).shape() == Shape{0, 3, 2});
  CHECK(pinv(no_batch).shape() == Shape{0, 3, 3});
}

TEST_CASE_TEMPLATE("what cannot be done is told with its place in the batch", D, Cpu, Emulated<0>) {
  auto batch = scattered<double>({2, 3, 3, 3}) + eye<double>(3) * 4;
  Tensor<double> host = batch;
  host(1, 0, all()) = 0;
  Tensor<double, D> const singular = host.clone().to(D{});
  auto const before = singular.to_vector();
  auto const words = [](char const* who, char const* what) { return std::string(who) + ": matrix [1, 0] of the batch [2, 3] " + what; };
  char const* const is_singular = "is singular: a pivot of its LU factorisation is 0; lstsq and pinv take singular matrices";
  CHECK(thrown<LinalgError>([&] { (void)inv(singular); }, words("inv", is_singular)) == "");
  CHECK(thrown<LinalgError>([&] { (void)solve(singular, singular); }, words("solve", is_singular)) == "");
  CHECK(thrown<LinalgError>([&] { (void)cholesky(matmul(singular, singular.transpose(-2, -1))); },
                            words("cholesky", "is not positive definite: its leading block of 1 x 1 is not")) == "");
  CHECK(thrown<LinalgError>([&] { (void)cholesky(Tensor<double>{{1, 2}, {2, 1}}.to(D{})); },
                            "cholesky: the matrix is not positive definite: its leading block of 2 x 2 is not") == "");
  host(1, 0, all()) = host(1, 1, all());
  for (double const bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    host(1, 0, 2, 1) = bad;
    Tensor<double, D> const not_finite = host.to(D{});
    CHECK(thrown<LinalgError>([&] { (void)svd(not_finite); }, words("svd", "holds NaN or infinity")) == "");
    CHECK(thrown<LinalgError>([&] { (void)svdvals(not_finite); }, words("svdvals", "holds NaN or infinity")) == "");
    CHECK(thrown<LinalgError>([&] { (void)eigh(not_finite); }, words("eigh", "holds NaN or infinity")) == "");
    CHECK(thrown<LinalgError>([&] { (void)pinv(not_finite); }, words("pinv", "holds NaN or infinity")) == "");
    CHECK(thrown<LinalgError>([&] { (void)matrix_rank(not_finite); }, words("matrix_rank", "holds NaN or infinity")) == "");
    CHECK(thrown<LinalgError>([&] { (void)lstsq(not_finite, not_finite); }, words("lstsq", "holds NaN or infinity")) == "");
  }
  // NaN in the triangle that is not read does not matter; elsewhere it is no positive number, and in a system it stays NaN.
  double const nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(cholesky(Tensor<double>{{4, nan}, {2, 5}}.to(D{})).to_vector() == std::vector<double>{2, 0, 1, 2});
  CHECK(cholesky(Tensor<double>{{4, 2}, {nan, 5}}.to(D{}), {.upper = true}).to_vector() == std::vector<double>{2, 1, 0, 2});
  CHECK(eigvalsh(Tensor<double>{{4, nan}, {0, 5}}.to(D{})).to_vector() == std::vector<double>{4, 5});
  CHECK_THROWS_AS((void)cholesky(Tensor<double>{{4, 2}, {nan, 5}}.to(D{})), LinalgError);
  auto const is_nan = [](double x) { return situ_test::shown(x).find("nan") != std::string::npos; };  // under -ffast-math too
  CHECK(is_nan(det(Tensor<double>{{1, nan}, {2, 3}}.to(D{})).item()));
  CHECK(is_nan(det(Tensor<double>{{nan, 1}, {0, 0}}.to(D{})).item()));
  CHECK(det(Tensor<double>{{1e200, 0, 0}, {0, 1e200, 0}, {0, 0, 0}}.to(D{})).item() == 0);  // the product overflows before it meets the pivot of 0
  CHECK(is_nan(solve(Tensor<double>{{1, 0}, {0, nan}}.to(D{}), Tensor<double>{1, 2}.to(D{})).item(1)));
  CHECK(singular.to_vector() == before);
}

TEST_CASE("shapes that do not fit are told with both") {
  Tensor<float> const vector{1, 2, 3}, wide{{1, 2, 3}, {4, 5, 6}}, square = eye(3);
  CHECK(thrown<ShapeError>([&] { (void)det(vector); }, "det: shape [3] has 1 axis: a matrix has 2, a stack of them more; use reshape") == "");
  CHECK(thrown<ShapeError>([&] { (void)svd(full({}, 1.f)); }, "svd: shape [] has 0 axes: a matrix has 2, a stack of them more; use reshape") == "");
  CHECK(thrown<ShapeError>([&] { (void)inv(wide); }, "inv: shape [2, 3] holds no square matrices: 2 != 3") == "");
  CHECK(thrown<ShapeError>([&] { (void)cholesky(wide); }, "cholesky: shape [2, 3] holds no square matrices: 2 != 3") == "");
  CHECK(thrown<ShapeError>([&] { (void)eigh(wide.unsqueeze(0)); }, "eigh: shape [1, 2, 3] holds no square matrices: 2 != 3") == "");
  CHECK(thrown<ShapeError>([&] { (void)solve(wide, wide); }, "solve: shape [2, 3] holds no square matrices: 2 != 3") == "");
  CHECK(thrown<ShapeError>([&] { (void)solve(square, wide); }, "solve: shapes [3, 3] and [2, 3] do not fit: the matrix has 3 rows, the right side 2") == "");
  CHECK(thrown<ShapeError>([&] { (void)solve(square, full({}, 1.f)); }, "solve: the right side has shape []: a vector has 1 axis, a matrix 2") == "");
  CHECK(thrown<ShapeError>([&] { (void)lstsq(wide, vector); }, "lstsq: shapes [2, 3] and [3] do not fit: the matrix has 2 rows, the right side 3") == "");
  CHECK(thrown<ShapeError>([&] { (void)solve(square.expand({2, 3, 3}), square.expand({5, 3, 3})); },
                           "solve: shapes [2] and [5] do not broadcast: 2 != 5 in dimension 0") == "");
}

TEST_CASE("operands promote, and an expression is evaluated once, where the routine works") {
  Tensor<float> const a{{2, 1}, {1, 3}};
  Tensor<double> const b{1, 2};
  CHECK(solve(a, b).to_vector()[1] == doctest::Approx(0.6).epsilon(1e-15));

  Tensor<float, Probe> const x{{2, 1}, {1, 3}};
  Probe::reset();
  auto const y = inv(x * 2 + 1);
  CHECK(Probe::launches == 2);     // the expression, the routine
  CHECK(Probe::allocations == 3);  // the result, reports, workspace
  CHECK(Probe::copies == 0);
  CHECK(y.to_vector()[0] == doctest::Approx(7.0 / 26));
}

TEST_CASE("many small matrices give the same for any number of threads") {
  Tensor<double> const a = scattered<double>({1000, 5, 5});
  int const before = num_threads();
  set_num_threads(1);
  auto const one = inv(a).to_vector(), values = svdvals(a).to_vector();
  set_num_threads(3);
  CHECK(inv(a).to_vector() == one);
  CHECK(svdvals(a).to_vector() == values);
  set_num_threads(before);
}

TEST_CASE("whatever fails on a device, nothing is lost there") {
  int failures = 0;
  bool last_failed = true;
  for (int64_t k = 0; last_failed; ++k) {  // until nothing is left to fail
    CAPTURE(k);
    REQUIRE(k < 1000);
    last_failed = false;
    emulated::configure({.devices = 2, .memory = 1 << 24, .fail_at = k});
    try {
      Tensor<float, Emulated<1>> const a = Tensor<float>{{2, 1}, {1, 3}}.to(Emulated<1>{});
      (void)lstsq(a, a), (void)qr(a), (void)solve(a, a);
    } catch (OutOfMemory const&) {
      last_failed = true;
    } catch (emulated::InjectedFault const&) {
      last_failed = true;
    }
    failures += last_failed;
    CHECK(emulated::statistics(1).bytes == 0);
  }
  CHECK(failures >= 4);  // the transfer and three routines, at least
  emulated::configure();
}

#endif
