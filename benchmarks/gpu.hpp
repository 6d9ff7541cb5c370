/// What the benchmarks on a GPU share: inputs made on the device, timing by events beside a reference, and a line of JSON for
/// each row, which `benchmarks/run_gpu` gathers.
///
/// A row and its reference are timed in turns, a batch of each in every round; a time is the median over the rounds, a ratio the
/// median of the rounds' ratios. Where the claim is about memory, the reference is a copy within the device that moves as many
/// bytes (half of them read, half written), on arrays that are many times larger than the caches.
#pragma once

#include <situ/tensor.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace bench {

using namespace situ;
using Gpu = Cuda<0>;

inline int failures = 0;

inline void check(cudaError_t error, char const* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECKED(call) bench::check(call, #call)

/// The stream that situ's work of this thread goes to.
inline cudaStream_t stream() { return detail::cuda::current_stream(0); }

// ---- timing ---------------------------------------------------------------------------------------------------------

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Microseconds of the GPU for one of `batch` calls.
template <class F>
double gpu_time(F& f, int batch) {
  static cudaEvent_t const start = [] { cudaEvent_t e; CHECKED(cudaEventCreate(&e)); return e; }();
  static cudaEvent_t const stop = [] { cudaEvent_t e; CHECKED(cudaEventCreate(&e)); return e; }();
  CHECKED(cudaEventRecord(start, stream()));
  for (int k = 0; k < batch; ++k) f();
  CHECKED(cudaEventRecord(stop, stream()));
  CHECKED(cudaEventSynchronize(stop));
  float milliseconds = 0;
  CHECKED(cudaEventElapsedTime(&milliseconds, start, stop));
  return static_cast<double>(milliseconds) * 1e3 / batch;
}

/// Microseconds of the host for one of `batch` calls, the device waited for only before and after them.
template <class F>
double host_time(F& f, int batch) {
  CHECKED(cudaDeviceSynchronize());
  auto const start = std::chrono::steady_clock::now();
  for (int k = 0; k < batch; ++k) f();
  double const time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / batch;
  CHECKED(cudaDeviceSynchronize());
  return time;
}

/// Microseconds of the clock for one of `batch` calls and all that they started.
template <class F>
double wall_time(F& f, int batch) {
  CHECKED(cudaDeviceSynchronize());
  auto const start = std::chrono::steady_clock::now();
  for (int k = 0; k < batch; ++k) f();
  CHECKED(cudaDeviceSynchronize());
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / batch;
}

struct Result {
  double ours = 0, reference = 0, ratio = 0;  ///< ratio: reference / ours
};

/// Both in turns; `timer` is one of the three above.
template <class Timer, class Ours, class Reference>
Result in_turns(Timer timer, int rounds, int batch, Ours ours, Reference reference) {
  std::vector<double> a, b, ratios;
  for (int k = 0; k < 3; ++k) ours(), reference();
  for (int k = 0; k < rounds; ++k) {
    a.push_back(timer(ours, batch));
    b.push_back(timer(reference, batch));
    ratios.push_back(b.back() / a.back());
  }
  return {median(a), median(b), median(ratios)};
}

template <class Ours, class Reference>
Result on_gpu(Ours ours, Reference reference) {
  for (int k = 0; k < 3; ++k) ours(), reference();
  double const one = gpu_time(ours, 1);
  int const batch = one > 2000 ? 1 : one < 10 ? 200 : static_cast<int>(2000 / one) + 1;
  return in_turns([](auto& f, int n) { return gpu_time(f, n); }, 11, batch, ours, reference);
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// What a row claims: a ratio to its reference of at least `target`, or at most `target` microseconds.
enum class Claim { none, ratio, microseconds };

inline void row(std::string const& key, std::string const& name, Result const& r, char const* reference, Claim claim = Claim::none, double target = 0,
                double bytes = 0, double operations = 0) {
  std::printf("{\"key\": \"%s\", \"name\": \"%s\", \"situ_us\": %.4f, \"reference\": \"%s\", \"reference_us\": %.4f, \"ratio\": %.4f", key.c_str(), name.c_str(),
              r.ours, reference, r.reference, r.ratio);
  if (bytes > 0) std::printf(", \"gb_per_s\": %.1f", bytes / r.ours * 1e-3);
  if (operations > 0) std::printf(", \"tflop_per_s\": %.2f", operations / r.ours * 1e-6);
  if (claim != Claim::none) {
    bool const met = claim == Claim::ratio ? r.ratio >= target : r.ours <= target;
    std::printf(", \"target\": %g, \"claim\": \"%s\", \"met\": %s", target, claim == Claim::ratio ? "ratio" : "us", met ? "true" : "false");
  }
  std::printf("}\n");
  std::fflush(stdout);
}

inline void expect(std::string const& key, double found, double wanted, double tolerance) {
  if (std::abs(found - wanted) <= tolerance * (1 + std::abs(wanted))) return;
  std::printf("{\"key\": \"%s\", \"error\": \"%.9g instead of %.9g\"}\n", key.c_str(), found, wanted);
  ++failures;
}

/// A copy within the device that moves `bytes` in all.
class Copy {
 public:
  explicit Copy(double bytes) : half_(static_cast<std::size_t>(bytes / 2)) {
    if (half_ <= capacity_) return;
    if (capacity_) CHECKED(cudaFree(from_)), CHECKED(cudaFree(to_));
    CHECKED(cudaMalloc(&from_, half_));
    CHECKED(cudaMalloc(&to_, half_));
    CHECKED(cudaMemset(from_, 0x3c, half_));
    capacity_ = half_;
  }
  void operator()() const { CHECKED(cudaMemcpyAsync(to_, from_, half_, cudaMemcpyDeviceToDevice, stream())); }

 private:
  std::size_t half_;
  inline static std::size_t capacity_ = 0;
  inline static void *from_ = nullptr, *to_ = nullptr;
};

/// A row that is bound by memory: `f` has to move `bytes`.
template <class F>
void memory_row(std::string const& key, std::string const& name, double target, double bytes, F f) {
  row(key, name, on_gpu(f, Copy(bytes)), "copy of as many bytes", target > 0 ? Claim::ratio : Claim::none, target, bytes);
}

// ---- inputs ---------------------------------------------------------------------------------------------------------

/// Element i of input `seed`: uniform in [-3, 3), the same on the host and the device.
SITU_HOST_DEVICE inline float value(std::int64_t i, unsigned seed) {
  auto h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + static_cast<std::uint32_t>(i >> 32) * 0xC2B2AE35u + seed * 0x85EBCA6Bu + 1u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  h ^= h >> 16;
  return std::fma(6.0f, static_cast<float>(h >> 8) * 0x1p-24f, -3.0f);
}

static __global__ void fill_kernel(float* out, std::int64_t n, unsigned seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    out[i] = value(i, seed);
  }
}

template <class T = float>
Tensor<T, Gpu> input(Shape const& shape, unsigned seed) {
  auto result = empty<float>(shape, Gpu{});
  fill_kernel<<<1024, 256, 0, stream()>>>(result.data(), result.size(), seed);
  CHECKED(cudaGetLastError());
  if constexpr (std::is_same_v<T, float>) return result;
  else return cast<T>(result);
}

template <class T>
inline constexpr char const* type_name = std::is_same_v<T, float> ? "f32" : std::is_same_v<T, double> ? "f64" : std::is_same_v<T, float16> ? "f16" : "bf16";

/// As many elements as fill a gibibyte in float, less on a small GPU; the power of two.
inline int large() {
  auto const gib = gpu::memory_info(0).total >> 30;
  return gib >= 24 ? 28 : gib >= 10 ? 27 : 26;
}

/// Without a GPU the programs say so and return 77, as tests do.
inline int run(void (*rows)()) {
  if (!gpu::is_available()) {
    std::printf("no GPU was found: nothing is measured\n");
    return 77;
  }
  rows();
  return failures == 0 ? 0 : 1;
}

}  // namespace bench
