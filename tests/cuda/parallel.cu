/// DataParallel on a GPU and the host, and on two GPUs where they are there.
#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd.hpp>
#include <situ/nn.hpp>
#include <situ/parallel.hpp>
#include <support/compare.hpp>

using namespace situ;
namespace parallel_test {}  // named: g++ warns of members of templates in anonymous ones
using namespace parallel_test;
using situ_test::differs;
using situ_test::numbers;

namespace parallel_test {

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{7, 9}, fc2{9, 4};
  auto forward(auto const& x) const { return fc2(tanh(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

template <class Parallel, class D>
void check_parallel(Parallel const& parallel, Net<D> const& net, Net<Cpu> const& host) {
  auto const x = numbers<float>({11, 7}, 3);
  auto const y = parallel(x.to(D{}));
  auto const expected = host(x);
  CHECK(differs(y.value(), expected.value(), 1e-5) == "");
  zero_grad(net), zero_grad(host);
  sum(square(y)).backward();
  sum(square(expected)).backward();
  auto const found = parameters(net);
  auto const wanted = parameters(host);
  for (std::size_t k = 0; k < wanted.size(); ++k) CHECK(differs(found[k].grad(), wanted[k].grad(), 1e-4) == "");
}

}  // namespace parallel_test

TEST_CASE("a GPU and the host share a batch") {
  Net<Cpu> const host;
  auto const net = to(host, Cuda<0>{});
  check_parallel(DataParallel<Net, Cuda<0>, Cpu>{net}, net, host);
  check_parallel(DataParallel<Net, Cuda<0>>{net}, net, host);
}

TEST_CASE("two GPUs share a batch") {
  Net<Cpu> const host;
  auto const net = to(host, Cuda<0>{});
  if (gpu::device_count() < 2) {
    CHECK(situ_test::thrown<DeviceUnavailable>([&] { DataParallel<Net, Cuda<0>, Cuda<1>> const parallel{net}; },
                                               "DataParallel: cuda:1 is not there, of the devices cuda:0, cuda:1; name such as this machine has") == "");
    return;
  }
  check_parallel(DataParallel<Net, Cuda<0>, Cuda<1>>{net}, net, host);
}
