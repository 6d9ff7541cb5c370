/// Eigen: what maps see and write, how long, what is refused, and matrices as tensors.
#include <doctest/doctest.h>

#include <Eigen/Core>

#include <situ/interop/eigen.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;

namespace {

/// Empty when a matrix has the elements of a tensor of two axes, or a vector those of one; otherwise the first that differs, in words.
template <class M, class T, class D>
std::string unlike(M const& m, Tensor<T, D> const& x) {
  bool const vector = x.rank() == 1;
  if (m.rows() != x.size(0) || m.cols() != (vector ? 1 : x.size(1))) return std::to_string(m.rows()) + " x " + std::to_string(m.cols()) + " for shape " + to_string(x.shape());
  for (int64_t i = 0; i < m.rows(); ++i) {
    for (int64_t j = 0; j < m.cols(); ++j) {
      if (m(i, j) != (vector ? x(i) : x(i, j))) return "element " + std::to_string(i) + ", " + std::to_string(j);
    }
  }
  return "";
}

/// The elements 0, 1, 2, ... of a row-major matrix.
template <class T, int Rows, int Columns, int Options = Eigen::ColMajor>
auto counted() {
  Eigen::Matrix<T, Rows, Columns, Options> m;
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Columns; ++j) m(i, j) = static_cast<T>(i * Columns + j);
  }
  return m;
}

template <int Rank, class X>
constexpr bool maps = requires(X x) { interop::to_eigen<Rank>(static_cast<X>(x)); };
static_assert(maps<2, Tensor<float>&> && maps<1, Tensor<bool, Pinned> const&> && maps<2, Tensor<int64_t> const&>);
static_assert(!maps<2, Tensor<float>> && !maps<2, const Tensor<float>> && !maps<3, Tensor<float>&>);
static_assert(!maps<2, Tensor<float, Emulated<0>>&> && !maps<2, Tensor<float, Cuda<0>>&> && !maps<2, Tensor<float16>&>);
static_assert(!maps<2, decltype(std::declval<Tensor<float>&>() + 1)&>);

template <class M>
constexpr bool becomes_a_tensor = requires(M const& m) { interop::from_eigen(m); };
static_assert(becomes_a_tensor<Eigen::MatrixXf> && !becomes_a_tensor<Eigen::MatrixXcf> && !becomes_a_tensor<Eigen::Matrix<unsigned, 2, 2>> && !becomes_a_tensor<int>);
static_assert(!becomes_a_tensor<Eigen::PermutationMatrix<3>>);

}  // namespace

TEST_CASE_TEMPLATE("a map has the elements of a tensor, and is written to it", T, bool, int8_t, uint8_t, int16_t, int32_t, int64_t, float, double) {
  Tensor<T> x = cast<T>(arange<double>(12)).view({3, 4});
  auto m = interop::to_eigen(x);
  static_assert(std::is_same_v<typename decltype(m)::Scalar, T>);
  CHECK(unlike(m, x) == "");
  CHECK(m.data() == std::as_const(x).data());
  m(1, 2) = T(0);
  CHECK(x(1, 2) == T(0));
  x(2, 3) = T(1);
  CHECK(m(2, 3) == T(1));
  Tensor<T> row = x[1];
  CHECK(unlike(interop::to_eigen<1>(row), row) == "");
}

TEST_CASE("maps have the strides of views") {
  auto x = arange<float>(60).view({3, 4, 5});
  auto const is_same = [](Tensor<float> view) { return view.rank() == 1 ? unlike(interop::to_eigen<1>(view), view) : unlike(interop::to_eigen(view), view); };
  CHECK(is_same(x[1]) == "");
  CHECK(is_same(x[1].t()) == "");
  CHECK(is_same(x.select(1, 2)) == "");
  CHECK(is_same(x.select(2, 4).slice(1, 0, 4, 2)) == "");
  CHECK(is_same(x[0].flip(0)) == "");
  CHECK(is_same(x[0].flip(1)) == "");
  CHECK(is_same(x.select(1, 1).select(1, 3)) == "");
  CHECK(is_same(x[2][1].flip(0)) == "");
  CHECK(is_same(zeros({0, 3})) == "");
  CHECK(is_same(zeros({0})) == "");
  Tensor<float> part = x[0].flip(1);
  interop::to_eigen(part).col(0).setConstant(-1);
  for (int i = 0; i < 4; ++i) CHECK(x(0, i, 4) == -1);
}

TEST_CASE("Eigen computes with maps") {
  auto a = arange<double>(35).view({5, 7}), b = linspace<double>(-1, 1, 21).view({7, 3}), c = zeros<double>({5, 3});
  interop::to_eigen<2, 1>(c).noalias() = interop::to_eigen<2, 1>(a) * interop::to_eigen(b);
  for (int i = 0; i < 5; ++i) {
    for (int j = 0; j < 3; ++j) {
      double sum = 0;
      for (int k = 0; k < 7; ++k) sum += a(i, k) * b(k, j);
      CHECK(c(i, j) == doctest::Approx(sum));
    }
  }
  static_assert(decltype(interop::to_eigen<2, 1>(a))::InnerStrideAtCompileTime == 1);
  Tensor<double> v = b.select(1, 0);
  Eigen::VectorXd const y = interop::to_eigen(a) * interop::to_eigen<1>(v);
  CHECK(y.size() == 5);
}

TEST_CASE("const tensors, and storage that is read-only, give maps of const") {
  auto const x = arange<float>(6).view({2, 3});
  auto const m = interop::to_eigen(x);
  static_assert(!(decltype(m)::Flags & Eigen::LvalueBit));
  CHECK(unlike(m, x) == "");
  auto repeated = arange<float>(3).expand({2, 3});
  CHECK(unlike(interop::to_eigen(std::as_const(repeated)), repeated) == "");
  CHECK(thrown<LayoutError>([&] { (void)interop::to_eigen(repeated); }, "to_eigen: shape [2, 3] with strides [0, 1] is a broadcast view, whose elements would be written more than once; "
                                                                        "give std::as_const(x), or a clone() of it") == "");
  float const numbers[] = {1, 2, 3};
  auto fixed = from_blob(numbers, {3});
  CHECK(interop::to_eigen<1>(std::as_const(fixed))(2) == 3);
  CHECK(thrown<TypeError>([&] { (void)interop::to_eigen<1>(fixed); },
                          "to_eigen: the storage is read-only: it was given as a pointer to const; give std::as_const(x), or a clone() of it") == "");
}

TEST_CASE("a map is of the elements, whatever handle keeps them") {
  auto x = ones({2, 2});
  auto m = interop::to_eigen(x);
  Tensor<float> keep = x;
  x = x + 1;
  CHECK(m(0, 0) == 1);
  CHECK(keep(0, 0) == 1);
  Tensor<float, Pinned> p = pin(ones({2}));
  interop::to_eigen<1>(p)(1) = 5;
  CHECK(p(1) == 5);
}

TEST_CASE("maps of other ranks, and of rows with gaps where none are expected, are refused") {
  auto x = zeros({2, 3}), v = zeros({4}), cube = zeros({2, 3, 4}), number = zeros({});
  auto const says = [](std::string const& what) { return "to_eigen: shape " + what; };
  CHECK(thrown<ShapeError>([&] { (void)interop::to_eigen<1>(x); }, says("[2, 3] has 2 axes, and a map of 1 was asked for; to_eigen<2> gives a matrix")) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_eigen(v); }, says("[4] has 1 axis, and a map of 2 was asked for; to_eigen<1> gives a column")) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_eigen(cube); }, says("[2, 3, 4] has 3 axes, and a map of 2 was asked for; select, flatten or unsqueeze axes")) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_eigen<1>(number); }, says("[] has 0 axes, and a map of 1 was asked for; select, flatten or unsqueeze axes")) == "");
  Tensor<float> turned = x.t();
  CHECK(thrown<LayoutError>([&] { (void)interop::to_eigen<2, 1>(turned); },
                            says("[3, 2] with strides [1, 3] has no rows of elements side by side; use to_eigen without the 1, or a contiguous() copy")) == "");
}

TEST_CASE("matrices, arrays, blocks and expressions become tensors") {
  auto const expected = arange<float>(6).view({2, 3});
  CHECK(equal(interop::from_eigen(counted<float, 2, 3>()), expected));
  CHECK(equal(interop::from_eigen(counted<float, 2, 3, Eigen::RowMajor>()), expected));
  Eigen::MatrixXf const m = counted<float, 2, 3>();
  Tensor x = interop::from_eigen(m);
  static_assert(std::is_same_v<decltype(x), Tensor<float, Cpu>>);
  CHECK(equal(x, expected));
  CHECK(x.is_contiguous());
  x(0, 0) = 7;
  CHECK(m(0, 0) == 0);
  CHECK(equal(interop::from_eigen(m.transpose()), expected.t()));
  CHECK(equal(interop::from_eigen(m.array() * 2 + 1), expected * 2 + 1));
  CHECK(equal(interop::from_eigen(m.block(0, 1, 2, 2)), expected.slice(1, 1, 3)));
  CHECK(equal(interop::from_eigen(m.transpose() * m), Tensor<float>{{9, 12, 15}, {12, 17, 22}, {15, 22, 29}}));
  CHECK(equal(interop::from_eigen(m.array() > 2), expected > 2));
  CHECK(equal(interop::from_eigen(interop::to_eigen(expected)), expected));
  CHECK(equal(interop::from_eigen(Eigen::MatrixXf::Identity(2, 2)), Tensor<float>{{1, 0}, {0, 1}}));
  CHECK(interop::from_eigen(Eigen::MatrixXf(0, 3)).shape() == Shape{0, 3});
}

TEST_CASE("vectors become tensors of one axis") {
  CHECK(equal(interop::from_eigen(Eigen::Vector3d(1, 2, 3)), Tensor<double>{1, 2, 3}));
  CHECK(equal(interop::from_eigen(Eigen::RowVector3d(1, 2, 3)), Tensor<double>{1, 2, 3}));
  Eigen::VectorXi const v = Eigen::VectorXi::LinSpaced(4, 0, 3);
  CHECK(equal(interop::from_eigen(v), Tensor<int32_t>{0, 1, 2, 3}));
  CHECK(equal(interop::from_eigen(v.transpose() + v.reverse().transpose()), Tensor<int32_t>{3, 3, 3, 3}));
  CHECK(equal(interop::from_eigen(Eigen::ArrayXf::Constant(2, 0.5f)), Tensor<float>{0.5f, 0.5f}));
  CHECK(equal(interop::from_eigen(counted<float, 3, 2>().col(1)), Tensor<float>{1, 3, 5}));
  CHECK(interop::from_eigen(Eigen::VectorXf(0)).shape() == Shape{0});
}

TEST_CASE("scalars become elements of their size") {
  CHECK(equal(interop::from_eigen(counted<long long, 2, 2>()), Tensor<int64_t>{{0, 1}, {2, 3}}));
  CHECK(equal(interop::from_eigen(counted<int8_t, 2, 2>()), Tensor<int8_t>{{0, 1}, {2, 3}}));
  Eigen::Matrix<Eigen::half, 2, 3> const halves = counted<float, 2, 3>().cast<Eigen::half>();
  CHECK(equal(interop::from_eigen(halves), cast<float16>(arange<float>(6).view({2, 3}))));
  Eigen::Matrix<Eigen::bfloat16, 1, 3> const short_ones = counted<float, 1, 3, Eigen::RowMajor>().cast<Eigen::bfloat16>();
  CHECK(equal(interop::from_eigen(short_ones), cast<bfloat16>(arange<float>(3))));
}

TEST_CASE("a matrix that stays is a tensor by its pointer") {
  Eigen::MatrixXf m = counted<float, 2, 3>();
  auto x = from_blob(m.data(), {m.rows(), m.cols()}, {m.rowStride(), m.colStride()});
  CHECK(equal(x, arange<float>(6).view({2, 3})));
  x(1, 2) = 9;
  CHECK(m(1, 2) == 9);
}
