/// Eigen: tensors in host memory as its maps, without a copy, and its matrices as tensors.
///
///     #include <Eigen/Core>                                     // situ brings none, and wants it before the first call
///
///     auto m = interop::to_eigen(x);                            // x of two axes, whatever its strides: m(1, 2) is x(1, 2)
///     m.row(0) *= 2;                                            // x sees it
///     Eigen::VectorXf v = m * interop::to_eigen<1>(y);          // y of one axis is a column
///     Tensor z = interop::from_eigen(m.transpose() * m);        // a Tensor<float>, computed where it lies
///
/// Memory of an Eigen matrix that stays is a tensor by `from_blob(m.data(), {m.rows(), m.cols()}, {m.rowStride(), m.colStride()})`.
///
/// Source    Eigen 3.4: https://eigen.tuxfamily.org/dox/group__TutorialMapClass.html
#pragma once

#include <utility>

#include <situ/interop/named.hpp>

namespace Eigen {  // which <Eigen/Core> completes
template <class Derived>
class DenseBase;
template <class Scalar, int Rows, int Columns, int Options, int MaxRows, int MaxColumns>
class Matrix;
template <int Outer, int Inner>
class Stride;
template <class Plain, int Options, class Stride>
class Map;
struct half;
struct bfloat16;
}  // namespace Eigen

namespace situ::inline SITU_ABI {

namespace error {
template <class Device>
struct a_map_of_Eigen_is_of_host_memory__move_the_tensor_with_cpu {};
template <class T>
struct a_16_bit_float_is_another_type_in_Eigen__convert_the_tensor_with_to_float {};
template <int Rank>
struct a_map_of_Eigen_has_one_axis_or_two {};
template <class Map>
struct to_eigen_needs_Eigen__include_Eigen_Core {};
template <class M>
struct from_eigen_takes_a_dense_matrix_or_array__convert_others_to_one {};
template <class Scalar>
struct a_Tensor_has_no_such_elements__convert_the_matrix_with_cast {};
}  // namespace error

namespace detail::eigen {

// Eigen's constants.
inline constexpr int dynamic = -1, column_major = 0, row_major = 1;

template <class T, int Rank, int Inner>
struct MapOf {
  using type = Eigen::Map<Eigen::Matrix<T, dynamic, dynamic, row_major, dynamic, dynamic>, 0, Eigen::Stride<dynamic, Inner>>;
  using const_type = Eigen::Map<Eigen::Matrix<T, dynamic, dynamic, row_major, dynamic, dynamic> const, 0, Eigen::Stride<dynamic, Inner>>;
};
template <class T, int Inner>
struct MapOf<T, 1, Inner> {
  using type = Eigen::Map<Eigen::Matrix<T, dynamic, 1, column_major, dynamic, 1>, 0, Eigen::Stride<0, Inner>>;
  using const_type = Eigen::Map<Eigen::Matrix<T, dynamic, 1, column_major, dynamic, 1> const, 0, Eigen::Stride<0, Inner>>;
};
template <class X, int Rank, int Inner>
using map_of = std::conditional_t<is_const_tensor<X>, typename MapOf<value_of<X>, Rank, Inner>::const_type, typename MapOf<value_of<X>, Rank, Inner>::type>;

template <class M>
concept is_complete = requires { sizeof(M); };

template <class X, int Rank>
constexpr bool maps() {
  if constexpr (!named_tensor<X>) return false;
  else return host_device<device_of<X>> && !is_one_of<value_of<X>, float16, bfloat16> && (Rank == 1 || Rank == 2);
}
template <class X, int Rank, int Inner>
constexpr auto refusal() {
  if constexpr (!named_tensor<X>) return std::type_identity<error::a_view_is_made_of_a_Tensor_with_a_name__which_keeps_its_elements<std::remove_cvref_t<X>>>{};
  else if constexpr (!host_device<device_of<X>>) return std::type_identity<error::a_map_of_Eigen_is_of_host_memory__move_the_tensor_with_cpu<device_of<X>>>{};
  else if constexpr (is_one_of<value_of<X>, float16, bfloat16>) return std::type_identity<error::a_16_bit_float_is_another_type_in_Eigen__convert_the_tensor_with_to_float<value_of<X>>>{};
  else if constexpr (!maps<X, Rank>()) return std::type_identity<error::a_map_of_Eigen_has_one_axis_or_two<Rank>>{};
  else return std::type_identity<error::to_eigen_needs_Eigen__include_Eigen_Core<map_of<X, Rank, Inner>>>{};
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_rank(Shape const& shape, int rank) {
  fail<ShapeError>("to_eigen: shape ", shape, " has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes", ", and a map of ", rank, " was asked for; ",
                   shape.rank() == 1 ? "to_eigen<1> gives a column" : shape.rank() == 2 ? "to_eigen<2> gives a matrix" : "select, flatten or unsqueeze axes");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_layout(Layout const& layout, char const* wrong) {
  fail<LayoutError>("to_eigen: shape ", layout.shape, " with strides ", layout.strides, wrong);
}
inline void check(Layout const& layout, int rank, bool side_by_side, bool writes) {
  if (layout.rank() != rank) fail_rank(layout.shape, rank);
  if (layout.size() == 0) return;
  if (writes && layout.is_broadcast()) fail_layout(layout, " is a broadcast view, whose elements would be written more than once; give std::as_const(x), or a clone() of it");
  if (side_by_side && layout.shape[-1] > 1 && layout.strides[-1] != 1) fail_layout(layout, " has no rows of elements side by side; use to_eigen without the 1, or a contiguous() copy");
}

/// The element type of a tensor that is made of scalars of a matrix; void for none.
template <class Scalar>
struct ElementOf {
  using type = std::conditional_t<element<Scalar>, Scalar, void>;
};
template <class Scalar>
  requires(std::is_integral_v<Scalar> && std::is_signed_v<Scalar> && !element<Scalar>)
struct ElementOf<Scalar> {  // long long, which is as long as int64_t
  using type = signed_of_size<Scalar>;
};
template <>
struct ElementOf<Eigen::half> {
  using type = float16;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using type = bfloat16;
};

template <class Derived>
std::type_identity<Derived> derived_of(Eigen::DenseBase<Derived> const&);
template <class M>
concept dense = requires(M const& m) { eigen::derived_of(m); };
template <class M>
using dense_t = typename decltype(eigen::derived_of(std::declval<M const&>()))::type;

template <class M>
constexpr auto refusal_of_matrix() {
  if constexpr (!dense<M>) return std::type_identity<error::from_eigen_takes_a_dense_matrix_or_array__convert_others_to_one<M>>{};
  else return std::type_identity<error::a_Tensor_has_no_such_elements__convert_the_matrix_with_cast<typename dense_t<M>::Scalar>>{};
}
template <class M>
constexpr bool becomes_tensor() {
  if constexpr (dense<M>) return !std::is_void_v<typename ElementOf<typename dense_t<M>::Scalar>::type>;
  else return false;
}

/// Of a vector its only axis.
template <class E>
using row_major_of = Eigen::Matrix<typename E::Scalar, E::RowsAtCompileTime == 1 ? 1 : dynamic, E::ColsAtCompileTime == 1 ? 1 : dynamic,
                                   E::ColsAtCompileTime == 1 && E::RowsAtCompileTime != 1 ? column_major : row_major,
                                   E::RowsAtCompileTime == 1 ? 1 : dynamic, E::ColsAtCompileTime == 1 ? 1 : dynamic>;

template <class T, class E>
void write(T* to, E const& from) {
  using Scalar = typename E::Scalar;
  if constexpr (std::is_same_v<Scalar, T>) {
    Eigen::Map<row_major_of<E>, 0, Eigen::Stride<0, 0>> map(to, from.rows(), from.cols());
    if constexpr (requires { map.noalias() = from; }) map.noalias() = from;
    else map = from;  // an array
  } else if constexpr (std::is_integral_v<Scalar>) {
    eigen::write(to, from.template cast<T>());
  } else {
    auto const& values = from.eval();
    for (auto i = values.rows() * 0; i < values.rows(); ++i) {
      for (auto j = values.cols() * 0; j < values.cols(); ++j) *to++ = bits_to<T>(values.coeff(i, j));
    }
  }
}

}  // namespace detail::eigen

namespace interop {

/// The elements of x as an Eigen::Map: a matrix of two axes, or with Rank 1 a column of one; of a const tensor a map of const.
///
/// Rank      the axes of x, which Eigen has to know when it compiles.
/// Inner     1 says that the elements of each row lie side by side, which Eigen's vector code needs, and products without a copy: to_eigen<2, 1>(x). Else any strides
///           are the map's (negative ones from Eigen 3.4 on).
/// Lives     as long as x does and keeps its storage, which nothing counts the map for: assigning to x, as in x = e, ends it. Another handle, as in `Tensor keep = x;`,
///           keeps elements and map.
/// Device    Cpu and Pinned. What is copied to or from x asynchronously is waited for here, and not where the map is used later. Writes by the map are not tracked by
///           backward(), as those through data() are not.
/// Throws    ShapeError for another rank, LayoutError for a broadcast view that is not const and for rows with gaps of Inner 1, TypeError for read-only storage that is not const.
/// Cost      nothing is copied.
template <int Rank = 2, int Inner = detail::eigen::dynamic, class X>
  requires(detail::eigen::maps<X, Rank>() && detail::eigen::is_complete<detail::eigen::map_of<X, Rank, Inner>>)
detail::eigen::map_of<X, Rank, Inner> to_eigen(X&& x) {
  static_assert(Inner == 1 || Inner == detail::eigen::dynamic, "situ: to_eigen<Rank, Inner>: Inner is 1, or Eigen::Dynamic");
  using Map = detail::eigen::map_of<X, Rank, Inner>;
  Layout const& layout = x.layout();
  detail::eigen::check(layout, Rank, Inner == 1, !detail::is_const_tensor<X>);
  auto* const data = detail::data_for(x, "to_eigen");
  auto const inner = static_cast<std::ptrdiff_t>(Inner == 1 ? 1 : layout.strides[-1]);
  if constexpr (Rank == 1) return Map(data, static_cast<std::ptrdiff_t>(layout.shape[0]), {0, inner});
  else return Map(data, static_cast<std::ptrdiff_t>(layout.shape[0]), static_cast<std::ptrdiff_t>(layout.shape[1]), {static_cast<std::ptrdiff_t>(layout.strides[0]), inner});
}
template <int Rank = 2, int Inner = detail::eigen::dynamic, class X, class Error = typename decltype(detail::eigen::refusal<X, Rank, Inner>())::type>
  requires(!(detail::eigen::maps<X, Rank>() && detail::eigen::is_complete<detail::eigen::map_of<X, Rank, Inner>>))
void to_eigen(X&&) = delete;

/// The values of a dense matrix, array or expression of Eigen as a Tensor of its own, on the Cpu.
///
/// Shape     [rows, columns]; [n] of what Eigen knows to be a vector, also of a row.
/// Dtype     that of the scalars; Eigen::half gives float16, Eigen::bfloat16 bfloat16, long long int64_t. Others: m.cast<float>().
/// Throws    OutOfMemory.
/// Cost      one pass: an expression is computed where the tensor's elements lie (of 16-bit floats it is computed apart, and copied).
template <class M>
  requires(detail::eigen::becomes_tensor<M>())
auto from_eigen(M const& m) {
  using E = detail::eigen::dense_t<M>;
  using T = typename detail::eigen::ElementOf<typename E::Scalar>::type;
  E const& from = m.derived();
  Shape const shape = E::IsVectorAtCompileTime ? Shape(from.size()) : Shape(from.rows(), from.cols());
  Tensor<T, Cpu> result = Tensor<T, Cpu>::uninitialized(shape, "from_eigen");
  if (result.size() > 0) detail::eigen::write(result.data(), from);
  return result;
}
template <class M, class Error = typename decltype(detail::eigen::refusal_of_matrix<M>())::type>
  requires(!detail::eigen::becomes_tensor<M>())
void from_eigen(M const&) = delete;

}  // namespace interop
}  // namespace situ::inline SITU_ABI
