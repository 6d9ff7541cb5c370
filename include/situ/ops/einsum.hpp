/// Sums of products, written with an index for each axis: einsum("bij,bjk->bik", a, b).
///
/// Operands are joined from left to right, two at a time: indices that are not needed any more are summed as soon as they can be,
/// products without common sums are elementwise, everything else is a batch of matrix products.
#pragma once

#include <situ/ops/matmul.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What einsum takes as its equation.
struct Equation {
  char const* text;
  Equation(char const* equation) : text(equation) {}
  Equation(std::string const& equation) : text(equation.c_str()) {}
};

/// A list of indices: letters; the axes of an ellipsis are '0' to '7', counted from the last one.
struct Indices {
  char names[64];
  int count = 0;

  int find(char name) const {
    for (int k = 0; k < count; ++k) {
      if (names[k] == name) return k;
    }
    return -1;
  }
  bool has(char name) const { return find(name) >= 0; }
  bool has_all(Indices const& others) const {
    for (int k = 0; k < others.count; ++k) {
      if (!has(others.names[k])) return false;
    }
    return true;
  }
  void add(char name) {
    if (count < 64) names[count++] = name;
  }
  void add_once(char name) {
    if (!has(name)) add(name);
  }
  void add_all_once(Indices const& others) {
    for (int k = 0; k < others.count; ++k) add_once(others.names[k]);
  }
};

struct EinsumOperand {
  Indices indices;
  Layout layout;
};

/// An equation that has been read: the indices of every operand and of the result.
struct Einsum {
  char const* equation;
  EinsumOperand* operands;
  int count;
  Indices result;

  template <class... Parts>
  [[noreturn]] void reject(Parts const&... parts) const {
    fail<ShapeError>("einsum: \"", equation, "\": ", parts...);
  }

  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  /// Reads one term up to a comma, an arrow or the end; an ellipsis becomes `dots` axes.
  char const* read_term(char const* at, Indices& term, int dots, bool& has_dots) const {
    has_dots = false;
    for (; *at && *at != ',' && !(at[0] == '-' && at[1] == '>'); ++at) {
      if (*at == ' ') continue;
      if (at[0] == '.' && at[1] == '.' && at[2] == '.') {
        if (has_dots) reject("a term has more than one ellipsis");
        has_dots = true;
        for (int k = dots; k-- > 0;) term.add(static_cast<char>('0' + k));
        at += 2;
      } else if (is_letter(*at)) {
        term.add(*at);
      } else {
        char const text[] = {*at, 0};
        reject("'", text, "' is not an index: these are letters, and ... stands for the other axes");
      }
      if (term.count > 32) reject("a term has too many indices");
    }
    return at;
  }

  /// Throws ShapeError.
  void read() {
    char const* at = equation;
    int all_dots = 0;
    for (int o = 0; o < count; ++o) {
      Indices letters;
      bool has_dots;
      char const* const end = read_term(at, letters, 0, has_dots);
      Layout const& layout = operands[o].layout;
      int const dots = layout.rank() - letters.count;
      if (dots < 0 || (dots > 0 && !has_dots)) {
        reject("operand ", o, " has shape ", layout.shape, ": ", layout.rank(), layout.rank() == 1 ? " axis" : " axes", ", but its term names ", letters.count);
      }
      if (dots > all_dots) all_dots = dots;
      (void)read_term(at, operands[o].indices, dots, has_dots);
      at = end;
      bool const more = *at == ',';
      if (more) ++at;
      if (more != (o + 1 < count)) {
        int terms = 1;
        for (char const* c = equation; *c && *c != '-'; ++c) terms += *c == ',';
        reject(terms, terms == 1 ? " term" : " terms", " for ", count, count == 1 ? " operand" : " operands");
      }
    }
    if (*at == '-') {
      bool has_dots;
      at = read_term(at + 2, result, all_dots, has_dots);
      if (*at) reject("the result has more than one term");
      for (int k = 0; k < result.count; ++k) {
        char const text[] = {result.names[k], 0};
        if (result.find(result.names[k]) != k) reject("index '", text, "' appears twice in the result");
        bool known = result.names[k] < 'A';
        for (int o = 0; o < count; ++o) known = known || operands[o].indices.has(result.names[k]);
        if (!known) reject("index '", text, "' of the result is in no operand");
      }
      return;
    }
    // Without a result: the ellipsis, then every letter that appears once, in the order of the alphabet.
    for (int k = all_dots; k-- > 0;) result.add(static_cast<char>('0' + k));
    for (char c = 'A'; c <= 'z'; ++c) {
      int times = 0;
      for (int o = 0; o < count; ++o) {
        for (int k = 0; k < operands[o].indices.count; ++k) times += operands[o].indices.names[k] == c;
      }
      if (is_letter(c) && times == 1) result.add(c);
    }
  }

  /// Repeated indices of an operand become its diagonal, and every index has the same extent everywhere, or 1. Throws ShapeError.
  void take_diagonals() {
    for (int o = 0; o < count; ++o) {
      auto& [indices, layout] = operands[o];
      for (int k = 0; k < indices.count; ++k) {
        for (int l = indices.count - 1; l > k; --l) {
          if (indices.names[l] != indices.names[k]) continue;
          if (layout.shape[l] != layout.shape[k]) {
            char const text[] = {indices.names[k], 0};
            reject("index '", text, "' stands for ", layout.shape[k], " and ", layout.shape[l], " in shape ", layout.shape);
          }
          layout.strides[k] += layout.strides[l];
          layout.shape.erase(l), layout.strides.erase(l);
          for (int r = l; r + 1 < indices.count; ++r) indices.names[r] = indices.names[r + 1];
          --indices.count;
        }
      }
      for (int k = 0; k < indices.count; ++k) {
        for (int other = 0; other < o; ++other) {
          int const place = operands[other].indices.find(indices.names[k]);
          if (place < 0) continue;
          int64_t const here = layout.shape[k], there = operands[other].layout.shape[place];
          if (here == there || here == 1 || there == 1) continue;
          char const text[] = {indices.names[k], 0};
          reject("index '", text, "' stands for ", there, " in operand ", other, " and for ", here, " in operand ", o);
        }
      }
    }
  }
};

/// A tensor with an index for each axis.
template <class T, class D>
struct Indexed {
  Tensor<T, D> tensor;
  Indices indices;

  int64_t extent(char name) const {
    int const k = indices.find(name);
    return k < 0 ? 1 : tensor.shape()[k];
  }
  /// The axes in another order; an index that the tensor does not have becomes an axis of one element.
  Tensor<T, D> in_order(Indices const& order) const {
    Layout layout{Shape{}, Shape{}};
    for (int k = 0; k < order.count; ++k) {
      int const at = indices.find(order.names[k]);
      layout.shape.push_back(at < 0 ? 1 : tensor.shape()[at]);
      layout.strides.push_back(at < 0 ? 0 : tensor.strides()[at]);
    }
    return Tensor<T, D>::from_handle(make_view(tensor.storage(), const_cast<void*>(static_cast<void const*>(tensor.data())), layout));
  }
  /// Sums over all indices that are not in `kept`.
  void sum_but(Indices const& kept) {
    Indices rest;
    Shape axes;
    for (int k = 0; k < indices.count; ++k) {
      if (kept.has(indices.names[k])) rest.add(indices.names[k]);
      else axes.push_back(k);
    }
    if (axes.empty()) return;
    tensor = summed(tensor, axes);
    indices = rest;
  }
  /// In the element type of the tensor; integers wrap.
  template <class E>
  static Tensor<T, D> summed(E const& e, Shape const& axes) {
    auto total = sum(e, axes);
    if constexpr (std::is_same_v<value_of<decltype(total)>, T>) return total;
    else return Tensor<T, D>(cast<T>(total));
  }
};

inline namespace SITU_ABI_BLAS {

/// The product of two operands, summed over all indices that are not in `kept`.
template <class T, class D>
Indexed<T, D> contract(Indexed<T, D> a, Indexed<T, D> b, Indices const& kept) {
  Indices needed_of_a = kept, needed_of_b = kept;
  needed_of_a.add_all_once(b.indices), needed_of_b.add_all_once(a.indices);
  if constexpr (!std::is_same_v<compute_t<T>, T>) {  // sums of one operand are not rounded before the product
    using C = compute_t<T>;
    if (!needed_of_a.has_all(a.indices) || !needed_of_b.has_all(b.indices)) {
      auto const wide = [](Indexed<T, D> const& x) { return Indexed<C, D>{Tensor<C, D>(cast<C>(x.tensor)), x.indices}; };
      Indexed<C, D> const product = contract(wide(a), wide(b), kept);
      return {Tensor<T, D>(cast<T>(product.tensor)), product.indices};
    }
  }
  a.sum_but(needed_of_a), b.sum_but(needed_of_b);
  // Sums over an index that one operand has with extent 1 alone are sums of the other one: broadcast.
  Indices batch, left, right, gone;
  for (int k = 0; k < a.indices.count; ++k) {
    char const name = a.indices.names[k];
    if (!b.indices.has(name)) left.add(name);
    else (kept.has(name) ? batch : gone).add(name);
  }
  for (int k = 0; k < b.indices.count; ++k) {
    if (!a.indices.has(b.indices.names[k])) right.add(b.indices.names[k]);
  }
  auto const extent = [&](char name) { return a.extent(name) == 1 ? b.extent(name) : a.extent(name); };
  auto const extents = [&](Indices const& names, Shape& shape) {
    int64_t size = 1;
    for (int k = 0; k < names.count; ++k) shape.push_back(extent(names.names[k])), size *= extent(names.names[k]);
    return size;
  };
  auto const append_to = [](Indices to, Indices const& names) {
    for (int k = 0; k < names.count; ++k) to.add(names.names[k]);
    return to;
  };
  Indexed<T, D> result;
  result.indices = append_to(append_to(batch, left), right);

  if (gone.count == 0 || (left.count == 0 && right.count == 0)) {  // elementwise, or a reduction of an elementwise product
    Indices const order = append_to(result.indices, gone);
    auto const x = a.in_order(order), y = b.in_order(order);
    if (gone.count == 0) {
      result.tensor = x * y;
      return result;
    }
    Shape axes;
    for (int k = 0; k < gone.count; ++k) axes.push_back(result.indices.count + k);
    result.tensor = Indexed<T, D>::summed(x * y, axes);
    return result;
  }
  Shape shape_of_batch, shape_of_a, shape_of_b, shape_of_gone;
  (void)extents(batch, shape_of_batch);
  int64_t const depth = extents(gone, shape_of_gone);
  int64_t const m = extents(left, shape_of_a), n = extents(right, shape_of_b);
  // Each group of axes is one axis of the product where the strides allow it; a copy is made where they do not.
  auto const matrix = [&](Indexed<T, D> const& x, Indices const& rows, Indices const& columns, Shape const& row_shape, Shape const& column_shape,
                          Shape const& flat) {
    Shape full = shape_of_batch, wanted = shape_of_batch;
    for (int64_t s : row_shape) full.push_back(s);
    for (int64_t s : column_shape) full.push_back(s);
    for (int64_t s : flat) wanted.push_back(s);
    return x.in_order(append_to(append_to(batch, rows), columns)).expand(full).reshape(wanted);
  };
  auto const x = matrix(a, left, gone, shape_of_a, shape_of_gone, {m, depth});
  auto const y = matrix(b, gone, right, shape_of_gone, shape_of_b, {depth, n});
  Shape shape = shape_of_batch;
  for (int64_t s : shape_of_a) shape.push_back(s);
  for (int64_t s : shape_of_b) shape.push_back(s);
  result.tensor = matmul(x, y).reshape(shape);
  return result;
}

template <class T, class D>
Tensor<T, D> einsum_of(char const* equation, Tensor<T, D> const* tensors, int count) {
  EinsumOperand operands[32];
  for (int o = 0; o < count; ++o) operands[o].layout = tensors[o].layout();
  Einsum sum{equation, operands, count, {}};
  sum.read();
  sum.take_diagonals();
  auto const operand = [&](int o) {
    void* const first = const_cast<void*>(static_cast<void const*>(tensors[o].data()));
    return Indexed<T, D>{Tensor<T, D>::from_handle(make_view(tensors[o].storage(), first, operands[o].layout)), operands[o].indices};
  };
  Indexed<T, D> whole = operand(0);
  int order[32];
  for (int o = 0; o < count; ++o) order[o] = o;
  for (int joined = 1; joined < count; ++joined) {
    // The next one from the left whose product with those before has no more axes than a tensor can have.
    Indices kept;
    int next = joined;
    for (; next < count; ++next) {
      kept = sum.result;
      for (int later = joined; later < count; ++later) {
        if (later != next) kept.add_all_once(operands[order[later]].indices);
      }
      Indices all = whole.indices;
      all.add_all_once(operands[order[next]].indices);
      int axes = 0;
      for (int k = 0; k < all.count; ++k) axes += kept.has(all.names[k]);
      if (axes <= max_rank) break;
    }
    if (next == count) {
      fail<ShapeError>("einsum: in \"", equation, "\" the product of two operands would have more than ", int64_t{max_rank}, " axes; take the sum in several steps");
    }
    int const found = order[next];
    for (; next > joined; --next) order[next] = order[next - 1];
    order[joined] = found;
    whole = contract(whole, operand(found), kept);
  }
  whole.sum_but(sum.result);
  return whole.in_order(sum.result);
}

}  // namespace SITU_ABI_BLAS

template <class... Es>
using einsum_value = promoted_t<value_of<Es>...>;
template <class... Es>
using einsum_device = result_device_t<typename common_device<device_of<Es>...>::type>;
template <class E, class... Es>
concept one_device = (on_same_device<E, Es> && ...);

}  // namespace detail

inline namespace SITU_ABI_BLAS {

/// Σ over all indices that the result does not name, of the product of all operands.
///
///     einsum("ij,jk->ik", a, b)   einsum("bij,bjk", a, b)   einsum("ii->i", a)   einsum("i,j,k->ijk", u, v, w)   einsum("...i,i->...", x, w)
///
/// Shape     the extents of the indices after the arrow; without one, those that appear once, in the order of the alphabet. An index that an
///           operand repeats is its diagonal; `...` stands for axes that broadcast. Extents of 1 broadcast.
/// Dtype     operands promote; sums of 16-bit floats are made in float and rounded once; integers wrap.
/// Throws    ShapeError for an equation that does not fit the operands.
/// Cost      operands are joined from left to right, unless more than eight axes would be left by the way (with Variables that throws
///           ShapeError): write them in the order in which they are cheap to multiply. A single operand that is only transposed or whose
///           diagonal is taken gives a view.
/// Gradient  for an operand: the equation with that operand and the result exchanged.
template <class E, class... Es>
  requires(expression<E> && (expression<Es> && ...) && detail::one_device<E, Es...> && !std::is_same_v<detail::einsum_value<E, Es...>, bool> &&
           sizeof...(Es) < 32)
auto einsum(detail::Equation equation, E const& first, Es const&... others) {
  using T = detail::einsum_value<E, Es...>;
  using D = detail::einsum_device<E, Es...>;
  using C = compute_t<T>;
  if constexpr (sizeof...(Es) > 1 && !std::is_same_v<C, T>) {
    return Tensor<T, D>(cast<T>(einsum(equation, cast<C>(first), cast<C>(others)...)));
  } else {
    Tensor<T, D> const tensors[] = {Tensor<T, D>(first), Tensor<T, D>(others)...};
    return detail::einsum_of(equation.text, tensors, static_cast<int>(1 + sizeof...(Es)));
  }
}

}  // namespace SITU_ABI_BLAS

template <class E, class... Es, class Error = detail::different_devices_of<E, Es...>>
  requires(expression<E> && (expression<Es> && ...))
void einsum(detail::Equation, E const&, Es const&...) = delete;
template <class E, class... Es, class Error = error::bool_tensors_have_no_product__use_cast<value_of<E>, bool>>
  requires(expression<E> && (expression<Es> && ...) && detail::one_device<E, Es...> && std::is_same_v<detail::einsum_value<E, Es...>, bool>)
void einsum(detail::Equation, E const&, Es const&...) = delete;

template <class E, class Error = error::operands_of_einsum_stand_one_by_one__without_braces<E>>
  requires(expression<E> || differentiable<E>)
void einsum(detail::Equation, std::initializer_list<E>) = delete;

}  // namespace situ::inline SITU_ABI
