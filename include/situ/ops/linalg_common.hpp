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

/// The product of the pivots of an LU factorisation: 0 when one is 0, also where the product of the others overflows.
template <class T>
class PivotProduct {
 public:
  void multiply(T pivot) {
    product_ *= pivot;
    zero_ |= pivot == 0;
    finite_ &= all_finite(&pivot, 1);
  }
  T value() const { return zero_ && finite_ ? T(0) : product_; }

 private:
  T product_ = 1;
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
