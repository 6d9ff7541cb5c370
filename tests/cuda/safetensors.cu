#include <unistd.h>

#include <string>

#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/io/safetensors.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// A file that is removed.
struct File {
  std::string path = std::string(P_tmpdir) + "/situ-safetensors-" + std::to_string(::getpid());
  ~File() { ::unlink(path.c_str()); }
};

}  // namespace

TEST_CASE("what is saved from a GPU is what the host would save, and comes back") {
  File const file;
  Tensor<float> const a = numbers<float>({300, 200});
  Tensor<int64_t> const b = numbers<int64_t>({7});
  Tensor<float16> const c = numbers<float16>({33, 65});
  Tensor<float, Gpu> const x{a};
  Tensor<int64_t, Gpu> const y{b};
  Tensor<float16, Gpu> const z{c};
  io::save_safetensors(file.path, {{"a", x}, {"t", x.t()}, {"part", x(range(3, 200), range(0, 90, 3))}, {"b", y}, {"c", z}, {"e", zeros<float>({0, 3}, Gpu{})}});
  io::Safetensors const saved{file.path};
  CHECK(differs(saved.view<float>("a"), a) == "");
  CHECK(differs(saved.view<float>("t"), a.t()) == "");
  CHECK(differs(saved.view<float>("part"), a(range(3, 200), range(0, 90, 3))) == "");
  CHECK(differs(saved.view<int64_t>("b"), b) == "");
  CHECK(differs(saved.view<float16>("c"), c) == "");
  CHECK(differs(saved.load<float>("a", Gpu{}), a) == "");
  CHECK(differs(saved.load<float>("c", Gpu{}, {.cast = true}), c) == "");

  Tensor<float, Gpu> x2 = zeros<float>({300, 200}, Gpu{}), t2 = zeros<float>({300, 200}, Gpu{}), part2 = zeros<float>({400, 31}, Gpu{}), e2 = zeros<float>({0, 3}, Gpu{});
  Tensor<int64_t> b2 = zeros<int64_t>({7});
  Tensor<float16, Pinned> c2 = zeros<float16>({33, 65}, Pinned{});
  io::load_safetensors(file.path, {{"a", x2}, {"t", t2.t()}, {"part", part2(range(0, 394, 2), range(1, 31))}, {"b", b2}, {"c", c2}, {"e", e2}});
  CHECK(differs(x2, a) == "");
  CHECK(differs(t2, a) == "");
  CHECK(differs(part2(range(0, 394, 2), range(1, 31)), a(range(3, 200), range(0, 90, 3))) == "");
  CHECK(differs(part2.select(1, 0), zeros({400})) == "");
  CHECK(differs(b2, b) == "");
  CHECK(differs(c2, c) == "");
}

TEST_CASE("tensors larger than the staging buffers cross to a GPU in pieces, in the order of its stream") {
  File const file;
  int64_t const n = detail::Staging::capacity * 7 / 2 / 4 + 5;
  Tensor<float> const a = numbers<float>({n});
  io::save_safetensors(file.path, {{"a", Tensor<float, Gpu>{a}}});
  Stream<Gpu> const stream;
  Tensor<float, Gpu> x = zeros<float>({n}, Gpu{});
  {
    StreamGuard const guard(stream);
    io::load_safetensors(file.path, {{"a", x}});
  }
  Tensor<float, Gpu> const y = x * 2.f;
  CHECK(differs(y, a * 2.f) == "");
}
