/// Runs operations over all layouts of an input, and compares with the places that PyTorch and NumPy give (places.py).
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <ops/expected/places.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/transfer.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

namespace situ_test {

using namespace situ;

/// Numbers that tell places apart, as far as T allows.
template <class T>
Tensor<T> marked(Shape const& shape, int first = 1) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    int const mark = static_cast<int>(i) + first;
    result.data()[i] = detail::convert_scalar<T>(std::is_same_v<T, bool> ? (mark * 5 / 3) % 2 : std::is_same_v<T, uint8_t> ? mark : mark - 9);
  }
  return result;
}

/// f(name, the same values on D in every layout): contiguous, transposed, in steps, flipped; and a broadcast view of some of them.
template <class D, class T, class F>
void for_each_layout_on(Tensor<T> const& host, F f) {
  Shape const shape = host.shape();
  Tensor<T, D> const x = host.to(D{});
  f("contiguous", x);
  auto const copied = [&](char const* name, Tensor<T, D> view) {
    view.assign(x);
    f(name, view);
  };
  Shape reversed, order, larger;
  Tensor<T, D> flipped = empty<T>(shape, D{});
  for (int k = shape.rank() - 1; k >= 0; --k) reversed.push_back(shape[k]), order.push_back(k);
  for (int k = 0; k < shape.rank(); ++k) larger.push_back(2 * shape[k] + 1), flipped = flipped.flip(k);
  Tensor<T, D> steps = empty<T>(larger, D{});
  for (int k = 0; k < shape.rank(); ++k) steps = steps.slice(k, 1, 2 * shape[k] + 1, 2);
  copied("transposed", empty<T>(reversed, D{}).permute(order));
  copied("in steps", steps);
  copied("flipped", flipped);
  if (x.size() > 1) f("broadcast", x.select(0, shape[0] - 1).unsqueeze(0).expand(shape));
}

/// What an operation gave.
template <class T>
struct Given {
  Shape shape;
  std::vector<T> values;
};

/// Checks `run(f, x)` of every layout against the places of the operation; elements from SOURCE on are those of `source`.
/// One function for all operations on T: each has a type of its own, and few instructions.
template <class D, class T>
void check_places_of(char const* operation, Given<T> (*run)(void const* f, Tensor<T, D> const& x), void const* f, std::vector<T> const& source) {
  Places const* expected = nullptr;
  for (Places const& p : all_places()) {
    if (std::string(p.operation) == operation) expected = &p;
  }
  REQUIRE(expected);
  for_each_layout_on<D>(marked<T>(Shape(expected->input)), [&](char const* layout, Tensor<T, D> const& x) {
    INFO(operation, " of ", layout);
    auto const values = x.to_vector();
    std::vector<T> wanted;
    for (short const place : expected->of) {
      wanted.push_back(place >= 1000 ? source[static_cast<std::size_t>(place - 1000)]
                       : place >= 0  ? static_cast<T>(values[static_cast<std::size_t>(place)])
                                     : detail::convert_scalar<T>(place == -1 ? 1 : 0));
    }
    Given<T> const given = run(f, x);
    CHECK(given.shape == Shape(expected->result));
    CHECK(difference(given.values, wanted) == "");
  });
}
template <class D, class T, class Run>
void check_places(char const* operation, Run run, std::vector<T> const& source = {}) {
  auto const apply = [](void const* f, Tensor<T, D> const& x) {
    auto const result = (*static_cast<Run const*>(f))(x);
    return Given<T>{result.shape(), result.to_vector()};
  };
  check_places_of<D, T>(operation, apply, &run, source);
}

/// An operation by its name in the table.
template <class X>
struct Operation {
  char const* name;
  Tensor<value_of<X>, detail::result_device_t<device_of<X>>> (*run)(X const&);
};

/// Every operation of a table, on tensors of T on D, and, where asked for, on formulas of them.
template <class T, class D, template <class> class Table>
void check_table() {
  for (auto const& operation : Table<Tensor<T, D>>::operations()) check_places<D, T>(operation.name, operation.run);
}
template <class T, class D, template <class> class Table>
void check_table_of_formulas() {
  using Formula = decltype(cast<T>(std::declval<Tensor<T, D> const&>()));
  for (auto const& operation : Table<Formula>::operations()) {
    check_places<D, T>(operation.name, [&](Tensor<T, D> const& x) { return operation.run(cast<T>(x)); });
  }
}

}  // namespace situ_test
