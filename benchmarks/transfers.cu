/// Transfers between the host and a GPU, beside the calls of CUDA that move as many bytes; and copies that run beside kernels.
#include "gpu.hpp"

#include <situ/device/stream.hpp>

#include <cstring>

namespace {

using namespace bench;

auto const of_clock = [](auto& f, int batch) { return wall_time(f, batch); };

void rows() {
  std::int64_t const n = std::int64_t{1} << 26;
  std::size_t const bytes = static_cast<std::size_t>(n) * sizeof(float);
  double const moved = static_cast<double>(bytes);
  Tensor<float> const host = full<float>({n}, 1.5f);
  Tensor<float, Pinned> const pinned = pin(host);
  Tensor<float, Gpu> const device = input({n}, 0);
  void *raw = nullptr, *raw_pinned = nullptr, *raw_host = std::malloc(bytes);
  CHECKED(cudaMalloc(&raw, bytes));
  CHECKED(cudaHostAlloc(&raw_pinned, bytes, cudaHostAllocDefault));
  std::memset(raw_host, 1, bytes);

  // The host's memory for a result is fresh each time, as it is for the peers; that of the raw calls is not.
  row("pageable_to_gpu/f32/2^26", "pageable host memory to a GPU, f32, 2^26",
      in_turns(of_clock, 7, 1, [&] { Tensor<float, Gpu> const x = host.to(Gpu{}); }, [&] { CHECKED(cudaMemcpy(raw, host.data(), bytes, cudaMemcpyHostToDevice)); }), "cudaMemcpy",
      Claim::none, 0, moved);
  row("pageable_from_gpu/f32/2^26", "a GPU to pageable host memory, f32, 2^26",
      in_turns(of_clock, 7, 1, [&] { Tensor<float> const x = device.cpu(); }, [&] { CHECKED(cudaMemcpy(raw_host, device.data(), bytes, cudaMemcpyDeviceToHost)); }), "cudaMemcpy",
      Claim::none, 0, moved);
  Tensor<float, Gpu> arrived;
  row("pinned_to_gpu/f32/2^26", "pinned host memory to a GPU, f32, 2^26",
      in_turns(of_clock, 11, 2, [&] { arrived = pinned.to_async(Gpu{}); },
               [&] { CHECKED(cudaMemcpyAsync(raw, raw_pinned, bytes, cudaMemcpyHostToDevice, stream())); }),
      "cudaMemcpyAsync", Claim::ratio, 0.95, moved);
  expect("pinned_to_gpu", static_cast<double>(arrived.item(n - 1)), 1.5, 0);
  row("pinned_from_gpu/f32/2^26", "a GPU to pinned host memory, f32, 2^26",
      in_turns(of_clock, 11, 2, [&] { (void)device.to_async(Pinned{}).get(); },
               [&] { CHECKED(cudaMemcpyAsync(raw_pinned, device.data(), bytes, cudaMemcpyDeviceToHost, stream())); }),
      "cudaMemcpyAsync", Claim::ratio, 0.95, moved);
  expect("pinned_from_gpu", static_cast<double>(device.to_async(Pinned{}).get()(7)), static_cast<double>(value(7, 0)), 0);

  // Chunks cross on two streams in turns, and as much time is computed with each as it takes to cross.
  constexpr int chunks = 32;
  std::int64_t const part = std::int64_t{1} << 22;
  std::vector<Tensor<float, Pinned>> sources;
  std::vector<Tensor<float, Gpu>> there;
  for (int k = 0; k < chunks; ++k) {
    sources.push_back(pin(full<float>({part}, 0.01f * static_cast<float>(k))));
    there.push_back(sources.back().to_async(Gpu{}));
  }
  Stream<Gpu> const streams[2];
  auto const compute = [](Tensor<float, Gpu> x, int times) {
    for (int r = 0; r < times; ++r) x = tanh(x * 1.01f + 0.1f);
    return x;
  };
  Tensor<float, Gpu> last;
  auto copy_all = [&] {
    for (auto const& source : sources) last = source.to_async(Gpu{});
  };
  auto compute_all = [&, times = 10]() mutable {
    for (auto const& x : there) last = compute(x, times);
  };
  copy_all(), compute_all();
  double const copying = wall_time(copy_all, 3), computing_10 = wall_time(compute_all, 3);
  int const times = std::max(1, static_cast<int>(10 * copying / computing_10 + 0.5));
  auto compute_as_long = [&] {
    for (auto const& x : there) last = compute(x, times);
  };
  auto side_by_side = [&] {
    for (int k = 0; k < chunks; ++k) {
      StreamGuard const guard{streams[k % 2]};
      last = compute(sources[static_cast<std::size_t>(k)].to_async(Gpu{}), times);
    }
  };
  compute_as_long(), side_by_side();
  std::vector<double> ideal, together, ratios;
  for (int k = 0; k < 7; ++k) {
    ideal.push_back(std::max(wall_time(copy_all, 1), wall_time(compute_as_long, 1)));
    together.push_back(wall_time(side_by_side, 1));
    ratios.push_back(ideal.back() / together.back());
  }
  row("overlap/f32/32x2^22", "32 chunks copied and computed on two streams", {median(together), median(ideal), median(ratios)}, "the longer of both alone", Claim::ratio, 0.90);
  double wanted = static_cast<double>(0.01f * 31);
  for (int r = 0; r < times; ++r) wanted = std::tanh(wanted * static_cast<double>(1.01f) + static_cast<double>(0.1f));
  expect("overlap", static_cast<double>(last.item(5)), wanted, 1e-4);

  std::free(raw_host);
  CHECKED(cudaFreeHost(raw_pinned));
  CHECKED(cudaFree(raw));
}

}  // namespace

int main() { return bench::run(rows); }
