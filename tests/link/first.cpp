#include "compute.hpp"

#include <situ/ops/reduce.hpp>

std::vector<float> by_first(const std::vector<float>& x) { return compute(x); }

// Fast math may compute a quotient in another way each time: a place must be found all the same.
int places_by_first() {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.5f + static_cast<float>(i * 7919 % 1000) / 1000.0f;
  int wrong = 0;
  for (const std::size_t n : {64u, 100u, 1000u}) {
    const std::vector<float> part(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(n));
    const situ::Tensor<float> x{std::span<const float>(part), {n}};
    std::int64_t largest = 0, smallest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (part[i] > part[static_cast<std::size_t>(largest)]) largest = static_cast<std::int64_t>(i);
      if (part[i] < part[static_cast<std::size_t>(smallest)]) smallest = static_cast<std::int64_t>(i);
    }
    for (int j = 0; j < 50; ++j) {
      const float divisor = 1.1f + 0.01f * static_cast<float>(j);
      wrong += argmax(x / divisor).item() != largest;
      wrong += argmin(x / divisor).item() != smallest;
    }
  }
  return wrong;
}

#ifndef SITU_LINK_TWO_VERSIONS
situ::Tensor<double> made_by_second();

int crossing_by_first() {
  situ::Tensor<double> t = made_by_second();
  const situ::Tensor<double> u = t * 2.0;
  const situ::Tensor<double> shared = t;
  const bool same = t.use_count() == 2 && t.rank() == 2 && t.size() == 6;
  return same && u.to_vector() == std::vector<double>{2, 4, 6, 8, 10, 12} ? 0 : 1;
}
#else
int crossing_by_first() { return 0; }
#endif
