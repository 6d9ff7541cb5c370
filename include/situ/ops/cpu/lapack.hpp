/// Linear algebra on the host's kernels: LAPACK, through the C interface LAPACKE, one call for each matrix of a batch.
///
/// The calls run inside kernels, so that they go where the device's work goes: to the host's threads for Cpu, to the stream for
/// Emulated<N>. Only routines that allocate nothing are called; their workspace is memory of the device. Small matrices are
/// spread over the threads; a large one is left to the threads of LAPACK itself.
#pragma once

#include <situ/device/cpu/device.hpp>
#include <situ/ops/linalg_common.hpp>

#if defined(SITU_WITH_LAPACK)

namespace situ::inline SITU_ABI {
namespace detail::lapack {

#if defined(LAPACK_ILP64)
using integer = int64_t;
#else
using integer = int32_t;
#endif

// The prototypes of <lapacke.h>, which includes <complex.h>. (Both may be included: they are the same functions.)
inline constexpr int by_columns = 102;
extern "C" {
#define SITU_LAPACKE(T, P)                                                                                                        \
  integer LAPACKE_##P##getrf_work(int, integer m, integer n, T* a, integer lda, integer* pivots);                                 \
  integer LAPACKE_##P##getrs_work(int, char trans, integer n, integer nrhs, T const* a, integer lda, integer const* pivots, T* b, integer ldb); \
  integer LAPACKE_##P##getri_work(int, integer n, T* a, integer lda, integer const* pivots, T* work, integer lwork);              \
  integer LAPACKE_##P##potrf_work(int, char uplo, integer n, T* a, integer lda);                                                  \
  integer LAPACKE_##P##geqrf_work(int, integer m, integer n, T* a, integer lda, T* tau, T* work, integer lwork);                  \
  integer LAPACKE_##P##orgqr_work(int, integer m, integer n, integer k, T* a, integer lda, T const* tau, T* work, integer lwork); \
  integer LAPACKE_##P##gesdd_work(int, char jobz, integer m, integer n, T* a, integer lda, T* s, T* u, integer ldu, T* vt, integer ldvt, T* work, \
                                  integer lwork, integer* iwork);                                                                 \
  integer LAPACKE_##P##syevd_work(int, char jobz, char uplo, integer n, T* a, integer lda, T* w, T* work, integer lwork, integer* iwork, integer liwork);
SITU_LAPACKE(float, s)
SITU_LAPACKE(double, d)
#undef SITU_LAPACKE
}

/// The routines of an element type.
template <class T>
struct Routines;
#define SITU_ROUTINES(T, P)                                   \
  template <>                                                 \
  struct Routines<T> {                                        \
    static constexpr auto* getrf = &LAPACKE_##P##getrf_work;  \
    static constexpr auto* getrs = &LAPACKE_##P##getrs_work;  \
    static constexpr auto* getri = &LAPACKE_##P##getri_work;  \
    static constexpr auto* potrf = &LAPACKE_##P##potrf_work;  \
    static constexpr auto* geqrf = &LAPACKE_##P##geqrf_work;  \
    static constexpr auto* orgqr = &LAPACKE_##P##orgqr_work;  \
    static constexpr auto* gesdd = &LAPACKE_##P##gesdd_work;  \
    static constexpr auto* syevd = &LAPACKE_##P##syevd_work;  \
  };
SITU_ROUTINES(float, s)
SITU_ROUTINES(double, d)
#undef SITU_ROUTINES

constexpr integer as_integer(int64_t n) { return static_cast<integer>(n); }
/// A leading dimension: at least 1, also of an empty matrix.
constexpr integer leading(int64_t n) { return static_cast<integer>(n > 1 ? n : 1); }

/// The workspace that a routine asked for. It answers in its own type, so that a float may have been rounded down.
template <class T>
int64_t asked_for(T answer, char const* who) {
  double const elements = static_cast<double>(answer) * (1 + (sizeof(T) == 4 ? 0x1p-23 : 0)) + 1;
  if (!(elements < static_cast<double>(INT32_MAX))) fail<ShapeError>(who, ": the matrices are too large: LAPACK would need more workspace than it can count; work on smaller ones");
  return static_cast<int64_t>(elements);
}

template <class T>
void fill_identity(T* x, int64_t n) {
  for (int64_t k = 0; k < n * n; ++k) x[k] = k % (n + 1) == 0 ? T(1) : T(0);
}

/// Calls step(i, workspace) for every matrix i of `count`. Items are parts of `grain` matrices, each with a workspace.
template <class Step>
struct BatchKernel {
  Step step;
  char* workspaces;
  int64_t workspace_bytes, count, grain;

  void operator()(int64_t first, int64_t last) const {
    int64_t const end = last * grain < count ? last * grain : count;
    for (int64_t i = first * grain; i < end; ++i) step(i, workspaces + i / grain * workspace_bytes);
  }
};

/// Runs a step for every matrix; `operations` is about what one costs.
template <class D, class Step>
void for_each_matrix(Step const& step, int64_t count, std::size_t workspace_bytes, double operations) {
  if (count == 0) return;
  int64_t grain = count;
  if (operations < 4e6) {
    grain = static_cast<int64_t>(1e5 / (operations + 100)) + 1;
    if (grain < (count + 63) / 64) grain = (count + 63) / 64;  // as many workspaces at most
  }
  std::size_t const stride = (workspace_bytes + 63) / 64 * 64;
  int64_t const parts = (count + grain - 1) / grain;
  Temporary<D> const workspaces(stride * static_cast<std::size_t>(parts));
  device_traits<D>::launch(BatchKernel<Step>{step, static_cast<char*>(workspaces.get()), static_cast<int64_t>(stride), count, grain}, parts, 1);
}

inline double cubed(int64_t n) { return static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n); }

/// Where elements become dangerous for an LU factorisation: below `least` reciprocals may overflow and differences are rounded to multiples of the
/// smallest number, beyond `most` sums may overflow. As bits of magnitudes.
template <class T>
struct SafeRange {
  using Bits = signed_of_size<T>;
  static constexpr int digits = sizeof(T) == 4 ? 23 : 52, bias = sizeof(T) == 4 ? 127 : 1023;
  static constexpr Bits magnitude = std::numeric_limits<Bits>::max(), least = Bits{digits + 17} << digits, most = Bits{2 * bias - 16} << digits;

  /// Whether elements are 0 or in between.
  static bool holds_all(T const* x, int64_t count) {
    typedef Bits Vector __attribute__((vector_size(16)));
    constexpr int lanes = 16 / static_cast<int>(sizeof(T));
    Vector outside{};  // sign bits
    int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
      Vector m;
      __builtin_memcpy(&m, x + k, sizeof m);
      m &= magnitude;
      outside |= (most - m) | ((m - least) & ~(m - 1));
    }
    Bits any = 0;
    for (int l = 0; l < lanes; ++l) any |= outside[l];
    for (; k < count; ++k) {
      Bits const m = bits_to<Bits>(x[k]) & magnitude;
      any |= (most - m) | ((m - least) & ~(m - 1));
    }
    return any >= 0;
  }
  /// The n by whose power of two, 2^n, a row is to be multiplied: its largest element comes to lie in [1, 2) where it is outside, but a small one beside
  /// it no lower than `least`: it may be of a column that is small throughout. 0 for other rows.
  static int exponent_of(T const* row, int64_t count) {
    Bits largest = 0, smallest = most;
    for (int64_t k = 0; k < count; ++k) {
      Bits const m = bits_to<Bits>(row[k]) & magnitude;
      largest = m > largest ? m : largest;
      smallest = m != 0 && m < smallest ? m : smallest;
    }
    if (largest == 0 || (largest >= least && largest <= most) || largest >> digits > 2 * bias) return 0;
    int const exponent = -SITU_LIBM(ilogb)(static_cast<double>(bits_to<T>(largest)));
    if (largest < least) return exponent;
    int const lowest = smallest < least ? 0 : static_cast<int>((least >> digits) - (smallest >> digits));
    return exponent < lowest ? lowest : exponent;
  }
};

/// Rows of a square matrix brought out of the reach of over- and underflow, by powers of two: LAPACK's pivots stay the same, for to LAPACK they
/// are columns. Writes the exponent of each row; gives their sum.
template <class T>
SITU_NOINLINE int64_t scale_rows(T* matrix, int64_t n, integer* exponents) {
  int64_t sum = 0;
  bool const safe = SafeRange<T>::holds_all(matrix, n * n);
  for (int64_t row = 0; row < n; ++row) {
    int const exponent = SITU_LIKELY(safe) ? 0 : SafeRange<T>::exponent_of(matrix + row * n, n);
    exponents[row] = as_integer(exponent);
    sum += exponent;
    for (int64_t k = 0; exponent != 0 && k < n; ++k) matrix[row * n + k] = times_power_of_two(matrix[row * n + k], exponent);
  }
  return sum;
}
/// Multiplies element k of every row of x by 2^exponents[k].
template <class T>
void scale_elements(T* x, int64_t rows, int64_t n, integer const* exponents) {
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t row = 0; exponents[k] != 0 && row < rows; ++row) x[row * n + k] = times_power_of_two(x[row * n + k], exponents[k]);
  }
}

template <class T>
struct Factor {
  T* a;
  integer* pivots;
  integer* exponents;
  int32_t* reports;
  int64_t n;
  void operator()(int64_t i, void*) const {
    scale_rows(a + i * n * n, n, exponents + i * n);
    reports[i] = static_cast<int32_t>(Routines<T>::getrf(by_columns, as_integer(n), as_integer(n), a + i * n * n, leading(n), pivots + i * n));
  }
};

/// The factors are those of the transposes.
template <class T>
struct SolveFactored {
  T const* factors;
  integer const* pivots;
  integer const* exponents;
  T* b;
  int64_t n, columns;
  BatchMap factors_of;
  void operator()(int64_t i, void*) const {
    int64_t const f = factors_of(i);
    scale_elements(b + i * n * columns, columns, n, exponents + f * n);
    Routines<T>::getrs(by_columns, 'T', as_integer(n), as_integer(columns), factors + f * n * n, leading(n), pivots + f * n, b + i * n * columns, leading(n));
  }
};

template <class T>
struct Inverse {
  T* a;
  int32_t* reports;
  int64_t n, lwork;
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(lwork) * sizeof(T) + static_cast<std::size_t>(2 * n) * sizeof(integer); }
  void operator()(int64_t i, void* workspace) const {
    T* const work = static_cast<T*>(workspace);
    auto* const pivots = reinterpret_cast<integer*>(work + lwork);
    T* const matrix = a + i * n * n;
    scale_rows(matrix, n, pivots + n);
    integer report = Routines<T>::getrf(by_columns, as_integer(n), as_integer(n), matrix, leading(n), pivots);
    if (report == 0) report = Routines<T>::getri(by_columns, as_integer(n), matrix, leading(n), pivots, work, as_integer(lwork));
    scale_elements(matrix, n, n, pivots + n);
    reports[i] = static_cast<int32_t>(report);
  }
};

/// The determinant, or its sign and the logarithm of its magnitude.
template <class T>
struct Determinant {
  T* a;
  T* det;  ///< or null
  T* sign;
  T* logarithm;
  int64_t n;
  void operator()(int64_t i, void* workspace) const {
    auto* const pivots = static_cast<integer*>(workspace);
    T* const matrix = a + i * n * n;
    PivotProduct product;
    product.multiply_power(-scale_rows(matrix, n, pivots));
    Routines<T>::getrf(by_columns, as_integer(n), as_integer(n), matrix, leading(n), pivots);
    for (int64_t k = 0; k < n; ++k) product.multiply(static_cast<double>(pivots[k] == k + 1 ? matrix[k * (n + 1)] : -matrix[k * (n + 1)]));
    if (det) det[i] = static_cast<T>(product.value());
    else sign[i] = static_cast<T>(product.sign()), logarithm[i] = static_cast<T>(product.logarithm());
  }
};

/// What is the lower triangle to us is the upper one to LAPACK.
template <class T>
struct Cholesky {
  T* a;
  int32_t* reports;
  int64_t n;
  bool upper;
  void operator()(int64_t i, void*) const {
    T* const matrix = a + i * n * n;
    int64_t const refused = beside_infinity(matrix);
    integer report = refused ? as_integer(refused) : Routines<T>::potrf(by_columns, upper ? 'L' : 'U', as_integer(n), matrix, leading(n));
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t k = upper ? 0 : row + 1; k < (upper ? row : n); ++k) matrix[row * n + k] = 0;
      T const& root = matrix[row * (n + 1)];
      if (report == 0 && !all_finite(&root, 1) && !(root > 0)) report = as_integer(row + 1);  // some versions let NaN pass
    }
    reports[i] = static_cast<int32_t>(report);
  }

  /// Where the diagonal holds infinity: the first row in which something else is not finite, counted from 1; else 0. Some versions multiply it by 0.
  int64_t beside_infinity(T const* matrix) const {
    bool finite = true;
    for (int64_t row = 0; row < n; ++row) finite &= all_finite(matrix + row * (n + 1), 1);
    for (int64_t row = 0; !finite && row < n; ++row) {
      bool const rest = upper ? all_finite(matrix + row * (n + 1) + 1, n - row - 1) : all_finite(matrix + row * n, row);
      if (!rest || !(matrix[row * (n + 1)] > 0)) return row + 1;
    }
    return 0;
  }
};

/// `a` holds the columns of matrices [rows, columns], and has room for q_columns of them.
template <class T>
struct Qr {
  T* a;
  T* r;
  int64_t rows, columns, a_columns, q_columns, r_rows, lwork;
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(lwork + reflectors()) * sizeof(T); }
  int64_t reflectors() const { return rows < columns ? rows : columns; }
  void operator()(int64_t i, void* workspace) const {
    T* const work = static_cast<T*>(workspace);
    T* const tau = work + lwork;
    T* const matrix = a + i * rows * a_columns;
    T* const triangle = r + i * r_rows * columns;
    if (reflectors() > 0) Routines<T>::geqrf(by_columns, as_integer(rows), as_integer(columns), matrix, leading(rows), tau, work, as_integer(lwork));
    for (int64_t j = 0; j < r_rows; ++j) {
      for (int64_t k = 0; k < columns; ++k) triangle[j * columns + k] = j <= k ? matrix[k * rows + j] : T(0);
    }
    if (reflectors() > 0) {
      Routines<T>::orgqr(by_columns, as_integer(rows), as_integer(q_columns), as_integer(reflectors()), matrix, leading(rows), tau, work, as_integer(lwork));
    } else {
      for (int64_t k = 0; k < rows * q_columns; ++k) matrix[k] = k % (rows + 1) == 0 ? T(1) : T(0);
    }
  }
};

/// LAPACK sees the transposes, so that its U is our Vh and its Vh our U, each as we want them to lie.
template <class T>
struct Svd {
  T* a;
  T* s;
  T* u;
  T* vh;
  int32_t* reports;
  int64_t rows, columns, lwork;
  char job;  ///< 'A' all of U and Vh, 'S' what belongs to singular values, 'N' none
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(lwork) * sizeof(T) + static_cast<std::size_t>(8 * values()) * sizeof(integer); }
  int64_t values() const { return rows < columns ? rows : columns; }
  void operator()(int64_t i, void* workspace) const {
    T* const work = static_cast<T*>(workspace);
    T* const matrix = a + i * rows * columns;
    int64_t const u_columns = job == 'A' ? rows : values(), vh_rows = job == 'A' ? columns : values();
    T* const left = job == 'N' ? nullptr : u + i * rows * u_columns;
    T* const right = job == 'N' ? nullptr : vh + i * vh_rows * columns;
    if (values() == 0) {
      if (job == 'A') fill_identity(left, rows), fill_identity(right, columns);
      reports[i] = 0;
    } else if (!all_finite(matrix, rows * columns)) {
      reports[i] = report_not_finite;
    } else {
      reports[i] = static_cast<int32_t>(Routines<T>::gesdd(by_columns, job, as_integer(columns), as_integer(rows), matrix, leading(columns), s + i * values(), right,
                                                           leading(columns), left, leading(u_columns), work, as_integer(lwork),
                                                           reinterpret_cast<integer*>(work + lwork)));
    }
  }
};

template <class T>
struct Eigh {
  T* a;
  T* values;
  int32_t* reports;
  int64_t n, lwork, liwork;
  bool upper, vectors;
  std::size_t workspace_bytes() const { return static_cast<std::size_t>(lwork) * sizeof(T) + static_cast<std::size_t>(liwork) * sizeof(integer); }
  void operator()(int64_t i, void* workspace) const {
    T* const work = static_cast<T*>(workspace);
    T* const matrix = a + i * n * n;
    bool finite = true;
    for (int64_t row = 0; row < n; ++row) finite &= upper ? all_finite(matrix + row * (n + 1), n - row) : all_finite(matrix + row * n, row + 1);
    if (!finite) {
      reports[i] = report_not_finite;
    } else {
      reports[i] = static_cast<int32_t>(Routines<T>::syevd(by_columns, vectors ? 'V' : 'N', upper ? 'L' : 'U', as_integer(n), matrix, leading(n), values + i * n, work,
                                                           as_integer(lwork), reinterpret_cast<integer*>(work + lwork), as_integer(liwork)));
    }
  }
};

}  // namespace detail::lapack

namespace detail {

/// Every function takes fresh tensors that it may write over, and enqueues.
template <class D>
struct Linalg<D, cpu_kernels> {
  /// Writes an expression to a tensor, broadcast.
  template <class T, class E>
  static void write(Tensor<T, D> to, E const& e) {
    to.assign(e);
  }

  /// x of a x = b: `b` holds the columns of the right sides, and then those of the solutions.
  template <class T>
  static void solve(Tensor<T, D> a, Tensor<T, D> b, MatrixReports<D> const& reports) {
    MatrixShape const as(a.shape(), "solve"), bs(b.shape(), "solve");
    int64_t const n = as.rows;
    if (n == 0) return clear(reports, as.count());
    Temporary<D> const pivots(static_cast<std::size_t>(2 * as.count() * n) * sizeof(lapack::integer));
    auto *const first_pivot = static_cast<lapack::integer*>(pivots.get()), *const exponents = first_pivot + as.count() * n;
    lapack::for_each_matrix<D>(lapack::Factor<T>{a.data(), first_pivot, exponents, reports.data(), n}, as.count(), 0, lapack::cubed(n));
    lapack::for_each_matrix<D>(lapack::SolveFactored<T>{a.data(), first_pivot, exponents, b.data(), n, bs.rows, BatchMap(as.batch, bs.batch)}, bs.count(), 0,
                               2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(bs.rows));
  }

  template <class T>
  static Tensor<T, D> inverse(Tensor<T, D> a, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "inv");
    int64_t const n = shape.rows;
    if (n == 0) return clear(reports, shape.count()), a;
    T answer = 0;
    lapack::integer pivot = 0;
    lapack::Routines<T>::getri(lapack::by_columns, lapack::as_integer(n), &answer, lapack::leading(n), &pivot, &answer, -1);
    lapack::Inverse<T> const step{a.data(), reports.data(), n, lapack::asked_for(answer, "inv")};
    lapack::for_each_matrix<D>(step, shape.count(), step.workspace_bytes(), 2 * lapack::cubed(n));
    return a;
  }

  /// `det`, or with a null `det` the sign and the logarithm.
  template <class T>
  static void determinant(Tensor<T, D> a, T* det, T* sign, T* logarithm) {
    MatrixShape const shape(a.shape(), "det");
    int64_t const n = shape.rows;
    lapack::for_each_matrix<D>(lapack::Determinant<T>{a.data(), det, sign, logarithm, n}, shape.count(), static_cast<std::size_t>(n) * sizeof(lapack::integer),
                               lapack::cubed(n));
  }

  template <class T>
  static void cholesky(Tensor<T, D> a, bool upper, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "cholesky");
    lapack::for_each_matrix<D>(lapack::Cholesky<T>{a.data(), reports.data(), shape.rows, upper}, shape.count(), 0, lapack::cubed(shape.rows) / 3);
  }

  /// `a` [..., columns or more, rows] holds the columns of matrices, and then those of q; r is contiguous.
  template <class T>
  static void qr(Tensor<T, D> a, Tensor<T, D> r, int64_t q_columns) {
    MatrixShape const as(a.shape(), "qr"), rs(r.shape(), "qr");
    lapack::Qr<T> step{a.data(), r.data(), as.columns, rs.columns, as.rows, q_columns, rs.rows, 0};
    if (step.reflectors() > 0) {
      T factor = 0, product = 0;
      auto const m = lapack::as_integer(step.rows), n = lapack::as_integer(step.columns), q = lapack::as_integer(q_columns), k = lapack::as_integer(step.reflectors());
      lapack::Routines<T>::geqrf(lapack::by_columns, m, n, &factor, m, &factor, &factor, -1);
      lapack::Routines<T>::orgqr(lapack::by_columns, m, q, k, &product, m, &product, &product, -1);
      step.lwork = lapack::asked_for(factor > product ? factor : product, "qr");
    }
    lapack::for_each_matrix<D>(step, as.count(), step.workspace_bytes(),
                               4.0 * static_cast<double>(step.rows) * static_cast<double>(as.rows) * static_cast<double>(step.reflectors()));
  }

  /// `u` and `vh` are contiguous; null data without vectors.
  template <class T>
  static void svd(Tensor<T, D> a, Tensor<T, D> s, Tensor<T, D> u, Tensor<T, D> vh, char job, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "svd");
    bool const vectors = job != 'N';
    lapack::Svd<T> step{a.data(), s.data(), vectors ? u.data() : nullptr, vectors ? vh.data() : nullptr, reports.data(), shape.rows, shape.columns, 0, job};
    if (step.values() > 0) {
      T answer = 0;
      lapack::integer number = 0;
      auto const m = lapack::as_integer(shape.columns), n = lapack::as_integer(shape.rows);
      auto const vt_rows = job == 'A' ? n : lapack::as_integer(step.values());
      lapack::Routines<T>::gesdd(lapack::by_columns, job, m, n, &answer, m, &answer, &answer, m, &answer, vt_rows, &answer, -1, &number);
      step.lwork = lapack::asked_for(answer, "svd");
    }
    lapack::for_each_matrix<D>(step, shape.count(), step.workspace_bytes(),
                               10.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * static_cast<double>(step.values()));
  }

  /// Afterwards `a` holds the eigenvectors as rows.
  template <class T>
  static void eigh(Tensor<T, D> a, Tensor<T, D> values, bool upper, bool vectors, MatrixReports<D> const& reports) {
    MatrixShape const shape(a.shape(), "eigh");
    int64_t const n = shape.rows;
    if (n == 0) return clear(reports, shape.count());
    T answer = 0;
    lapack::integer number = 0;
    lapack::Routines<T>::syevd(lapack::by_columns, vectors ? 'V' : 'N', upper ? 'L' : 'U', lapack::as_integer(n), &answer, lapack::leading(n), &answer, &answer, -1, &number, -1);
    lapack::Eigh<T> const step{a.data(), values.data(), reports.data(), n, lapack::asked_for(answer, "eigh"), static_cast<int64_t>(number), upper, vectors};
    lapack::for_each_matrix<D>(step, shape.count(), step.workspace_bytes(), 9 * lapack::cubed(n));
  }

 private:
  struct Clear {
    int32_t* reports;
    void operator()(int64_t first, int64_t last) const {
      for (int64_t i = first; i < last; ++i) reports[i] = 0;
    }
  };
  static void clear(MatrixReports<D> const& reports, int64_t count) {
    if (count > 0) device_traits<D>::launch(Clear{reports.data()}, count, count);
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
