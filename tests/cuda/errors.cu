#include <doctest/doctest.h>

#include <situ/tensor.hpp>
#include <string>

using namespace situ;

namespace {

template <class E, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (E const& e) {
    return e.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_SUITE("without a gpu") {
  TEST_CASE("without a driver or a GPU, first use says that there is no such device, again and again") {
    for (int k = 0; k < 2; ++k) {
      std::string const message = message_of<DeviceUnavailable>([] { zeros({3}, Cuda<0>{}); });
      CHECK(message.starts_with("cuda:0: "));
      CHECK(message.find("try_gpu() finds a device that is there") != std::string::npos);
    }
  }
  TEST_CASE("without a GPU, queries answer, and everything falls back to the host") {
    CHECK_FALSE(gpu::is_available());
    CHECK(gpu::device_count() == 0);
    CHECK(gpu::memory_allocated(Cuda<0>{}) == 0);
    CHECK(gpu::memory_reserved(0) == 0);
    CHECK(gpu::memory_info(0).total == 0);
    CHECK(try_gpu() == AnyDevice(Cpu{}));
    CHECK(try_all_gpus().size() == 1);
    Tensor<float, Pinned> const p = pin(ones({4}));
    CHECK(p(3) == 1.0f);
    CHECK(visit(try_gpu(), [](auto device) { return zeros({3}, device).size(); }) == 3);
  }
}

TEST_CASE("a GPU that is not there is named, with how many there are") {
  int const count = gpu::device_count();
  if (count >= 16) return;
  std::string const found = count == 1 ? "1 GPU was found" : std::to_string(count) + " GPUs were found";
  CHECK(message_of<DeviceUnavailable>([] { zeros({3}, Cuda<16>{}); }) == "cuda:16: there is no such device: " + found);
  CHECK(zeros({3}, Cuda<0>{}).size() == 3);
}

TEST_CASE("out of memory says what was asked and what there was, and the next allocation works") {
  std::string const message = message_of<OutOfMemory>([] { empty<float>({int64_t{1} << 44}, Cuda<0>{}); });
  CHECK(message.starts_with("cuda:0: out of memory: 64.0 TiB were asked for (70368744177664 bytes) and cudaMallocAsync failed: "));
  CHECK(message.find("situ has allocated ") != std::string::npos);
  CHECK(message.find("Free tensors, ") != std::string::npos);
  CHECK(zeros({3}, Cuda<0>{}).cpu()(2) == 0.0f);
}

TEST_CASE("a device chosen at run time runs the code that was written for its type") {
  CHECK(to_string(try_gpu()) == "cuda:0");
  CHECK(to_string(visit(try_gpu(), [](auto device) { return AnyDevice(ones({2}, device).device()); })) == "cuda:0");
  CHECK(gpu::device_name(0).size() > 0);
}
