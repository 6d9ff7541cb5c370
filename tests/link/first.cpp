#include "compute.hpp"

std::vector<float> by_first(const std::vector<float>& x) { return compute(x); }

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
