/// What NumPy says about sorting; written by sort.py, numpy 1.24.2.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace expected_sort {

inline constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

inline const std::vector<float> floats{3.5, nan, -1.25, 0.0, inf, -0.0, 2.0, -inf, nan, 3.5, 9.99994610111476e-41, -9.99994610111476e-41, 0.0, -1.25, 7.0};
inline const std::vector<float> floats_sorted{-inf, -1.25, -1.25, -9.99994610111476e-41, 0.0, -0.0, 0.0, 9.99994610111476e-41, 2.0, 3.5, 3.5, 7.0, inf, nan, nan};
inline const std::vector<std::int64_t> floats_order{7, 2, 13, 11, 3, 5, 12, 10, 6, 0, 9, 14, 4, 1, 8};
inline const std::vector<std::int8_t> integers{5, -128, 3, 127, 5, 0, -1, 3, 3, -128, 12, 5, 0, 127};
inline const std::vector<std::int8_t> integers_sorted{-128, -128, -1, 0, 0, 3, 3, 3, 5, 5, 5, 12, 127, 127};
inline const std::vector<std::int64_t> integers_order{1, 9, 6, 5, 12, 2, 7, 8, 0, 4, 11, 10, 3, 13};
inline const std::vector<std::int64_t> matrix{3, 1, 2, 1, 0, 9, -4, 1, 3, 8, 2, 0};
inline const std::vector<std::int64_t> matrix_sorted_0{0, 1, -4, 0, 3, 8, 2, 1, 3, 9, 2, 1};
inline const std::vector<std::int64_t> matrix_order_0{1, 0, 1, 2, 0, 2, 0, 0, 2, 1, 2, 1};
inline const std::vector<std::int64_t> matrix_sorted_1{1, 1, 2, 3, -4, 0, 1, 9, 0, 2, 3, 8};
inline const std::vector<std::int64_t> matrix_order_1{1, 3, 2, 0, 2, 0, 3, 1, 3, 2, 0, 1};
inline const std::vector<float> floats_unique{-inf, -1.25, -9.99994610111476e-41, 0.0, 9.99994610111476e-41, 2.0, 3.5, 7.0, inf, nan, nan};
inline const std::vector<std::int64_t> floats_unique_counts{1, 2, 1, 3, 1, 1, 2, 1, 1, 1, 1};
inline const std::vector<std::int64_t> matrix_unique{-4, 0, 1, 2, 3, 8, 9};
inline const std::vector<std::int64_t> matrix_unique_indices{6, 4, 1, 2, 0, 9, 5};
inline const std::vector<std::int64_t> matrix_unique_inverse{4, 2, 3, 2, 1, 6, 0, 2, 4, 5, 3, 1};
inline const std::vector<std::int64_t> matrix_unique_counts{1, 2, 3, 2, 2, 1, 1};
inline const std::vector<double> edges{-2.0, 0.0, 0.0, 1.5, 4.0, 4.0, 10.0};
inline const std::vector<double> probes{-3.0, -2.0, -0.0, 0.5, 4.0, 9.99, 10.0, 11.0, inf, -inf, nan};
inline const std::vector<std::int64_t> probes_left{0, 0, 1, 3, 4, 6, 6, 7, 7, 0, 7};
inline const std::vector<std::int64_t> probes_right{0, 1, 3, 3, 6, 6, 7, 7, 7, 0, 7};

}  // namespace expected_sort
