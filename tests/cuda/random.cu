#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/random_ops.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE("a GPU draws the numbers of the host: uniforms and integers bit for bit, normals within 2 ULP") {
  for (int64_t n : {1, 2, 3, 1000, 100'003}) {
    Generator a{77}, b{77};
    CHECK(differs(rand({n}, a, Gpu{}), rand({n}, b)) == "");
    CHECK(differs(rand<double>({n}, a, Gpu{}), rand<double>({n}, b)) == "");
    CHECK(differs(rand<float16>({n}, a, Gpu{}), rand<float16>({n}, b)) == "");
    CHECK(differs(uniform(-3, 1.5, {n}, a, Gpu{}), uniform(-3, 1.5, {n}, b)) == "");
    CHECK(differs(randint(-5, 1000, {n}, a, Gpu{}), randint(-5, 1000, {n}, b)) == "");
    CHECK(differs(bernoulli(0.3, {n}, a, Gpu{}), bernoulli(0.3, {n}, b)) == "");
    CHECK(differs(randn({n}, a, Gpu{}), randn({n}, b), 2.4e-7) == "");
    CHECK(differs(normal<double>(1, 2, {n}, a, Gpu{}), normal<double>(1, 2, {n}, b), 1e-15) == "");
  }
}

TEST_CASE("dropout drops the same elements on a GPU, whatever their layout is") {
  Tensor<float> const x = numbers<float>({300, 70});
  Tensor<float, Gpu> const y{x};
  Generator a{5}, b{5};
  CHECK(differs(dropout(y * 2.f, 0.3, a), dropout(x * 2.f, 0.3, b), 1e-6) == "");
  CHECK(differs(dropout(y.t(), 0.3, a), dropout(x.t(), 0.3, b), 1e-6) == "");
  CHECK(differs(bernoulli(y * 0.1f, a), bernoulli(x * 0.1f, b)) == "");
}

TEST_CASE("dropout of rows that lie further apart than 32-bit strides reach drops by the element's place, too") {
  int64_t const apart = int64_t{1} << 31;
  Tensor<float16, Gpu> memory = empty<float16, Gpu>({apart + 300});
  Tensor<float16, Gpu> far = from_blob(memory.data(), {2, 300}, {apart, 1}, [memory](void*) {}, Gpu{});
  Tensor<float16> const x = full<float16>({2, 300}, 1);
  far.assign(x.to(Gpu{}));
  Generator a{6}, b{6};
  CHECK(differs(dropout(far, 0.5, a), dropout(x, 0.5, b)) == "");
}
