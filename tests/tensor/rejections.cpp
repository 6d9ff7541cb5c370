// What must not compile, as `requires` sees it, each beside its positive twin. The wording is tested by tests/compile_fail.
#include <situ/autograd.hpp>
#include <situ/ops.hpp>
#include <situ/tensor.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace situ;

namespace {

template <class A, class B>
concept addable = requires(A a, B b) { a + b; };
template <class A, class B>
concept subtractable_in_formula = requires(A a, B b) { tanh(a * 2 + 1) - exp(b); };
template <class A, class B>
concept comparable = requires(A a, B b) { a < b; };
template <class A, class B>
concept maximum_of = requires(A a, B b) { maximum(a, b); };
template <class M, class A, class B>
concept choosable = requires(M m, A a, B b) { where(m, a, b); };
template <class A, class B, class C>
concept interpolable = requires(A a, B b, C c) { lerp(a, b, c); };
template <class... As>
concept mappable = requires(As... as) { situ::map(functions::lerp{}, as...); };
template <class A, class B>
concept assignable_in_place = requires(A a, B b) { a.assign(b); };
template <class A, class B>
concept assignable = requires(A& a, B b) { a = b; };
template <class A, class B>
concept assignable_to_view = requires(A a, B b) { a[0] = b; };
template <class A, class B>
concept add_assignable = requires(A a, B b) { a += b; };
template <class A, class B>
concept divide_assignable = requires(A a, B b) { a /= b; };
template <class A>
concept indexable = requires(A a) { a(0, 1); };
template <class A>
concept writable_by_element = requires(A a) { a(0, 1) = 1; };
template <class A>
concept sliceable = requires(A a) { a(situ::all(), 1); a.item(0, 1); };
template <class T>
concept holdable = requires { typename Tensor<T>; };
template <class T, class D>
concept tensor_exists = requires { typename Tensor<T, D>; };

/// Everything that joins two operands.
template <class A, class B>
constexpr bool mixes = addable<A, B> && subtractable_in_formula<A, B> && comparable<A, B> && maximum_of<A, B> && choosable<A, A, B> &&
                       choosable<A, B, B> && interpolable<A, A, B> && mappable<A, A, B> && mappable<A, B, float> && assignable_in_place<A, B> &&
                       add_assignable<A, B> && divide_assignable<A, B> && assignable<A, B> && assignable_to_view<A, B> &&
                       std::is_convertible_v<B, A> && std::is_assignable_v<A&, B>;
template <class A, class B>
constexpr bool mixes_somewhere = addable<A, B> || subtractable_in_formula<A, B> || comparable<A, B> || maximum_of<A, B> || choosable<A, A, B> ||
                                 choosable<A, B, B> || interpolable<A, A, B> || mappable<A, A, B> || mappable<A, B, float> ||
                                 assignable_in_place<A, B> || add_assignable<A, B> || divide_assignable<A, B> || assignable<A, B> ||
                                 assignable_to_view<A, B> || std::is_convertible_v<B, A> || std::is_assignable_v<A&, B>;

using OnCpu = Tensor<float, Cpu>;
using OnPinned = Tensor<float, Pinned>;
using OnCuda0 = Tensor<float, Cuda<0>>;
using OnCuda1 = Tensor<float, Cuda<1>>;
using OnEmulated0 = Tensor<float, Emulated<0>>;
using OnEmulated1 = Tensor<float, Emulated<1>>;

// ---- operands on different devices
static_assert(mixes<OnCpu, OnCpu>);
static_assert(mixes<OnCuda0, OnCuda0>);
static_assert(mixes<OnCuda1, OnCuda1>);
static_assert(mixes<OnEmulated0, OnEmulated0>);
static_assert(mixes<OnCpu, OnPinned> && mixes<OnPinned, OnCpu> && mixes<OnPinned, OnPinned>);
static_assert(!mixes_somewhere<OnCpu, OnCuda0> && !mixes_somewhere<OnCuda0, OnCpu>);
static_assert(!mixes_somewhere<OnPinned, OnCuda0> && !mixes_somewhere<OnCuda0, OnPinned>);
static_assert(!mixes_somewhere<OnCuda0, OnCuda1> && !mixes_somewhere<OnCuda1, OnCuda0>);
static_assert(!mixes_somewhere<OnCpu, OnEmulated0> && !mixes_somewhere<OnEmulated0, OnCpu>);
static_assert(!mixes_somewhere<OnEmulated0, OnEmulated1> && !mixes_somewhere<OnEmulated1, OnEmulated0>);
static_assert(!mixes_somewhere<OnEmulated0, OnCuda0> && !mixes_somewhere<OnCuda0, OnEmulated0>);

// A formula is where its operands are; numbers are everywhere.
using Formula = decltype(std::declval<OnCuda0>() * 2 + 1);
static_assert(addable<Formula, OnCuda0> && addable<Formula, float> && addable<float, Formula>);
static_assert(!addable<Formula, OnCpu> && !addable<OnCuda1, Formula>);
static_assert(std::is_convertible_v<Formula, OnCuda0>);
static_assert(!std::is_convertible_v<Formula, OnCpu>);

// ---- conversion across devices is explicit
static_assert(std::is_constructible_v<OnCuda0, OnCpu const&> && !std::is_convertible_v<OnCpu const&, OnCuda0>);
static_assert(std::is_constructible_v<OnCpu, OnCuda0> && !std::is_convertible_v<OnCuda0, OnCpu>);
static_assert(std::is_constructible_v<OnCuda1, OnCuda0&> && !std::is_convertible_v<OnCuda0&, OnCuda1>);
static_assert(std::is_constructible_v<OnCpu, OnEmulated0> && !std::is_convertible_v<OnEmulated0, OnCpu>);
static_assert(std::is_constructible_v<OnCpu, Formula> && !std::is_assignable_v<OnCpu&, Formula>);
static_assert(!std::is_assignable_v<OnCuda0&, OnCpu> && std::is_assignable_v<OnCuda0&, OnCuda0>);

// ---- element access on a device
static_assert(indexable<OnCpu> && indexable<OnPinned> && writable_by_element<OnCpu>);
static_assert(!indexable<OnCuda0> && !indexable<OnCuda0 const> && !writable_by_element<OnCuda0>);
static_assert(!indexable<OnEmulated0> && !writable_by_element<OnEmulated0>);
static_assert(sliceable<OnCpu> && sliceable<OnCuda0> && sliceable<OnEmulated0>);
static_assert(!writable_by_element<OnCpu const>);

// ---- element types that no tensor holds
static_assert(holdable<float> && holdable<double> && holdable<float16> && holdable<bfloat16> && holdable<bool> && holdable<std::int8_t> &&
              holdable<std::int16_t> && holdable<std::int32_t> && holdable<std::int64_t> && holdable<std::uint8_t>);
static_assert(!holdable<std::string> && !holdable<long double> && !holdable<unsigned> && !holdable<char> && !holdable<float const> &&
              !holdable<float&> && !holdable<OnCpu> && !holdable<void>);
static_assert(tensor_exists<float, Cuda<3>> && !tensor_exists<float, float> && !tensor_exists<std::string, Cuda<0>>);

// ---- conversions that lose values
using Ints = Tensor<std::int32_t>;
using Doubles = Tensor<double>;
static_assert(std::is_convertible_v<Ints, OnCpu> && std::is_convertible_v<OnCpu, Doubles> && std::is_assignable_v<Doubles&, Ints>);
static_assert(!std::is_constructible_v<Ints, OnCpu> && !std::is_convertible_v<OnCpu, Ints> && !std::is_assignable_v<Ints&, OnCpu>);
static_assert(!std::is_constructible_v<OnCpu, Doubles> && !std::is_assignable_v<OnCpu&, Doubles>);
static_assert(!std::is_convertible_v<decltype(std::declval<Ints>() * 0.5), Ints> && std::is_convertible_v<decltype(std::declval<Ints>() * 2), Ints>);
static_assert(!std::is_convertible_v<decltype(std::declval<Ints>() / 2), Ints>);
static_assert(!std::is_convertible_v<Tensor<float16>, Tensor<bfloat16>> && std::is_convertible_v<Tensor<bfloat16>, OnCpu>);
static_assert(assignable_in_place<OnCpu, Ints> && !assignable_in_place<Ints, OnCpu>);
static_assert(assignable_in_place<OnCpu, double> && assignable_in_place<Ints, int> && !assignable_in_place<Ints, double>);
static_assert(assignable_to_view<OnCpu, double> && assignable_to_view<Ints, int> && !assignable_to_view<Ints, double>);
static_assert(!assignable<OnCpu, double> && !assignable<Ints, int>, "a named tensor is rebound, and a number is no tensor");
static_assert(add_assignable<OnCpu, Ints> && !add_assignable<Ints, OnCpu> && add_assignable<Ints, int> && !add_assignable<Ints, float>);
static_assert(divide_assignable<OnCpu, Ints> && !divide_assignable<Ints, Ints>);
template <class A, class I>
concept takes_index = requires(A a, I i) { a[i]; };
static_assert(takes_index<OnCpu, int> && takes_index<OnCpu, std::size_t> && takes_index<OnCpu const, int> && !takes_index<OnCpu, float> && !takes_index<OnCpu const, bool>);
using HostFormula = decltype(std::declval<OnCpu>() * 2);
static_assert(takes_index<HostFormula, int> && !takes_index<HostFormula, double> && !takes_index<HostFormula, bool>);
static_assert(!assignable<OnCpu const, OnCpu> && !assignable<OnCpu const, Formula> && !std::is_assignable_v<OnCpu const&, double>);
static_assert(!std::is_assignable_v<OnCpu const, OnCpu> && !std::is_assignable_v<OnCpu const, double> && std::is_assignable_v<OnCpu, double>);
static_assert(!std::is_constructible_v<Tensor<std::int32_t, Cuda<0>>, OnCpu>);  // nor on the way to a device
static_assert(std::is_constructible_v<Tensor<double, Cuda<0>>, OnCpu>);

// ---- the type of a transfer can be asked for wherever the device exists as a type: making the tensor is what needs CUDA
using Far = Tensor<float, Cuda<0>>;
template <class X, class D>
concept movable = requires(X x) { x.to(D{}); };
static_assert(std::is_same_v<decltype(std::declval<OnCpu>().to(Cuda<0>{})), Far> && std::is_same_v<decltype(std::declval<OnCpu>().cuda()), Far>);
static_assert(std::is_same_v<decltype(std::declval<Far>().cpu()), OnCpu> && std::is_same_v<decltype(std::declval<HostFormula>().to(Cuda<0>{})), Far>);
static_assert(std::is_same_v<decltype(std::declval<Far>().to<double>()), Tensor<double, Cuda<0>>> && std::is_same_v<decltype(std::declval<Far>().to<double>(Cpu{})), Doubles>);
static_assert(std::is_same_v<decltype(std::declval<Tensor<float, Pinned>>().to_async(Cuda<0>{})), Far>);
static_assert(std::is_same_v<decltype(eval(std::declval<Far>() + std::declval<Far>())), Far> && movable<OnCpu, Cuda<1>> && movable<Far, Cuda<1>> && !movable<OnCpu, int>);
using Recorded = Variable<float>;
using FarRecorded = Variable<float, Cuda<0>>;
static_assert(std::is_same_v<decltype(std::declval<Recorded>().cuda()), FarRecorded> && std::is_same_v<decltype(std::declval<Recorded>().to(Cuda<0>{})), FarRecorded> &&
              std::is_same_v<decltype((std::declval<Recorded>() * 2).to(Cuda<0>{})), FarRecorded> && std::is_same_v<decltype((std::declval<FarRecorded>() * 2).cpu()), Recorded> &&
              std::is_same_v<decltype(std::declval<Recorded>().to<double>(Cuda<0>{})), Variable<double, Cuda<0>>>);

// ---- a number is not a shape, nor a tensor a number
static_assert(!std::is_convertible_v<OnCpu, float> && !std::is_convertible_v<OnCpu, bool>);
static_assert(!std::is_constructible_v<Shape, OnCpu> && !std::is_constructible_v<Shape, Tensor<std::int64_t, Cuda<0>>>);

}  // namespace

TEST_CASE("what must not compile is seen by requires") { CHECK(true); }
