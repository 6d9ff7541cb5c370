// One program, or two shared libraries in one: a file of the host compiler and one of nvcc exchange tensors of a device.
// device_main emulated|cuda FILE: cuda ends with 77 where there is no GPU, after a look at what is thrown then.
#include "device_parts.hpp"

#include <situ/core/error.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>

static int failures = 0;

static void check(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  ++failures;
}
#define CHECK(...) check((__VA_ARGS__), #__VA_ARGS__)

template <class D>
static void exchange(D device, const std::string& name, const std::string& path) {
  std::vector<float> values, expected;
  for (int i = 0; i < 6; ++i) values.push_back(static_cast<float>(i)), expected.push_back(std::tanh(2.0f * static_cast<float>(i) + 1));
  const auto close = [](const std::vector<float>& a, const std::vector<float>& b) {
    bool result = a.size() == b.size();
    for (std::size_t i = 0; result && i < a.size(); ++i) result = std::fabs(a[i] - b[i]) < 1e-6f;
    return result;
  };
  const long before = memory_seen_by_host(device);
  {
    const Matrix<D> x = sent_by_host(values, 2, device), p = sent_through_pinned_memory(values, 2, device);
    CHECK(fetched_by_host(x) == values);
    CHECK(fetched_by_host(p) == values);
    CHECK(fetched_by_host(x.t()) == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(fetched_by_host(x.slice(1, 0, 3, 2)) == std::vector<float>{0, 2, 3, 5});
    CHECK(printed_by_host(x) == "tensor([[0., 1., 2.],\n        [3., 4., 5.]], device='" + name + "')");
    CHECK(saved_by_host(x, path) == values);
    const Matrix<D> y = computed_by_nvcc(x), m = made_by_nvcc(2, 3, device);
    CHECK(close(fetched_by_host(y), expected));
    CHECK(close(fetched_by_host(computed_on_another_stream(x)), expected));
    CHECK(close(fetched_by_host(computed_by_nvcc(p)), expected));
    CHECK(fetched_by_host(m) == values);
    CHECK(saved_by_host(m.t(), path) == std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(memory_seen_by_host(device) > before);
    CHECK(memory_seen_by_nvcc(device) == memory_seen_by_host(device));
    CHECK(stream_seen_by_nvcc(device) == stream_seen_by_host(device));
  }
  CHECK(memory_seen_by_nvcc(device) == before);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (std::strcmp(argv[1], "emulated") == 0) {
    exchange(situ::Emulated<0>{}, "emulated:0", argv[2]);
  } else {
    try {
      exchange(situ::Cuda<0>{}, "cuda:0", argv[2]);
    } catch (const situ::DeviceUnavailable& error) {
      CHECK(std::strncmp(error.what(), "cuda:0: ", 8) == 0);
      if (failures == 0) return std::printf("skipped: %s\n", error.what()), 77;
    }
  }
  return failures != 0;
}
