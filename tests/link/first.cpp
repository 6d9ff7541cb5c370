#include "compute.hpp"

#include <situ/ops/reduce.hpp>

#include <cmath>

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

// Also where denormal numbers count as 0, as fast math has it.
int inaccurate_by_first() {
  std::vector<float> values;
  for (float x = -87.25f; x < 88.5f; x += 1.0f / 64) values.push_back(x);
  const situ::Tensor<float> x{std::span<const float>(values), {values.size()}};
  const situ::instruction_set best = situ::get_instruction_set();
  int wrong = 0;
  for (int set = 0; set <= static_cast<int>(best); ++set) {
    situ::set_instruction_set(static_cast<situ::instruction_set>(set));
    const std::vector<float> power = situ::Tensor<float>(exp(x)).to_vector(), logarithm = situ::Tensor<float>(log(exp(x * 0.5f))).to_vector();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = std::exp(static_cast<double>(values[i])), half = 0.5 * static_cast<double>(values[i]);
      wrong += !(std::fabs(static_cast<double>(power[i]) - expected) <= 4e-7 * expected);
      wrong += !(std::fabs(static_cast<double>(logarithm[i]) - half) <= 4e-7 * (std::fabs(half) + 1));
    }
  }
  situ::set_instruction_set(best);
  return wrong;
}

// A tensor that a formula reads twice rounds as an equal copy of it does, and parts of rows as the whole.
int unlike_by_first() {
  std::vector<float> values;
  for (int k = 0; k < 4 * 150; ++k) values.push_back(static_cast<float>(k * 7919 % 1000) / 317.0f - 1.5f);
  const situ::Tensor<float> all{std::span<const float>(values), {4, 150}};
  const situ::instruction_set best = situ::get_instruction_set();
  int wrong = 0;
  for (int set = 0; set <= static_cast<int>(best); ++set) {
    situ::set_instruction_set(static_cast<situ::instruction_set>(set));
    for (std::int64_t n = 1; n <= 150; ++n) {
      const auto row = [&](std::int64_t k) { return situ::Tensor<float>(all[k].slice(0, 0, n)).clone(); };
      const situ::Tensor<float> a = row(0), b = row(1), c = row(2), again = a.clone();
      const situ::Tensor<float> twice = a * b + c - 0.5f * a, apart = a * b + c - 0.5f * again;
      wrong += twice.to_vector() != apart.to_vector();
    }
  }
  situ::set_instruction_set(best);
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
