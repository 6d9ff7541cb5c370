/// Datasets: what has a size() and gives sample i.
///
///     struct Squares {
///       int64_t size() const { return 100; }
///       auto get(int64_t i) const { return std::pair(full({3}, static_cast<float>(i)), i * i); }
///     };
///
/// A sample is a field, or a tuple, pair or array of fields. A field is
///
///     a tensor, or a formula, in host memory   of shape S; a batch of n is a tensor of shape [n, S...], of the same element type
///     an array, vector or span of elements     the same, with one axis
///     a number                                 a batch is a tensor of shape [n]: of int64 for integers, of bool, or of the number's own type
///
/// All fields of the samples of one batch have one shape. get() is called from several threads at once when a loader has workers.
/// What is random about a sample comes from a Generator as second argument, `get(i, generator)`: a loader gives one that depends on its
/// seed, the epoch and i alone.
///
/// A dataset may make a whole batch itself, which is faster, and the way to pad samples of different shapes:
///
///     void get_batch(std::span<int64_t const> indices, data::BatchField<float>& x, data::BatchField<int64_t>& y) const;
#pragma once

#include <cstring>
#include <initializer_list>
#include <span>
#include <tuple>

#include <situ/ops/random.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace data {

/// Where get_batch writes one field of a batch.
template <element T>
class BatchField {
 public:
  /// Room for rows() samples of that shape, side by side, uninitialised; called once per batch. Throws ShapeError, OutOfMemory.
  virtual T* room(Shape const& sample) = 0;
  int64_t rows() const { return rows_; }

 protected:
  ~BatchField() = default;
  int64_t rows_ = 0;
};

}  // namespace data

namespace detail {

// ---- fields ------------------------------------------------------------------------------------------------------------

template <class X>
concept element_range = !expression<X> && requires(X const& x) {
  requires element<std::remove_cvref_t<decltype(*x.data())>>;
  x.size();
};

/// What a field's elements become in a batch; no member for what is no field.
template <class X>
struct batched {};
template <number X>
struct batched<X> {
  using type = std::conditional_t<std::is_integral_v<X> && !std::is_same_v<X, bool>, int64_t, typename canonical<X>::type>;
};
template <expression X>
  requires(host_device<device_of<X>>)
struct batched<X> {
  using type = value_of<X>;
};
template <element_range X>
struct batched<X> {
  using type = std::remove_cvref_t<decltype(*std::declval<X const&>().data())>;
};
template <class X>
concept sample_field = requires { typename batched<std::remove_cvref_t<X>>::type; };

template <class X>
concept tuple_like = requires { std::tuple_size<X>::value; };

/// The element types of a sample's fields.
template <class... Ts>
struct FieldTypes {
  static constexpr std::size_t count = sizeof...(Ts);
};
template <class S>
struct field_types_of {
  using type = FieldTypes<>;
};
template <sample_field S>
struct field_types_of<S> {
  using type = FieldTypes<typename batched<S>::type>;
};
template <class S, class Indices>
struct field_types_of_tuple {
  using type = FieldTypes<>;
};
template <class S, std::size_t... Ks>
  requires(sample_field<std::tuple_element_t<Ks, S>> && ...)
struct field_types_of_tuple<S, std::index_sequence<Ks...>> {
  using type = FieldTypes<typename batched<std::remove_cvref_t<std::tuple_element_t<Ks, S>>>::type...>;
};
template <tuple_like S>
  requires(!sample_field<S>)
struct field_types_of<S> : field_types_of_tuple<S, std::make_index_sequence<std::tuple_size_v<S>>> {};

// ---- samples -----------------------------------------------------------------------------------------------------------

template <class X>
concept gives_samples = requires(X const& x, int64_t i) { x.get(i); };
template <class X>
concept gives_random_samples = requires(X const& x, int64_t i, Generator& generator) { x.get(i, generator); };
template <class X>
concept has_size = requires(X const& x) {
  { x.size() } -> std::convertible_to<int64_t>;
};

template <class X>
decltype(auto) sample_at(X const& x, int64_t i, Generator& generator) {
  if constexpr (gives_random_samples<X>) return x.get(i, generator);
  else return x.get(i);
}
template <class X>
using sample_of = std::remove_cvref_t<decltype(sample_at(std::declval<X const&>(), 0, std::declval<Generator&>()))>;

}  // namespace detail

namespace data {

/// What a DataLoader reads: size(), and get(i) or get(i, generator), which gives a sample of tensors and numbers.
template <class X>
concept dataset = detail::has_size<X> && (detail::gives_samples<X> || detail::gives_random_samples<X>) &&
                  (detail::field_types_of<detail::sample_of<X>>::type::count > 0);

}  // namespace data

namespace error {
template <class X>
struct this_is_no_dataset__give_it_an_int64_t_size_const {};
template <class X>
struct this_is_no_dataset__give_it_a_get_of_an_index_const {};
template <class Sample>
struct a_sample_is_a_tensor_or_number_on_the_host_or_a_tuple_of_them {};
template <class... Tensors>
struct a_TensorDataset_is_read_by_the_host__use_cpu {};
}  // namespace error

namespace detail {

/// Why X is no dataset.
template <class X>
constexpr auto dataset_error() {
  if constexpr (!has_size<X>) return std::type_identity<error::this_is_no_dataset__give_it_an_int64_t_size_const<X>>{};
  else if constexpr (!gives_samples<X> && !gives_random_samples<X>) return std::type_identity<error::this_is_no_dataset__give_it_a_get_of_an_index_const<X>>{};
  else return std::type_identity<error::a_sample_is_a_tensor_or_number_on_the_host_or_a_tuple_of_them<sample_of<X>>>{};
}

// ---- rows --------------------------------------------------------------------------------------------------------------

/// Whether the rows of a tensor lie each in one piece.
inline bool rows_in_one_piece(Layout const& layout) {
  int64_t packed = 1;
  for (int k = layout.rank() - 1; k > 0; --k) {
    if (layout.shape[k] != 1 && layout.strides[k] != packed) return false;
    packed *= layout.shape[k];
  }
  return true;
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_row(char const* who, int64_t index, int64_t rows) {
  fail_with<IndexError>({who, ": index ", index, " is out of range for ", rows, rows == 1 ? " sample" : " samples", ": indices are 0 to ", rows - 1});
}

/// The number of rows of tensors of these shapes.
[[gnu::cold]] inline int64_t common_rows(std::initializer_list<Shape const*> shapes) {
  Shape const& first = **shapes.begin();
  for (Shape const* shape : shapes) {
    if (shape->empty()) fail_with<ShapeError>({"TensorDataset: a tensor of shape [] has no rows; every tensor needs at least one axis"});
    if ((*shape)[0] != first[0]) {
      fail_with<ShapeError>({"TensorDataset: tensors of shapes ", first, " and ", *shape, " have different numbers of rows: ", first[0], " != ", (*shape)[0]});
    }
  }
  return first[0];
}

template <std::size_t Bytes>
SITU_INLINE void copy_rows(char* to, char const* from, std::size_t bytes, int64_t step, std::span<int64_t const> indices, std::size_t ahead) {
  auto const row = [&](std::size_t k) { return from + indices[k] * step; };
  std::size_t const n = indices.size(), size = Bytes ? Bytes : bytes;
  for (std::size_t k = 0, later = ahead < n ? ahead : n - 1; k < n; ++k, to += size) {
    __builtin_prefetch(row(later));
    if (size > 64) __builtin_prefetch(row(later) + 64);
    if (later + 1 < n) ++later;
    std::memcpy(to, row(k), size);
  }
}

/// Copies rows of `bytes` bytes that begin every `step` bytes. Rows that follow each other are copied as one.
SITU_NOINLINE inline void gather_rows(void* to, void const* from, std::size_t bytes, int64_t step, int64_t rows, std::span<int64_t const> indices) {
  if (indices.empty()) return;
  bool consecutive = step == static_cast<int64_t>(bytes);
  for (std::size_t k = 0; k < indices.size(); ++k) {
    if (SITU_UNLIKELY(static_cast<uint64_t>(indices[k]) >= static_cast<uint64_t>(rows))) fail_row("TensorDataset", indices[k], rows);
    consecutive = consecutive && indices[k] == indices[0] + static_cast<int64_t>(k);
  }
  if (bytes == 0) return;
  auto* const target = static_cast<char*>(to);
  auto const* const source = static_cast<char const*>(from);
  if (consecutive) {
    std::memcpy(target, source + indices[0] * step, bytes * indices.size());
    return;
  }
  switch (bytes) {
    case 1: return copy_rows<1>(target, source, bytes, step, indices, 16);
    case 2: return copy_rows<2>(target, source, bytes, step, indices, 16);
    case 4: return copy_rows<4>(target, source, bytes, step, indices, 16);
    case 8: return copy_rows<8>(target, source, bytes, step, indices, 16);
    default: return copy_rows<0>(target, source, bytes, step, indices, 4);
  }
}

/// The rows of a tensor, to the room that a field has for them.
SITU_NOINLINE inline void gather_field(Layout const& layout, void const* from, int64_t item, std::span<int64_t const> indices, void* field, void* (*room)(void*, Shape const&)) {
  Shape sample = layout.shape;
  sample.erase(0);
  void* const to = room(field, sample);
  gather_rows(to, from, static_cast<std::size_t>(product(sample) * item), layout.strides[0] * item, layout.shape[0], indices);
}

/// The tensor that a dataset keeps of an expression; nothing of anything else, since clang 14 looks at results before constraints.
template <class E>
struct stored_rows {};
template <expression E>
struct stored_rows<E> : std::remove_cvref<decltype(evaluated(std::declval<E const&>()))> {};
}  // namespace detail

namespace data {

/// Rows of tensors: sample i is row i of each.
///
///     TensorDataset train{images, labels};
///
/// Shape     all tensors have the same number of rows. Sample i is (images[i], labels[i]), a tuple of views; of one tensor, the view itself.
/// Device    `Cpu` or `Pinned`. The tensors are shared, not copied; one whose rows have gaps inside is made contiguous once.
/// Throws    ShapeError for a tensor without axes, or when the numbers of rows differ.
/// Cost      a batch is gathered in one pass, straight into the loader's buffer; no tensor per sample.
template <class... Tensors>
class TensorDataset {
 public:
  template <class... Es, class Error = error::a_TensorDataset_is_read_by_the_host__use_cpu<Es...>>
    requires(expression<Es> && ...)
  TensorDataset(Es const&...) = delete;
};

template <element... Ts, host_device... Ds>
  requires(sizeof...(Ts) > 0)
class TensorDataset<Tensor<Ts, Ds>...> {
 public:
  TensorDataset(Tensor<Ts, Ds> const&... tensors) : tensors_(in_rows(tensors)...), size_(detail::common_rows({&tensors.shape()...})) {}

  int64_t size() const { return size_; }
  /// Throws IndexError.
  auto get(int64_t i) const {
    if (i < 0 || i >= size_) detail::fail_row("TensorDataset", i, size_);
    return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      if constexpr (sizeof...(Ks) == 1) return (Tensor<Ts, Ds>(std::get<Ks>(tensors_)[i]), ...);
      else return std::tuple<Tensor<Ts, Ds>...>(std::get<Ks>(tensors_)[i]...);
    }(std::index_sequence_for<Ts...>{});
  }
  void get_batch(std::span<int64_t const> indices, BatchField<Ts>&... fields) const {
    [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { (gather(std::get<Ks>(tensors_), indices, fields), ...); }(std::index_sequence_for<Ts...>{});
  }
  /// The tensors, in a tuple.
  std::tuple<Tensor<Ts, Ds>...> const& tensors() const { return tensors_; }

 private:
  template <class X>
  static X in_rows(X const& tensor) {
    return detail::rows_in_one_piece(tensor.layout()) ? tensor : X(tensor.contiguous());
  }
  template <class T, class D>
  static void gather(Tensor<T, D> const& tensor, std::span<int64_t const> indices, BatchField<T>& field) {
    detail::gather_field(tensor.layout(), tensor.data(), sizeof(T), indices, &field,
                         [](void* to, Shape const& sample) -> void* { return static_cast<BatchField<T>*>(to)->room(sample); });
  }

  std::tuple<Tensor<Ts, Ds>...> tensors_;
  int64_t size_ = 0;
};

template <class... Es>
  requires(expression<Es> && ...)
TensorDataset(Es const&...) -> TensorDataset<typename detail::stored_rows<Es>::type...>;

}  // namespace data
}  // namespace situ::inline SITU_ABI
