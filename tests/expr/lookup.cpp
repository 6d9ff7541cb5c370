// Functions of the user's own, which have names that the library uses inside: a call with a tensor or a formula finds these and no others.
#include <situ/situ.hpp>

#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace situ {
namespace detail {
template <class... Xs>
int found_in_detail(Xs const&...);
}
namespace reducers {
template <class... Xs>
int found_in_reducers(Xs const&...);
}
}  // namespace situ

namespace {

using namespace situ;

/// Whether an unqualified call with an X looks among the library's own functions.
template <class X>
constexpr bool looks_inside = requires(X const& x) { found_in_detail(x); } || requires(X const& x) { found_in_reducers(x); };
static_assert(requires(detail::MessageText const& x) { found_in_detail(x); }, "the probe finds what is in its own namespace");

struct Net {
  nn::Linear<float> fc{2, 3};
  SITU_MODULE(fc)
};

template <class X>
auto twice(X const& x) {
  return x * 2;
}
template <class X>
auto values_of(X const& x) {
  return eval(x + 100);
}
template <class A, class B>
auto added(A const& a, B const& b) {
  return eval(a - b);
}
template <class X>
std::string shape_of(X const& x) {
  return "of my own " + to_string(x.shape());
}
template <class X>
int number_of(X const& x) {
  return static_cast<int>(x.rank()) + 40;
}
template <class X>
int all_of(X const&) {
  return 7;
}
template <class X>
auto evaluated(X const& x) {
  return eval(x * 3);
}
template <class X>
int states(X const&) {
  return 5;
}

}  // namespace

TEST_CASE("functions of the user's own are those that are called") {
  Tensor<float> const x{1, 2};
  Variable const v{Tensor<float>{1, 2}};
  CHECK(Tensor<float>(twice(x)).to_vector() == std::vector<float>{2, 4});
  CHECK(Tensor<float>(twice(x * 1)).to_vector() == std::vector<float>{2, 4});
  CHECK(Variable<float>(twice(v)).value().to_vector() == std::vector<float>{2, 4});
  CHECK(values_of(x).to_vector() == std::vector<float>{101, 102});
  CHECK(values_of(x * 1.0f).to_vector() == std::vector<float>{101, 102});
  CHECK(added(x, exp(x) * 0).to_vector() == std::vector<float>{1, 2});
  CHECK(shape_of(x) == "of my own [2]");
  CHECK(shape_of(x + x) == "of my own [2]");
  CHECK(number_of(x) == 41);
  CHECK(all_of(x > 1) == 7);
  CHECK(evaluated(where(x > 1, x, 0.5f)).to_vector() == std::vector<float>{1.5f, 6});
  Net net;
  CHECK(states(optim::SGD(net, {.lr = 0.1})) == 5);
}

TEST_CASE("no public type makes the library's own functions candidates") {
  [[maybe_unused]] auto const outside = [](auto const&... xs) { static_assert((!looks_inside<std::remove_cvref_t<decltype(xs)>> && ...)); };
  Tensor<float> const x{1, 2};
  Tensor<int64_t> const i{0, 1};
  Tensor<float, Emulated<0>> const there{1, 2};
  Variable const v{x};
  Net net;
  outside(x, i, there, x[0], x(situ::all()), x.shape(), x.layout(), x.dtype(), x.device(), float16(1.0f), bfloat16(1.0f));
  outside(v, v[0], sum(v), grad(sum(v * v), v));
  outside(net, net.fc, optim::SGD(net, {.lr = 0.1}), optim::Adam(net, {}), optim::AdamW(net, {}));
  outside(sort(x, 0), topk(x, 1, 0), unique(i), Generator(1), TransferLog(), Stream<Emulated<0>>(), Event<Emulated<0>>(), AnyDevice(Cpu()));
  outside(x + x, x * 2, exp(x), where(x > 1, x, 0), cast<double>(x), clamp(x, 0, 1), map([](float a) { return a; }, x), -x, !(x > 1));
  outside(v + v, v * 2, exp(v), where(x > 1, v, 0), cast<double>(v), clamp(v, 0, 1), v + x);
}
