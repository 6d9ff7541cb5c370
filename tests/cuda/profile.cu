#include <doctest/doctest.h>

#include <situ/device/profile.hpp>
#include <situ/device/transfer_log.hpp>
#include <situ/ops/index.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <string>

using namespace situ;

namespace {

profile::row const* find(std::vector<profile::row> const& rows, std::string const& kind, std::string const& name) {
  for (auto const& row : rows) {
    if (row.kind == kind && row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace

TEST_SUITE("without a gpu") {
  TEST_CASE("without a GPU a launch fails, and is none in a profile") {
    profile p;
    CHECK_THROWS_AS(ones({4}, Cuda<0>{}), DeviceUnavailable);
    p.stop();
    CHECK(p.launches() == 0);
    CHECK(p.allocations() == 0);
  }
  TEST_CASE("without a GPU explain says that the registers are not known") {
    Tensor<float, Cuda<0>> const x;
    CHECK(explain(x * 2).find("  kernel: its registers are known where there is a GPU\n") != std::string::npos);
  }
}

TEST_CASE("a chain of operators on a GPU is one launch and one allocation, timed on the GPU") {
  auto const a = ones({1 << 22}, Cuda<0>{}), b = ones({1 << 22}, Cuda<0>{});
  Tensor<float, Cuda<0>> const before = tanh(a * b + 1);
  profile p;
  Tensor<float, Cuda<0>> const y = tanh(a * b + 2);
  CHECK(p.launches() == 1);
  CHECK(p.allocations() == 1);
  CHECK(p.transfers() == 0);
  CHECK(p.synchronizations() == 0);
  p.stop();
  auto const rows = p.rows();
  auto const* const launch = find(rows, "launch", "tanh((a * b) + number)");
  REQUIRE(launch);
  CHECK(launch->device == "cuda:0");
  CHECK(launch->seconds > 1e-6);
  CHECK(launch->seconds < 1);
  CHECK(p.chrome_trace().find("\"name\":\"cuda:0\"") != std::string::npos);
}

TEST_CASE("reductions, transfers, copies and waits of a GPU are told") {
  auto const x = ones({1000}).to(Cuda<0>{});
  profile p;
  TransferLog log;
  auto const s = sum(x * x);
  auto const copy = x.clone();
  float const first = s.item();
  auto const back = x.cpu();
  synchronize(Cuda<0>{});
  p.stop();
  CHECK(first == 1000.0f);
  CHECK(p.transfers() == 2);
  CHECK(p.copies() == 1);
  CHECK(p.synchronizations() == 1);
  CHECK(find(p.rows(), "launch", "sum(a * b)"));
  CHECK(log.count(Cuda<0>{}, Cpu{}) == 2);
  CHECK(log.bytes(Cuda<0>{}, Cpu{}) == 4004);
}

TEST_CASE("explain tells the registers of a kernel") {
  auto const x = ones({64, 64}, Cuda<0>{});
  std::string const contiguous = explain(x * 2 + 1), strided = explain(x.t() + x);
  CHECK(contiguous.find("  kernel: contiguous, ") != std::string::npos);
  CHECK(contiguous.find(" 0 bytes of local memory") != std::string::npos);
  CHECK(strided.find("  kernel: strided, ") != std::string::npos);
}

TEST_CASE("checked launches on a GPU throw what they found wrong themselves") {
  auto const x = ones({4}, Cuda<0>{});
  auto const bad = Tensor<int64_t>{1, 7}.to(Cuda<0>{});
  gpu::check_launches(true);
  CHECK_THROWS_AS(index_select(x, 0, bad), IndexError);
  Tensor<float, Cuda<0>> const y = x + 1;
  gpu::check_launches(false);
  CHECK(y.item(3) == 2.0f);
}
