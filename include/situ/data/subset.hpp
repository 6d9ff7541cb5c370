/// Datasets made of others: some of the samples, random parts, changed samples.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include <situ/data/detail/order.hpp>
#include <situ/data/dataset.hpp>

namespace situ::inline SITU_ABI {
namespace data {

/// The samples of a dataset at some indices, in that order; an index may appear more than once.
///
/// Throws    IndexError for an index that the dataset has not.
template <dataset X>
class Subset {
 public:
  Subset(X base, std::vector<int64_t> indices) : base_(std::move(base)), indices_(indices) {
    for (int64_t i : indices) {
      if (i < 0 || i >= static_cast<int64_t>(base_.size())) detail::fail_row("Subset", i, static_cast<int64_t>(base_.size()));
    }
  }

  int64_t size() const { return indices_.size(); }
  auto get(int64_t i) const
    requires detail::gives_samples<X>
  {
    return base_.get(index(i));
  }
  auto get(int64_t i, Generator& generator) const
    requires detail::gives_random_samples<X>
  {
    return base_.get(index(i), generator);
  }
  template <class... Fields>
    requires requires(X const& x, std::span<int64_t const> indices, Fields&... fields) { x.get_batch(indices, fields...); }
  void get_batch(std::span<int64_t const> indices, Fields&... fields) const {
    std::vector<int64_t> of_base(indices.size());
    for (std::size_t k = 0; k < indices.size(); ++k) of_base[k] = index(indices[k]);
    base_.get_batch(std::span<int64_t const>(of_base), fields...);
  }

  X const& base() const { return base_; }
  /// Which samples of base() these are.
  Tensor<int64_t> const& indices() const { return indices_; }

 private:
  int64_t index(int64_t i) const {
    if (SITU_UNLIKELY(i < 0 || i >= size())) detail::fail_row("Subset", i, size());
    return indices_.data()[i];
  }

  X base_;
  Tensor<int64_t> indices_;
};

}  // namespace data

namespace detail {

template <data::dataset X, std::size_t N>
std::array<data::Subset<X>, N> split_by(X const& x, std::array<int64_t, N> const& sizes, Generator& generator) {
  std::vector<int64_t> const order = random_order(next_stream(generator), static_cast<int64_t>(x.size()));
  auto at = order.begin();
  auto const part = [&](int64_t count) {
    auto const first = at;
    at += static_cast<std::ptrdiff_t>(count);
    return data::Subset<X>(x, std::vector<int64_t>(first, at));
  };
  return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { return std::array<data::Subset<X>, N>{part(sizes[Ks])...}; }(std::make_index_sequence<N>{});
}

}  // namespace detail

namespace data {

/// Parts of a dataset, drawn at random: no sample is in two of them, and all are in one.
///
///     auto [train, test] = random_split(dataset, {0.8, 0.2}, generator);
///     auto [train, test] = random_split(dataset, {1438, 359}, generator);
///
/// Fractions sum up to 1: part k gets floor(n f_k) samples, and what is left over goes to the first parts, one each. Sizes sum up to the dataset's.
/// Throws    ShapeError otherwise. The seed of the generator decides; without one the default generator draws.
template <dataset X, std::floating_point S, std::size_t N>
std::array<Subset<X>, N> random_split(X const& x, S const (&fractions)[N], Generator& generator = detail::default_generator()) {
  auto const n = static_cast<int64_t>(x.size());
  std::array<int64_t, N> sizes{};
  double sum = 0;
  int64_t rest = n;
  for (std::size_t k = 0; k < N; ++k) {
    auto const fraction = static_cast<double>(fractions[k]);
    if (!(fraction >= 0 && fraction <= 1)) detail::fail<ShapeError>("random_split: fraction ", static_cast<int64_t>(k), " is ", fraction, "; fractions are from 0 to 1, and sizes are integers");
    sum += fraction;
    // A fraction is not always the number that was meant: 0.7f * 10 is not to be 6.
    double const exact = fraction * static_cast<double>(n);
    sizes[k] = static_cast<int64_t>(exact + 1e-3);
    rest -= sizes[k];
  }
  if (!(sum > 1 - 1e-6 && sum < 1 + 1e-6)) detail::fail<ShapeError>("random_split: the fractions sum up to ", sum, "; 1 is needed");
  for (std::size_t k = 0; rest > 0; k = (k + 1) % N) {
    if (fractions[k] > 0) ++sizes[k], --rest;
  }
  for (std::size_t k = N - 1; rest < 0; k = (k + N - 1) % N) {  // by the same inaccuracy
    if (sizes[k] > 0) --sizes[k], ++rest;
  }
  return detail::split_by<X, N>(x, sizes, generator);
}
template <dataset X, std::integral S, std::size_t N>
std::array<Subset<X>, N> random_split(X const& x, S const (&parts)[N], Generator& generator = detail::default_generator()) {
  std::array<int64_t, N> sizes{};
  int64_t sum = 0;
  for (std::size_t k = 0; k < N; ++k) {
    sizes[k] = static_cast<int64_t>(parts[k]);
    if (sizes[k] < 0) detail::fail<ShapeError>("random_split: size ", static_cast<int64_t>(k), " is ", sizes[k], "; sizes are 0 or more");
    sum += sizes[k];
  }
  if (sum != static_cast<int64_t>(x.size())) {
    detail::fail<ShapeError>("random_split: the sizes sum up to ", sum, ", and the dataset has ", static_cast<int64_t>(x.size()), x.size() == 1 ? " sample" : " samples", "; both must be the same");
  }
  return detail::split_by<X, N>(x, sizes, generator);
}

/// A dataset whose sample i is f(fields of sample i): see transformed.
template <class X, class F>
class Transformed {
  template <class S>
  static constexpr bool takes = [] {
    if constexpr (detail::sample_field<S>) return std::is_invocable_v<F const&, S>;
    else return []<std::size_t... Ks>(std::index_sequence<Ks...>) { return std::is_invocable_v<F const&, std::tuple_element_t<Ks, S>...>; }(std::make_index_sequence<std::tuple_size_v<S>>{});
  }();
  /// The generator is not needed: neither by f nor by the samples.
  static constexpr bool is_plain = [] {
    if constexpr (detail::gives_samples<X> && !detail::gives_random_samples<X>) return takes<detail::sample_of<X>>;
    else return false;
  }();

 public:
  Transformed(X base, F f) : base_(std::move(base)), f_(std::move(f)) {}

  int64_t size() const { return static_cast<int64_t>(base_.size()); }
  auto get(int64_t i) const
    requires is_plain
  {
    if constexpr (detail::sample_field<detail::sample_of<X>>) return f_(base_.get(i));
    else return std::apply(f_, base_.get(i));
  }
  auto get(int64_t i, Generator& generator) const
    requires(!is_plain)
  {
    auto const call = [&]<class... Fs>(Fs&&... fields) {
      if constexpr (std::is_invocable_v<F const&, Fs..., Generator&>) return f_(static_cast<Fs&&>(fields)..., generator);
      else return f_(static_cast<Fs&&>(fields)...);
    };
    if constexpr (detail::sample_field<detail::sample_of<X>>) return call(detail::sample_at(base_, i, generator));
    else return std::apply(call, detail::sample_at(base_, i, generator));
  }
  X const& base() const { return base_; }

 private:
  X base_;
  F f_;
};

/// The dataset whose sample i is f(fields of sample i): a new field, or a tuple of fields, also of other types.
///
///     auto scaled = transformed(dataset, [](auto const& x, auto const& y) { return std::tuple(x / 16, y); });
///     auto noisy = transformed(dataset, [](auto const& x, auto const& y, Generator& g) { return std::pair(x + 0.1 * randn(x.shape(), g), y); });
///
/// f runs whenever a sample is read, on the threads of the loader, and must not write to what it is given. A formula that it returns is evaluated
/// straight into the batch. An f that takes a Generator as well gets one that depends on the loader's seed, the epoch and i alone.
template <dataset X, class F>
auto transformed(X x, F f) {
  return Transformed<X, F>(std::move(x), std::move(f));
}

}  // namespace data
}  // namespace situ::inline SITU_ABI
