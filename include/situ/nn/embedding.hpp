/// Embedding: rows of a table, by index.
///
///     nn::Embedding<float, D> tokens{1000, 64};   nn::Embedding<float, D> words{1000, 64, {.padding_idx = 0}};
#pragma once

#include <situ/autograd/index.hpp>
#include <situ/nn/linear.hpp>

namespace situ::inline SITU_ABI {
namespace error {
template <class Input>
struct an_Embedding_is_given_a_Tensor_of_integers;
}  // namespace error
namespace detail {

/// Which rows of a table are looked up, and which of them is padding; -1 for none.
template <class Ix, class D>
struct Lookup {
  SavedConstant<Ix, D> index;  ///< flat, contiguous
  Shape shape;                ///< of the indices
  int64_t rows, width, padding;

  /// [rows, width] → (indices…, width)
  template <class T, class From>
  Tensor<T, D> picked(Tensor<T, From> const& table) const {
    Shape result = shape;
    result.push_back(width);
    return selected(table, 0, index.tensor(), "Embedding", false).reshape(result);
  }
  /// The opposite: each row of g added to that of its index, but to the padding's.
  template <class T>
  Tensor<T, D> added(Tensor<T, D> const& g) const {
    Tensor<T, D> result = slices_added_at(g.reshape({index.tensor().size(), width}), {rows, width}, 0, index.tensor());
    return without_padding(std::move(result));
  }
  template <class T>
  Tensor<T, D> without_padding(Tensor<T, D> table) const {
    if (padding < 0) return table;
    if (table.use_count() != 1) table = table.clone();
    table.select(0, padding).assign(0);
    return table;
  }
};

template <class Ix, class D, class T>
Variable<T, D> recorded_addition(Lookup<Ix, D> const& lookup, Variable<T, D> const& g);

/// ∂L/∂table = the rows of g, added.
template <class Ix, class D>
struct LookupRule {
  using twice = void;
  Lookup<Ix, D> lookup;
  template <class T, class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(lookup.added(g));
  }
  template <class T, class Into>
  void operator()(Variable<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(recorded_addition(lookup, g));
  }
};
/// Of the addition: the rows of g, picked, and 0 for the padding.
template <class Ix, class D>
struct AdditionRule {
  using twice = void;
  Lookup<Ix, D> lookup;
  template <class T, class Into>
  void operator()(Tensor<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(lookup.picked(lookup.without_padding(g)));
  }
  template <class T, class Into>
  void operator()(Variable<T, D> const& g, Into const& into) const {
    if (into.needed()) into.add(record("Embedding", lookup.picked(lookup.without_padding(g.value())), LookupRule<Ix, D>{lookup}, g));
  }
};
template <class Ix, class D, class T>
Variable<T, D> recorded_addition(Lookup<Ix, D> const& lookup, Variable<T, D> const& g) {
  return record("EmbeddingBackward", lookup.added(g.value()), AdditionRule<Ix, D>{lookup}, g);
}

}  // namespace detail

namespace nn {

/// The options of Embedding. The row of padding_idx begins as zeros, and its gradient is 0; a negative one counts from the end, as in PyTorch.
struct embedding_options {
  std::optional<int64_t> padding_idx = {};
};

/// Rows of a table. They begin normal with mean 0 and standard deviation 1.
///
/// Shape     indices (…) of any integer type → (…, embedding_dim); weight [num_embeddings, embedding_dim].
/// Device    that of the weights.
/// Throws    IndexError for an index that is no row, also a negative one: at once on the host, from the next synchronisation of an asynchronous device.
///           ShapeError for a padding_idx that is no row.
/// Gradient  the rows of g, each added to that of its index. Twice differentiable.
template <class T = float, class Device = Cpu>
struct Embedding {
  Variable<T, Device> weight;  ///< [num_embeddings, embedding_dim]

 private:
  int64_t padding_ = -1;

 public:
  Embedding(int64_t num_embeddings, int64_t embedding_dim, embedding_options const& options = {}) {
    if (options.padding_idx) {
      int64_t const k = *options.padding_idx;
      if (k < -num_embeddings || k >= num_embeddings) {
        detail::fail<ShapeError>("Embedding: a padding_idx of ", k, " was given; there ", num_embeddings == 1 ? "is " : "are ", num_embeddings, num_embeddings == 1 ? " row" : " rows");
      }
      padding_ = k < 0 ? k + num_embeddings : k;
    }
    Tensor<T> values = detail::drawn_normal<T>(0, 1, {num_embeddings, embedding_dim}, detail::default_generator(), "Embedding");
    for (int64_t j = 0; padding_ >= 0 && j < embedding_dim; ++j) values.data()[padding_ * embedding_dim + j] = detail::convert_scalar<T>(0);
    weight = Variable<T, Device>(values.to(Device{}));
  }
  Embedding(from_members_t, Variable<T, Device> w, int64_t padding) : weight(std::move(w)), padding_(padding) {}

  int64_t num_embeddings() const { return weight.shape()[0]; }
  int64_t embedding_dim() const { return weight.shape()[1]; }

  template <class Ix>
    requires detail::index_expression<Ix>
  auto forward(Ix const& indices) const {
    using D = detail::result_device_t<Device>;
    auto const flat = detail::packed_indices(indices).reshape({-1});
    detail::Lookup<value_of<Ix>, D> const lookup{detail::SavedConstant<value_of<Ix>, D>(flat), indices.shape(), num_embeddings(), embedding_dim(), padding_};
    return detail::record("Embedding", lookup.picked(weight.value()), detail::LookupRule<value_of<Ix>, D>{lookup}, weight);
  }

  template <class X, class Error = error::an_Embedding_is_given_a_Tensor_of_integers<X>>
    requires(!detail::index_expression<X>)
  void forward(X const&) const = delete;

  SITU_MODULE(weight, padding_)
};

}  // namespace nn
}  // namespace situ::inline SITU_ABI
