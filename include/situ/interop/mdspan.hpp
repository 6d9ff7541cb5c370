/// mdspan: tensors as views of the C++23 standard's kind, and from them, without a copy. std::mdspan, CUDA's cuda::std::mdspan and Kokkos' one are all served:
/// the type is named, or deduced, and situ includes none of them.
///
///     using Matrix = std::mdspan<float, std::dextents<int, 2>, std::layout_stride>;
///
///     auto m = interop::to_mdspan<Matrix>(x);        // x of two axes, whatever its strides: m[1, 2] is x(1, 2)
///     Tensor y = interop::from_mdspan(m);            // a Tensor<float> that sees the same elements
///
/// Source    https://en.cppreference.com/w/cpp/container/mdspan
#pragma once

#include <utility>

#include <situ/interop/named.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {

namespace error {
template <class M>
struct to_mdspan_is_given_the_type_of_an_mdspan__as_in_to_mdspan_of_std_mdspan {};
template <class M>
struct from_mdspan_takes_an_mdspan {};
template <class M>
struct the_accessor_of_the_mdspan_reads_more_than_plain_memory {};
template <class Theirs, class Ours>
struct the_elements_of_the_mdspan_are_of_the_type_of_the_tensor_s__convert_it_with_to {};
template <class Element>
struct a_const_tensor_gives_an_mdspan_of_const_elements {};
template <class Element>
struct a_Tensor_has_no_such_elements {};
}  // namespace error

namespace detail::mdspan {

template <class M>
concept is_mdspan = requires(M const& m) {
  typename M::element_type;
  typename M::extents_type;
  typename M::mapping_type;
  typename M::index_type;
  m.data_handle();
  m.mapping();
  M::rank();
};
/// Whose elements are what its pointer points at.
template <class M>
concept of_plain_memory = std::is_same_v<typename M::reference, typename M::element_type&> && std::is_same_v<typename M::data_handle_type, typename M::element_type*>;

template <class M>
using value_in = std::remove_const_t<typename M::element_type>;

struct none {};
template <class M, class X>
constexpr auto refusal() {
  if constexpr (!is_mdspan<M>) return std::type_identity<error::to_mdspan_is_given_the_type_of_an_mdspan__as_in_to_mdspan_of_std_mdspan<M>>{};
  else if constexpr (!named_tensor<X>) return std::type_identity<error::a_view_is_made_of_a_Tensor_with_a_name__which_keeps_its_elements<std::remove_cvref_t<X>>>{};
  else if constexpr (!of_plain_memory<M>) return std::type_identity<error::the_accessor_of_the_mdspan_reads_more_than_plain_memory<M>>{};
  else if constexpr (!std::is_same_v<value_in<M>, value_of<X>>) return std::type_identity<error::the_elements_of_the_mdspan_are_of_the_type_of_the_tensor_s__convert_it_with_to<typename M::element_type, value_of<X>>>{};
  else if constexpr (is_const_tensor<X> && !std::is_const_v<typename M::element_type>) return std::type_identity<error::a_const_tensor_gives_an_mdspan_of_const_elements<typename M::element_type>>{};
  else return std::type_identity<none>{};
}
template <class M>
constexpr auto refusal_of_mdspan() {
  if constexpr (!is_mdspan<M>) return std::type_identity<error::from_mdspan_takes_an_mdspan<M>>{};
  else if constexpr (!of_plain_memory<M>) return std::type_identity<error::the_accessor_of_the_mdspan_reads_more_than_plain_memory<M>>{};
  else if constexpr (!element<value_in<M>>) return std::type_identity<error::a_Tensor_has_no_such_elements<typename M::element_type>>{};
  else return std::type_identity<none>{};
}

/// layout_stride's, which is made of extents and strides.
template <class Mapping>
concept takes_strides = requires(typename Mapping::extents_type const& extents, Mapping const& mapping) { Mapping(extents, mapping.strides()); };

template <class Index>
inline constexpr int64_t largest = sizeof(Index) >= 8 ? INT64_MAX : static_cast<int64_t>((uint64_t{1} << (8 * sizeof(Index) - (std::is_signed_v<Index> ? 1 : 0)) % 64) - 1);

[[noreturn]] __attribute__((noinline, cold)) inline void fail_rank(Shape const& shape, int rank) {
  fail<ShapeError>("to_mdspan: shape ", shape, " has ", shape.rank(), shape.rank() == 1 ? " axis" : " axes", ", and the mdspan ", rank, "; select, flatten or unsqueeze axes, or name another mdspan");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_extent(Shape const& shape, int axis, int64_t extent) {
  fail<ShapeError>("to_mdspan: shape ", shape, " has ", shape[axis], " in axis ", axis, ", where the type of the mdspan has ", extent);
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_index(Layout const& layout, int64_t most) {
  fail<ShapeError>("to_mdspan: shape ", layout.shape, " with strides ", layout.strides, " has places beyond ", most, ", the largest number of the mdspan's index type; name one of a larger type");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_stride(Layout const& layout) {
  fail<LayoutError>("to_mdspan: shape ", layout.shape, " with strides ", layout.strides, " is flipped or broadcast, and the strides of an mdspan are positive; give a contiguous() copy");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_layout(Layout const& layout, Shape const& strides) {
  fail<LayoutError>("to_mdspan: shape ", layout.shape, " has strides ", layout.strides, ", where the layout of the mdspan has ", strides, "; name an mdspan of layout_stride, or give a copy");
}

/// The strides as an mdspan may have them: those of axes with one index, or of no elements at all, are 1 or more.
inline Shape strides_for(Layout const& layout, int64_t most) {
  if (layout.size() == 0) return Layout(layout.shape).strides;
  Shape strides = layout.strides;
  int64_t last = 0;
  for (int k = 0; k < layout.rank(); ++k) {
    if (layout.shape[k] == 1) strides[k] = 1;
    if (strides[k] < 1) fail_stride(layout);
    last += (layout.shape[k] - 1) * strides[k];
    if (strides[k] > most) fail_index(layout, most);
  }
  if (last >= most) fail_index(layout, most);
  return strides;
}

template <class M, std::size_t... K>
M make(typename M::element_type* data, Layout const& layout, std::index_sequence<K...>) {
  using Index = typename M::index_type;
  using Extents = typename M::extents_type;
  using Mapping = typename M::mapping_type;
  constexpr int rank = static_cast<int>(sizeof...(K));
  if (layout.rank() != rank) fail_rank(layout.shape, rank);
  [[maybe_unused]] auto const check = [&](int axis, std::size_t wanted) {
    if (layout.shape[axis] > largest<Index>) fail_index(layout, largest<Index>);
    if (wanted != static_cast<std::size_t>(-1) && static_cast<int64_t>(wanted) != layout.shape[axis]) fail_extent(layout.shape, axis, static_cast<int64_t>(wanted));
  };
  (check(static_cast<int>(K), static_cast<std::size_t>(Extents::static_extent(K))), ...);
  Shape const strides = strides_for(layout, largest<Index>);
  Extents const extents(static_cast<Index>(layout.shape[K])...);
  if constexpr (takes_strides<Mapping>) {
    using Strides = std::remove_cvref_t<decltype(std::declval<Mapping const&>().strides())>;  // its library's array
    return M(data, Mapping(extents, Strides{static_cast<Index>(strides[K])...}));
  } else {
    Mapping const mapping(extents);
    if constexpr (rank > 0) {
      Shape const theirs{static_cast<int64_t>(mapping.stride(K))...};
      for (int k = 0; k < rank; ++k) {
        if (layout.size() > 0 && layout.shape[k] > 1 && theirs[k] != strides[k]) fail_layout(layout, theirs);
      }
    }
    return M(data, mapping);
  }
}

}  // namespace detail::mdspan

namespace interop {

/// The elements of x as an mdspan M. Its elements are those of x, or const ones.
///
/// Shape     that of x; extents that are fixed in M are checked. layout_stride takes every layout with positive strides, others the one that is theirs.
/// Lives     as long as x does and keeps its storage, which nothing counts the mdspan for: assigning to x, as in x = e, ends it. Another handle, as in `Tensor keep = x;`, keeps
///           both.
/// Device    any: the mdspan is for code that runs where x lies. On a GPU, kernels that use it go to the stream that is the device's current one in this call.
/// Throws    ShapeError for another rank, for other extents, and for more elements than the index type of M counts; LayoutError for flipped and broadcast views, and where the
///           layout of M is not that of x; TypeError for read-only storage when the elements of M are not const.
/// Cost      nothing is copied.
template <class M, class X>
  requires std::is_same_v<typename decltype(detail::mdspan::refusal<M, X>())::type, detail::mdspan::none>
M to_mdspan(X&& x) {
  using From = std::conditional_t<std::is_const_v<typename M::element_type>, std::remove_cvref_t<X> const&, X>;
  return detail::mdspan::make<M>(detail::data_for(static_cast<From>(x), "to_mdspan"), x.layout(), std::make_index_sequence<M::rank()>());
}
template <class M, class X, class Error = typename decltype(detail::mdspan::refusal<M, X>())::type>
  requires(!std::is_same_v<Error, detail::mdspan::none>)
void to_mdspan(X&&) = delete;

/// The elements that an mdspan sees as a Tensor on the device whose memory that is, by default the Cpu: nothing is copied, and the elements are still the other's, who keeps
/// them as long as the tensor and views of it are used. Of const elements the storage is read-only.
///
/// Shape     that of the mdspan; of layout_right, layout_left, layout_stride and whatever else has strides.
/// Throws    LayoutError where the mdspan has no strides, ShapeError beyond eight axes, Error for a null pointer to elements.
template <class M, device D = Cpu>
  requires std::is_same_v<typename decltype(detail::mdspan::refusal_of_mdspan<M>())::type, detail::mdspan::none>
Tensor<detail::mdspan::value_in<M>, D> from_mdspan(M const& m, D device = {}) {
  static_assert(M::rank() <= max_rank, "situ: from_mdspan: a Tensor has at most 8 axes");
  if (!m.is_strided()) detail::fail<LayoutError>("from_mdspan: the elements of the mdspan are not a stride apart; copy them");
  Shape shape = Shape::filled(static_cast<int>(M::rank()), 0), strides = shape;
  if constexpr (M::rank() > 0) {
    for (int k = 0; k < shape.rank(); ++k) {
      auto const axis = static_cast<typename M::rank_type>(k);
      shape[k] = static_cast<int64_t>(m.extent(axis)), strides[k] = static_cast<int64_t>(m.stride(axis));
    }
  }
  if (detail::count_of(shape, "from_mdspan", sizeof(typename M::element_type)) > 0 && !m.data_handle()) {
    detail::fail<Error>("from_mdspan: the mdspan of shape ", shape, " has a null pointer in place of its elements");
  }
  return from_blob(m.data_handle(), shape, strides, detail::no_deleter{}, device);
}
template <class M, device D = Cpu, class Error = typename decltype(detail::mdspan::refusal_of_mdspan<M>())::type>
  requires(!std::is_same_v<Error, detail::mdspan::none>)
void from_mdspan(M const&, D = {}) = delete;

}  // namespace interop
}  // namespace situ::inline SITU_ABI
