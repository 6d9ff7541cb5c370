/// What linear algebra shares between devices: which element types and devices it is for, shapes, and error codes.
///
/// A *batch* is the leading axes of a tensor whose last two are the rows and columns of matrices. LAPACK and cuSOLVER see
/// matrices by columns: a contiguous tensor of matrices is, to them, the same matrices transposed.
#pragma once

#include <vector>

#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {

namespace error {
template <class Device>
struct linear_algebra_on_the_host_needs_LAPACK__define_SITU_WITH_LAPACK_and_link_lapacke {};
template <class Device>
struct linear_algebra_on_Cuda_needs_SITU_WITH_CUDA__link_the_target_situ_cuda_or_compile_with_nvcc {};
template <class T>
struct linear_algebra_is_for_float_and_double__use_to_or_cast_first {};
}  // namespace error

namespace detail {

/// How a family of kernels does linear algebra: ops/cpu/lapack.hpp, ops/cuda/linalg.hpp.
template <class D, class Kernels = typename device_traits<D>::kernels>
struct Linalg;

inline namespace SITU_ABI_LAPACK {
inline namespace SITU_ABI_CUDA {

template <class D>
inline constexpr bool has_linalg =
#if defined(SITU_WITH_LAPACK)
    std::is_same_v<typename device_traits<D>::kernels, cpu_kernels> ||
#endif
#if defined(SITU_WITH_CUDA)
    std::is_same_v<typename device_traits<D>::kernels, cuda_kernels> ||
#endif
    false;

/// What keeps expressions from linear algebra, as the name that users read; `type` is missing where nothing does.
template <class... Es>
struct linalg_obstacle {};
template <class E, class... Es>
struct linalg_obstacle<E, Es...> : linalg_obstacle<Es...> {};
template <class E, class... Es>
  requires(!std::is_same_v<value_of<E>, float> && !std::is_same_v<value_of<E>, double>)
struct linalg_obstacle<E, Es...> : std::type_identity<error::linear_algebra_is_for_float_and_double__use_to_or_cast_first<value_of<E>>> {};
template <class E, class... Es>
  requires((std::is_same_v<value_of<E>, float> || std::is_same_v<value_of<E>, double>) && !has_linalg<device_of<E>>)
struct linalg_obstacle<E, Es...>
    : std::type_identity<std::conditional_t<std::is_same_v<typename device_traits<device_of<E>>::kernels, cpu_kernels>,
                                            error::linear_algebra_on_the_host_needs_LAPACK__define_SITU_WITH_LAPACK_and_link_lapacke<device_of<E>>,
                                            error::linear_algebra_on_Cuda_needs_SITU_WITH_CUDA__link_the_target_situ_cuda_or_compile_with_nvcc<device_of<E>>>> {};

template <class... Es>
using linalg_obstacle_of = typename linalg_obstacle<Es...>::type;

/// Expressions of float or double on a device that this build has linear algebra for.
template <class... Es>
concept matrices = (expression<Es> && ...) && !requires { typename linalg_obstacle<Es...>::type; };

}  // namespace SITU_ABI_CUDA
}  // namespace SITU_ABI_LAPACK

/// The leading axes of a stack of matrices.
inline Shape batch_of(Shape const& shape) { return Shape(shape.data(), shape.rank() - 2); }

/// A shape with further axes at its end.
template <class... Extents>
Shape with_axes(Shape shape, Extents... extents) {
  (shape.push_back(extents), ...);
  return shape;
}

/// The rows and columns of a stack of matrices. Throws ShapeError below two axes, and beyond what LAPACK can count.
struct MatrixShape {
  Shape batch;
  int64_t rows, columns;

  MatrixShape(Shape const& shape, char const* who) {
    if (shape.rank() < 2) {
      fail<ShapeError>(who, ": shape ", shape, " has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes", ": a matrix has 2, a stack of them more; use reshape");
    }
    batch = batch_of(shape);
    rows = shape[shape.rank() - 2], columns = shape[shape.rank() - 1];
    if (rows > INT32_MAX || columns > INT32_MAX) fail<ShapeError>(who, ": shape ", shape, " is too large: LAPACK and cuSOLVER take at most ", INT32_MAX, " rows or columns");
  }
  int64_t smaller() const { return rows < columns ? rows : columns; }
  int64_t count() const { return product(batch); }
};

inline MatrixShape square_shape(Shape const& shape, char const* who) {
  MatrixShape const result(shape, who);
  if (result.rows != result.columns) fail<ShapeError>(who, ": shape ", shape, " holds no square matrices: ", result.rows, " != ", result.columns);
  return result;
}

/// Whether there is no NaN and no infinity; looks at the bits, so that it holds under -ffast-math too.
template <class T>
bool all_finite(T const* x, int64_t count) {
  using Bits = std::make_unsigned_t<signed_of_size<T>>;
  constexpr Bits exponent = sizeof(T) == 4 ? Bits{0x7f800000u} : static_cast<Bits>(0x7ff0000000000000ull);
  bool finite = true;
  for (int64_t k = 0; k < count; ++k) finite &= (bits_to<Bits>(x[k]) & exponent) != exponent;
  return finite;
}

/// x times 2^n, rounded once.
template <class T>
T times_power_of_two(T x, int64_t n) {
  return static_cast<T>(SITU_LIBM(scalbn)(static_cast<double>(x), static_cast<int>(n < -5000 ? -5000 : n > 5000 ? 5000 : n)));
}

/// The product of the pivots of an LU factorisation, as a number times a power of two, so that no part of it over- or underflows: 0 when one is 0,
/// NaN or infinity where one is not finite.
class PivotProduct {
 public:
  void multiply(double pivot) {
    constexpr uint64_t exponents = uint64_t{0x7ff} << 52;
    uint64_t bits = bits_to<uint64_t>(pivot);
    if (SITU_UNLIKELY((bits & exponents) == 0 || (bits & exponents) == exponents)) {
      bool const is_zero = (bits & ~(uint64_t{1} << 63)) == 0, is_finite = (bits & exponents) == 0;
      zero_ = zero_ || is_zero;
      finite_ = finite_ && is_finite;
      if (is_zero || !is_finite) return void(special_ *= pivot);
      bits = bits_to<uint64_t>(times_power_of_two(pivot, 60));
      exponent_ -= 60;
    }
    number_ *= bits_to<double>((bits & ~exponents) | uint64_t{1023} << 52);
    exponent_ += static_cast<int64_t>((bits & exponents) >> 52) - 1023;
    if (SITU_UNLIKELY(SITU_LIBM(fabs)(number_) > 0x1p500)) number_ *= 0x1p-500, exponent_ += 500;
  }
  /// As if it had also been multiplied by 2^n.
  void multiply_power(int64_t n) { exponent_ += n; }

  double value() const { return !finite_ ? special_ * number_ : zero_ ? 0 : times_power_of_two(number_, exponent_); }
  double sign() const {
    double const number = finite_ ? number_ : special_ * number_;
    return zero_ && finite_ ? 0 : number > 0 ? 1 : number < 0 ? -1 : number;
  }
  /// Of the magnitude.
  double logarithm() const {
    if (!finite_) return SITU_LIBM(log)(SITU_LIBM(fabs)(special_));
    if (zero_) return -std::numeric_limits<double>::infinity();
    int const more = SITU_LIBM(ilogb)(number_ * 0x1.6a09e667f3bcdp0);  // what is left is between the roots of 1/2 and 2
    return SITU_LIBM(log)(SITU_LIBM(fabs)(times_power_of_two(number_, -more))) + static_cast<double>(exponent_ + more) * 0.69314718055994530942;
  }

 private:
  double number_ = 1, special_ = 1;  ///< of the finite pivots that are not 0, and of the others
  int64_t exponent_ = 0;
  bool zero_ = false, finite_ = true;
};

/// Which matrix of one batch stands beside matrix i of a batch that it is broadcast to.
struct BatchMap {
  int rank = 0;
  int64_t sizes[max_rank] = {}, steps[max_rank] = {};

  BatchMap(Shape const& from, Shape const& to) : rank(to.rank()) {
    Layout const layout = expanded(Layout(from), to);
    for (int k = 0; k < rank; ++k) sizes[k] = to[k], steps[k] = layout.strides[k];
  }
  int64_t operator()(int64_t i) const {
    int64_t result = 0;
    for (int k = rank - 1; k >= 0; --k) {
      result += i % sizes[k] * steps[k];
      i /= sizes[k];
    }
    return result;
  }
};

/// What the routines report of each matrix, in the device's memory: 0 where it went well.
template <class D>
class MatrixReports {
 public:
  explicit MatrixReports(Shape const& batch) : batch_(batch), count_(product(batch)), memory_(static_cast<std::size_t>(count_) * sizeof(int32_t)) {}
  int32_t* data() const { return static_cast<int32_t*>(memory_.get()); }

  /// Waits, and throws LinalgError about the first matrix that has a report: "who: matrix [1, 2] of the batch <words(report)>".
  template <class Words>
  void check(char const* who, Words words) const {
    if (count_ == 0) return;
    std::vector<int32_t> reports(static_cast<std::size_t>(count_));
    device_traits<D>::copy_to_host(reports.data(), memory_.get(), reports.size() * sizeof(int32_t));
    for (int64_t i = 0; i < count_; ++i) {
      if (int64_t const report = reports[static_cast<std::size_t>(i)]; SITU_UNLIKELY(report != 0)) fail_matrix(who, i, words(report));
    }
  }

 private:
  [[noreturn]] __attribute__((noinline, cold)) void fail_matrix(char const* who, int64_t i, std::string const& words) const {
    if (batch_.rank() == 0) fail<LinalgError>(who, ": the matrix ", words);
    Shape index = batch_;
    for (int k = batch_.rank() - 1; k >= 0; --k) {
      index[k] = i % batch_[k];
      i /= batch_[k];
    }
    fail<LinalgError>(who, ": matrix ", index, " of the batch ", batch_, " ", words);
  }

  Shape batch_;
  int64_t count_;
  Temporary<D> memory_;
};

/// The report of a matrix that holds NaN or infinity where a routine would not end well.
inline constexpr int32_t report_not_finite = INT32_MAX;

inline std::string words_of_singular(int64_t) {
  return "is singular: a pivot of its LU factorisation is 0; lstsq and pinv take singular matrices";
}
inline std::string words_of_indefinite(int64_t report) {
  return text("is not positive definite: its leading block of ", report, " x ", report, " is not");
}
inline std::string words_of_convergence(int64_t report) {
  if (report == report_not_finite) return "holds NaN or infinity";
  return "gave no answer: the iteration did not converge";
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
