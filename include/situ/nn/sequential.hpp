/// Sequential: modules one after the other.
#pragma once

#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// "0, 1, 2, …": the names of the members of a Sequential.
template <int N>
struct CountedNames {
  char text[5 * N + 1] = {};
  constexpr CountedNames() {
    int at = 0;
    for (int k = 0; k < N; ++k) {
      if (k > 0) text[at++] = ',', text[at++] = ' ';
      if (k > 99) text[at++] = static_cast<char>('0' + k / 100);
      if (k > 9) text[at++] = static_cast<char>('0' + k / 10 % 10);
      text[at++] = static_cast<char>('0' + k % 10);
    }
  }
};
template <int N>
inline constexpr CountedNames<N> counted_names;

/// Modules as one member after the other.
template <class... Ms>
struct Chain {};
template <class M, class... Ms>
struct Chain<M, Ms...> {
  M head;
  Chain<Ms...> tail;
};
template <int K, class C>
constexpr auto& link(C& chain) {
  if constexpr (K == 0) return chain.head;
  else return link<K - 1>(chain.tail);
}
inline Chain<> chain_of() { return {}; }
template <class M, class... Ms>
Chain<M, Ms...> chain_of(M&& first, Ms&&... rest) {
  return {static_cast<M&&>(first), chain_of(static_cast<Ms&&>(rest)...)};
}

}  // namespace detail

namespace nn {

/// Modules one after the other: each gets what the one before gives, the first whatever is given.
///
///     nn::Sequential net{nn::Linear<float, D>{64, 128}, nn::ReLU{}, nn::Linear<float, D>{128, 10}};
///     get<0>(net).weight;   net.size();   auto on_gpu = to(net, Cuda<0>{});
///
/// Members are named "0", "1", …, as PyTorch's. What a module gives may be a formula, as activations do, which the next one evaluates.
template <class... Ms>
struct Sequential {
  explicit Sequential(Ms... modules) : modules_(detail::chain_of(std::move(modules)...)) {}
  Sequential(from_members_t, Ms... modules) : modules_(detail::chain_of(std::move(modules)...)) {}

  static constexpr int size() { return static_cast<int>(sizeof...(Ms)); }

  template <class... Xs>
  auto forward(Xs const&... inputs) const {
    return run<0>(inputs...);
  }

  // What SITU_MODULE writes for named members.
  static constexpr char const* situ_member_names() { return detail::counted_names<size()>.text; }
  using situ_member_types = detail::Types<Ms...>;
  template <class F>
  decltype(auto) situ_members(F&& f) const {
    return each(*this, f, std::make_index_sequence<sizeof...(Ms)>{});
  }
  template <class F>
  decltype(auto) situ_members(F&& f) {
    return each(*this, f, std::make_index_sequence<sizeof...(Ms)>{});
  }
  SITU_MODULE_CALLS

 private:
  template <class Self, class F, std::size_t... Ks>
  static decltype(auto) each(Self& self, F& f, std::index_sequence<Ks...>) {
    return f(detail::link<static_cast<int>(Ks)>(self.modules_)...);
  }
  template <int K, class... Xs>
  auto run(Xs const&... inputs) const {
    if constexpr (K < size()) {
      return run<K + 1>(detail::link<K>(modules_)(inputs...));
    } else {
      static_assert(sizeof...(Xs) == 1, "situ: an empty Sequential gives its input: one");
      return (inputs, ...);
    }
  }
  template <int K, class... Ns>
  friend auto& get(Sequential<Ns...>& net);
  template <int K, class... Ns>
  friend auto const& get(Sequential<Ns...> const& net);

  detail::Chain<Ms...> modules_;
};

/// Module K of a Sequential.
template <int K, class... Ms>
auto& get(Sequential<Ms...>& net) {
  static_assert(0 <= K && K < Sequential<Ms...>::size(), "situ: get<K>(sequential): there is no module K; they are counted from 0");
  return detail::link<K>(net.modules_);
}
template <int K, class... Ms>
auto const& get(Sequential<Ms...> const& net) {
  static_assert(0 <= K && K < Sequential<Ms...>::size(), "situ: get<K>(sequential): there is no module K; they are counted from 0");
  return detail::link<K>(net.modules_);
}

}  // namespace nn
}  // namespace situ::inline SITU_ABI
