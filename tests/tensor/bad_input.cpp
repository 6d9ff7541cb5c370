// What a user gets wrong at run time: each with its message; the operands stay as they were, and the next operation works.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;

TEST_CASE_TEMPLATE("shapes that do not broadcast", D, SITU_TEST_DEVICES) {
  Tensor<float, D> a{1, 2, 3}, b{4, 5};
  char const* const message = "operator+: shapes [3] and [2] do not broadcast: 3 != 2 in dimension 0";
  CHECK(thrown<ShapeError>([&] { (void)(a + b); }, message) == "");
  CHECK(thrown<ShapeError>([&] { a += b; }, message) == "");
  CHECK(thrown<ShapeError>([&] { a = a + b; }, message) == "");
  CHECK(thrown<ShapeError>([&] { (void)minimum(a, b); }, "minimum: shapes [3] and [2] do not broadcast: 3 != 2 in dimension 0") == "");
  CHECK(thrown<ShapeError>([&] { (void)where(a > 1, a, b); }, "where: shapes [3] and [2] do not broadcast: 3 != 2 in dimension 0") == "");
  CHECK(thrown<ShapeError>([&] { (void)(a.unsqueeze(0) * zeros({2, 2, 4}, D{})); },
                           "operator*: shapes [1, 3] and [2, 2, 4] do not broadcast: 3 != 4 in dimension 2") == "");
  CHECK(a.to_vector() == std::vector<float>{1, 2, 3});
  CHECK(b.to_vector() == std::vector<float>{4, 5});
  CHECK(a.use_count() == 1);
  CHECK(eval(a + b[0]).to_vector() == std::vector<float>{5, 6, 7});
}

TEST_CASE_TEMPLATE("indices and axes out of range", D, SITU_TEST_DEVICES) {
  Tensor<float, D> const x{{1, 2, 3}, {4, 5, 6}};
  CHECK(thrown<IndexError>([&] { (void)x[2]; }, "operator[]: index 2 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x.select(1, -4); }, "select: index -4 is out of range for axis 1 of shape [2, 3]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x.item(0, 3); }, "item: index 3 is out of range for axis 1 of shape [2, 3]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x.item(0); }, "item: 1 index was given for shape [2, 3]: it has 2 axes") == "");
  CHECK(thrown<AxisError>([&] { (void)x.flip(2); }, "flip: axis 2 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<AxisError>([&] { (void)x.slice(-3, 0, 1); }, "slice: axis -3 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<AxisError>([&] { (void)x.transpose(0, 2); }, "transpose: axis 2 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<AxisError>([&] { (void)x.squeeze(5); }, "squeeze: axis 5 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<AxisError>([&] { (void)x.unsqueeze(3); }, "unsqueeze: axis 3 is out of range for shape [2, 3]: axes are -3 to 2") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.permute({0, 0}); }, "permute: axis 0 appears twice in [0, 0]") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.permute({0}); }, "permute: 1 axis [0] was given for shape [2, 3]: it has 2") == "");
  CHECK(thrown<AxisError>([&] { (void)x.size(2); }, "size: axis 2 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  // An axis that is not there is caught as either of the two that it is, and as any error.
  CHECK_THROWS_AS((void)x.size(2), IndexError const&);
  CHECK_THROWS_AS((void)x.size(2), ShapeError const&);
  CHECK_THROWS_AS((void)x.size(2), Error const&);
  CHECK_THROWS_AS((void)x.size(2), std::runtime_error const&);
  CHECK_THROWS_AS((void)x.size(2), std::exception const&);
  CHECK(x.use_count() == 1);
  CHECK(x.item(-1, -1) == 6.f);
}

TEST_CASE_TEMPLATE("an index of several is named with the axis and the shape that it was written for", D, SITU_TEST_DEVICES) {
  auto const x = zeros({2, 3, 4}, D{});
  CHECK(thrown<IndexError>([&] { (void)x(0, 5, all()); }, "operator(): index 5 is out of range for axis 1 of shape [2, 3, 4]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x(newaxis(), all(), 7); }, "operator(): index 7 is out of range for axis 1 of shape [2, 3, 4]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x(ellipsis(), -5); }, "operator(): index -5 is out of range for axis 2 of shape [2, 3, 4]: it has 4 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x(0, all(), range(0, 4, 0)); }, "operator(): the step of axis 2 is 0; a step is positive or negative") == "");
}

TEST_CASE_TEMPLATE("a number that an element cannot hold is no element", D, SITU_TEST_DEVICES) {
  Tensor<int8_t, D> x{127, -128};
  CHECK(thrown<TypeError>([] { (void)Tensor<int8_t, D>{1, 300}; }, "Tensor: 300 is no int8: these are -128 to 127; take a wider element type") == "");
  CHECK(thrown<TypeError>([] { (void)Tensor<uint8_t, D>{{1}, {-1}}; }, "Tensor: -1 is no uint8: these are 0 to 255; take a wider element type") == "");
  CHECK(thrown<TypeError>([] { (void)full<uint8_t>({2}, 256, D{}); }, "full: 256 is no uint8: these are 0 to 255; take a wider element type") == "");
  CHECK(thrown<TypeError>([&] { x.assign(128); }, "assign: 128 is no int8: these are -128 to 127; take a wider element type") == "");
  CHECK(thrown<TypeError>([&] { x[0] = -129; }, "assign: -129 is no int8: these are -128 to 127; take a wider element type") == "");
  CHECK(thrown<TypeError>([] { (void)Tensor<int64_t, D>{~std::uint64_t{0}}; }, "Tensor: 18446744073709551615 is no int64: these are -9223372036854775808 to 9223372036854775807; take a wider element type") == "");
  CHECK(x.to_vector() == std::vector<int8_t>{127, -128});
  CHECK(Tensor<uint8_t, D>{255, 0}.to_vector() == std::vector<uint8_t>{255, 0});
  CHECK(eval(x + 1000).to_vector() == std::vector<int8_t>{103, 104});  // arithmetic wraps: 1127 - 4 * 256, 872 - 3 * 256
}

TEST_CASE_TEMPLATE("a bound beyond the numbers of an integer type counts as the nearest of them", D, SITU_TEST_DEVICES) {
  Tensor<int8_t, D> const x{100, -3};
  Tensor<uint8_t, D> const u{1, 200};
  CHECK(eval(clamp(x, 0, 300)).to_vector() == std::vector<int8_t>{100, 0});
  CHECK(eval(minimum(x, 300)).to_vector() == std::vector<int8_t>{100, -3});
  CHECK(eval(maximum(-200, x)).to_vector() == std::vector<int8_t>{100, -3});
  CHECK(eval(maximum(x, 300)).to_vector() == std::vector<int8_t>{127, 127});
  CHECK(eval(clamp(u, -5, 150)).to_vector() == std::vector<uint8_t>{1, 150});
  CHECK(eval(minimum(Tensor<int64_t, D>{1, 2}, ~std::uint64_t{0})).to_vector() == std::vector<int64_t>{1, 2});
}

TEST_CASE_TEMPLATE("sizes that no tensor can have", D, SITU_TEST_DEVICES) {
  D const device{};
  CHECK(thrown<ShapeError>([&] { (void)zeros({2, -3}, device); }, "zeros: shape [2, -3] has a negative extent: -3; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)empty({-1}, device); }, "empty: shape [-1] has a negative extent: -1; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)eye(-2, device); }, "eye: shape [-2, -2] has a negative extent: -2; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)linspace(0, 1, -5, device); }, "linspace: shape [-5] has a negative extent: -5; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)empty({1, 1, 1, 1, 1, 1, 1, 1, 1}, device); }, "shape: 9 dimensions were given: a tensor has at most 8") == "");
  CHECK(thrown<ShapeError>([&] { (void)empty({4294967296, 4294967296}, device); },
                           "empty: shape [4294967296, 4294967296] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK(thrown<ShapeError>([&] { (void)empty<double>({INT64_MAX / 4}, device); },
                           "empty: shape [2305843009213693951] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK(thrown<ShapeError>([&] { (void)arange<int16_t>(INT64_MIN, INT64_MAX, 1, device); },
                           "arange: shape [9223372036854775807] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK(thrown<ShapeError>([&] { (void)zeros({1}, device).expand({int64_t{1} << 62}).to_vector(); },
                           "to_vector: shape [4611686018427387904] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK_THROWS_AS((void)arange(0, 1e30, 1, device), ShapeError);
  CHECK_THROWS_AS((void)arange(0, 10, -1, device), ShapeError);
  CHECK_THROWS_AS((void)arange(0, 10, 0, device), ShapeError);
  CHECK(zeros({2}, device).to_vector() == std::vector<float>{0, 0});
}

TEST_CASE("more than eight dimensions, by views and by broadcasting") {
  Tensor<float> const x = zeros({1, 1, 1, 1, 1, 1, 1, 2});
  char const* const message = "shape: 9 dimensions were given: a tensor has at most 8";
  CHECK(thrown<ShapeError>([&] { (void)x.unsqueeze(0); }, message) == "");
  CHECK(thrown<ShapeError>([&] { (void)x(newaxis(), ellipsis()); }, message) == "");
  CHECK(thrown<ShapeError>([&] { (void)x.view(std::vector<int>(9, 1)); }, message) == "");
  CHECK(x.squeeze().to_vector() == std::vector<float>{0, 0});
}

TEST_CASE("views and broadcasts whose size overflows") {
  Tensor<float> const x = ones({1, 1});
  int64_t const large = int64_t{1} << 32;
  char const* const message = "has more elements than can be addressed: the product of the sizes overflows";
  CHECK(thrown<ShapeError>([&] { (void)x.expand({large, large}); }, "expand: shape [4294967296, 4294967296] " + std::string(message)) == "");
  Tensor<float> const rows = x.expand({large, 1}), columns = x.expand({1, large});
  CHECK_THROWS_AS((void)eval(rows + columns), ShapeError);
  CHECK_THROWS_AS((void)(rows + columns).size(), ShapeError);
  float value = 1;
  CHECK(thrown<ShapeError>([&] { (void)from_blob(&value, {large, large}); }, "from_blob: shape [4294967296, 4294967296] " + std::string(message)) == "");
  CHECK(thrown<ShapeError>([&] { (void)from_blob(&value, {-1}); }, "from_blob: shape [-1] has a negative extent: -1; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.view({-1, large, large}); }, "view: shape [-1, 4294967296, 4294967296] " + std::string(message)) == "");
  CHECK(x.item() == 1.f);
  // Where an extent is 0 there are no elements, however large the others are.
  for (Shape const& shape : {Shape{large, large, 0}, Shape{0, large, large}, Shape{large, 0, large}, Shape{3, large * 3, 0, large * 3, 3, large}}) {
    Tensor<float> const none = zeros(shape);
    CHECK(none.size() == 0);
    CHECK(none.is_contiguous());
    CHECK(none.transpose(0, 1).shape()[0] == shape[1]);
    CHECK(none.view(shape).shape() == shape);
    CHECK(none.view({-1, 7}).shape() == Shape{0, 7});
    CHECK(none.flatten().shape() == Shape{0});
    CHECK((none + 1).to_vector().empty());
    CHECK(none.slice(0, 0, shape[0] / 2).clone().size() == 0);
    if (shape[0] > 0) CHECK(none[shape[0] - 1].size() == 0);
  }
  CHECK(thrown<ShapeError>([&] { (void)zeros({large, large, 0}).flatten(0, 1); }, "flatten: shape [4294967296, 4294967296] " + std::string(message)) == "");
}

TEST_CASE("view on a layout that cannot be viewed") {
  Tensor<float> const x = arange(6).view({2, 3});
  CHECK(thrown<LayoutError>([&] { (void)x.t().view({2, 3}); },
                            "view: shape [3, 2] with strides [1, 3] cannot be viewed as [2, 3] without a copy; use reshape(), which copies where it must") == "");
  CHECK(x.t().reshape({2, 3}).to_vector() == std::vector<float>{0, 3, 1, 4, 2, 5});
}

TEST_CASE("allocation failure says what was asked and what to do") {
  Tensor<float> x{1, 2, 3};
  auto const message_of = [](auto f) {
    try {
      f();
    } catch (OutOfMemory const& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  std::string const message = message_of([] { (void)empty<uint8_t>({int64_t{1} << 62}); });
  CHECK(message.find("cpu: out of memory: 4096.0 PiB were asked for (4611686018427") == 0);
  CHECK(message.find(" failed: ") != std::string::npos);
  CHECK(message.find("Free tensors") != std::string::npos);
  Tensor<float> const tall = x.unsqueeze(1).expand({3, int64_t{1} << 45});
  CHECK(message_of([&] { x = tall + 1; }).find("cpu: out of memory: 384.0 TiB were asked for (42221246506") == 0);
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
  x += 1;
  CHECK(x.to_vector() == std::vector<float>{2, 3, 4});
}

TEST_CASE("empty tensors are ordinary values") {
  Tensor<float> const none, also = zeros({0});
  CHECK(eval(none + also * 2 - 1).shape() == Shape{0});
  CHECK(eval(tanh(zeros({3, 0})) + zeros({3, 1})).shape() == Shape{3, 0});
  CHECK(eval(none + 1).to_vector().empty());
  CHECK(eval(where(none > 0, none, 1)).size() == 0);
  CHECK(eval(map([](float v) { return v; }, none)).size() == 0);
  CHECK(none.clone().size() == 0);
  CHECK(none.to(Emulated<0>{}).cpu().size() == 0);
  CHECK(cast<int8_t>(none).to_vector().empty());
  CHECK(to_string(none) == "tensor([])");
  Tensor<float> written = zeros({2, 0});
  written += 1;
  written[0] = 5;
  written.expand({3, 2, 0}) += 1;  // nothing is written more than once
  written = written * 2;
  CHECK(written.shape() == Shape{2, 0});
  CHECK(thrown<ShapeError>([&] { (void)none.item(); }, "item: shape [0] has 0 elements; without indices there must be exactly one") == "");
  CHECK(thrown<ShapeError>([&] { (void)(none + zeros({2})); }, "operator+: shapes [0] and [2] do not broadcast: 0 != 2 in dimension 0") == "");
}

TEST_CASE("a device that does not exist") {
  CHECK_THROWS_AS((void)zeros({2}, Emulated<9>{}), DeviceUnavailable);
  CHECK(zeros({2}, Emulated<1>{}).to_vector() == std::vector<float>{0, 0});
}

TEST_CASE("an instruction set that this processor lacks") {
  if (detail::cpu::best_instruction_set() == instruction_set::avx512) return;
  CHECK_THROWS_AS(set_instruction_set(instruction_set::avx512), DeviceUnavailable);
  CHECK(eval(Tensor<float>{1} + 1).item() == 2.f);
}
