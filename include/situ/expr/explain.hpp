/// explain: a fused kernel in words.
#pragma once

#include <situ/expr/lower.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What explain collects: the inputs in the order of their first appearance, each with a letter.
struct Explanation {
  struct Entry {
    void const* data;
    std::string text;
    int64_t bytes;
    Layout layout;
  };
  Entry entries[64];
  int count = 0;
  int64_t reads = 0;

  static std::string letter(int k) {
    std::string name(1, static_cast<char>('a' + k % 26));
    return k < 26 ? name : name + std::to_string(k / 26);
  }

  template <class T, class D>
  std::string input(Tensor<T, D> const& x, Shape const& shape) {
    for (int k = 0; k < count; ++k) {
      if (entries[k].data == x.data() && entries[k].layout.shape == x.shape() && entries[k].layout.strides == x.strides()) return letter(k);
    }
    if (count == 64) return "x";
    int64_t distinct = 1;  // elements that a broadcast input really has
    for (int k = 0; k < x.rank(); ++k) distinct *= x.strides()[k] == 0 && x.shape()[k] > 0 ? 1 : x.shape()[k];
    int64_t const bytes = distinct * static_cast<int64_t>(sizeof(T));
    char const* const how = !(x.shape() == shape) ? ", broadcast" : x.is_contiguous() ? "" : x.layout().is_broadcast() ? ", broadcast" : ", strided";
    entries[count] = {x.data(), text(letter(count), ": ", dtype_name<T>(), " ", x.shape(), " on ", device_traits<D>::name(), how, ", ", bytes, " bytes"),
                      bytes, x.layout()};
    reads += bytes;
    return letter(count++);
  }
};

template <class T>
std::string number_text(T value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<T>) {
    char buffer[32];
    __builtin_snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
    return buffer;
  } else return std::to_string(value);
}

/// Formulas are put in parentheses where they stand inside an operator.
template <class T, class D>
std::string formula(Tensor<T, D> const& x, Explanation& seen, Shape const& shape, bool) {
  return seen.input(x, shape);
}
template <class T>
std::string formula(Constant<T> const& c, Explanation&, Shape const&, bool) {
  return number_text(c.value);
}
template <class Op, class... Es>
std::string formula(Map<Op, Es...> const& map, Explanation& seen, Shape const& shape, bool inside);

inline void formulas(Fields<> const&, Explanation&, Shape const&, bool, std::string*) {}
template <class E, class... Es>
void formulas(Fields<E, Es...> const& operands, Explanation& seen, Shape const& shape, bool inside, std::string* to) {
  *to = formula(operands.head, seen, shape, inside);
  formulas(operands.tail, seen, shape, inside, to + 1);
}

template <class Op, class... Es>
std::string formula(Map<Op, Es...> const& map, Explanation& seen, Shape const& shape, bool inside) {
  std::string parts[sizeof...(Es)];
  std::string name = Op::name;
  bool const infix = name.compare(0, 8, "operator") == 0;
  formulas(map.operands, seen, shape, infix, parts);
  if constexpr (functions::is_cast<Op>) name += std::string("<") + dtype_name<typename Map<Op, Es...>::value_type>() + ">";
  std::string result;
  if (infix) {
    std::string const symbol = name.substr(8);
    result = sizeof...(Es) == 1 ? symbol + parts[0] : parts[0];
    for (std::size_t k = 1; k < sizeof...(Es); ++k) result += " " + symbol + " " + parts[k];
    return inside ? "(" + result + ")" : result;
  }
  result = name + "(";
  for (std::size_t k = 0; k < sizeof...(Es); ++k) result += (k ? ", " : "") + parts[k];
  return result + ")";
}

}  // namespace detail

/// The kernel that an expression becomes: its formula, its inputs, the bytes that it moves and the operations per element.
///
///     one kernel for 1000 elements on cpu: out = a * b + 2
///       a: float32 [1000] on cpu, 4000 bytes
///       b: float32 [1000] on cpu, 4000 bytes
///       out: float32 [1000] on cpu, 4000 bytes
///       moves 12000 bytes, 2 operations per element
template <class E>
  requires expression<E>
std::string explain(E const& e) {
  using T = value_of<E>;
  detail::Explanation seen;
  std::string const formula = detail::formula(e, seen, e.shape(), false);
  std::string const where = device_traits<detail::result_device_t<device_of<E>>>::name();
  int64_t const written = e.size() * static_cast<int64_t>(sizeof(T));
  int constexpr operations = detail::operation_count<detail::tree_of<E>>;
  std::string result = detail::text("one kernel for ", e.size(), " elements on ", where, ": out = ", formula, "\n");
  for (int k = 0; k < seen.count; ++k) result += "  " + seen.entries[k].text + "\n";
  return result + detail::text("  out: ", dtype_name<T>(), " ", e.shape(), " on ", where, ", ", written, " bytes\n  moves ",
                               seen.reads + written, " bytes, ", operations, operations == 1 ? " operation" : " operations", " per element\n");
}

}  // namespace situ::inline SITU_ABI
