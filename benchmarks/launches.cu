/// What a small operation costs on a GPU: the host's time for a fused formula with its allocation, chains of small operations, and
/// the replay of a graph. Beside the same calls of CUDA, written by hand.
#include "gpu.hpp"

#include <situ/device/graph.hpp>
#include <situ/ops/reduce.hpp>

namespace {

using namespace bench;

__global__ void multiply_add(float* y, float const* a, float const* b, float const* c, int n) {
  int const i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) y[i] = a[i] * b[i] + c[i];
}

auto const of_host = [](auto& f, int batch) { return host_time(f, batch); };
auto const of_clock = [](auto& f, int batch) { return wall_time(f, batch); };

void rows() {
  int const n = 1024;
  Tensor<float, Gpu> const a = input({n}, 0), b = input({n}, 1), c = input({n}, 2), column = input({32, 1}, 3);
  Tensor<float, Gpu> y;
  auto const by_hand = [&] {
    void* memory = nullptr;
    CHECKED(cudaMallocAsync(&memory, n * sizeof(float), stream()));
    multiply_add<<<n / 256, 256, 0, stream()>>>(static_cast<float*>(memory), a.data(), b.data(), c.data(), n);
    CHECKED(cudaGetLastError());
    CHECKED(cudaFreeAsync(memory, stream()));
  };
  row("launch_fresh/f32/1024", "host time of a*b + c with a fresh result, 1024", in_turns(of_host, 21, 300, [&] { Tensor<float, Gpu> const fresh = a * b + c; }, by_hand),
      "cudaMallocAsync, launch, cudaFreeAsync", Claim::microseconds, 4);
  Tensor<float, Gpu> fixed = zeros({n}, Gpu{});
  auto const launch = [&, to = fixed.data()] {
    multiply_add<<<n / 256, 256, 0, stream()>>>(to, a.data(), b.data(), c.data(), n);
    CHECKED(cudaGetLastError());
  };
  row("launch_reused/f32/1024", "host time of y = a*b + c, 1024", in_turns(of_host, 21, 300, [&] { y = a * b + c; }, launch), "launch", Claim::microseconds, 4);
  row("launch_long/f32/1024", "host time of a formula of 12 operations, 1024",
      in_turns(of_host, 21, 300, [&] { y = tanh(a * b + c) * exp(-square(a)) + where(b > 0, a, c) / (abs(b) + 1); }, launch), "launch", Claim::microseconds, 4);
  Tensor<float, Gpu> const A = a.view({32, 32});
  Tensor<float, Gpu> z = A.clone();
  row("launch_strided/f32/32^2", "host time of matrix + column, 32^2", in_turns(of_host, 21, 300, [&] { z = A + column; }, launch), "launch", Claim::microseconds, 4);
  row("launch_sum/f32/1024", "host time of sum, 1024", in_turns(of_host, 21, 300, [&] { y = sum(a); }, by_hand), "cudaMallocAsync, launch, cudaFreeAsync");
  expect("launch_fresh", static_cast<double>(eval(a * b + c).item(7)), static_cast<double>(value(7, 0)) * static_cast<double>(value(7, 1)) + static_cast<double>(value(7, 2)), 1e-5);

  // z = z x elementwise, a thousand times, and the norm.
  Tensor<float, Gpu> const x = input({100, 100}, 4) * 0.0001f + 1.0f;
  Tensor<float, Gpu> power;
  float* const raw = [] { void* m = nullptr; CHECKED(cudaMalloc(&m, 40000)); CHECKED(cudaMemset(m, 0, 40000)); return static_cast<float*>(m); }();
  row("power_1000/f32/100^2", "z = z*x 1000 times, norm, f32, 100^2",
      in_turns(of_clock, 9, 1,
               [&] {
                 power = x.clone();
                 for (int k = 0; k < 1000; ++k) power = power * x;
                 (void)norm(power).item();
               },
               [&] {
                 for (int k = 0; k < 1000; ++k) multiply_add<<<40, 256, 0, stream()>>>(raw, raw, x.data(), x.data(), 10000);
                 CHECKED(cudaGetLastError());
               }),
      "1000 launches");
  double wanted = 0;
  for (std::int64_t i = 0; i < 10000; ++i) {
    double const each = static_cast<double>(static_cast<float>(value(i, 4)) * 0.0001f + 1.0f);
    wanted += std::pow(each, 2002);
  }
  expect("power_1000", static_cast<double>(norm(power).item()), std::sqrt(wanted), 1e-3);

  // A graph of a hundred small formulas, replayed.
  constexpr int nodes = 100;
  Tensor<float, Gpu> w = x.clone();
  gpu::Graph<Gpu> const graph{[&] {
    for (int k = 0; k < nodes; ++k) w.assign(w * x);
  }};
  cudaStream_t side = nullptr;
  cudaGraph_t recorded = nullptr;
  cudaGraphExec_t executable = nullptr;
  CHECKED(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CHECKED(cudaStreamBeginCapture(side, cudaStreamCaptureModeRelaxed));
  for (int k = 0; k < nodes; ++k) multiply_add<<<40, 256, 0, side>>>(raw, raw, x.data(), x.data(), 10000);
  CHECKED(cudaStreamEndCapture(side, &recorded));
  CHECKED(cudaGraphInstantiate(&executable, recorded, 0));
  Result per_kernel = in_turns(of_clock, 15, 20, [&] { graph.replay(); }, [&] { CHECKED(cudaGraphLaunch(executable, stream())); });
  per_kernel.ours /= nodes, per_kernel.reference /= nodes;
  row("graph_replay/f32/100^2", "a kernel of a replayed graph of 100, f32, 100^2", per_kernel, "a graph by hand", Claim::microseconds, 1.5);
  row("graph_host/f32/100^2", "host time of a replay of 100 kernels", in_turns(of_host, 15, 20, [&] { graph.replay(); }, [&] { CHECKED(cudaGraphLaunch(executable, stream())); }),
      "a graph by hand");
}

}  // namespace

int main() { return bench::run(rows); }
