// Written by order.py.
#pragma once

#include <cstdint>
#include <vector>

inline std::vector<int64_t> const order_of_9{5, 4, 1, 7, 2, 8, 3, 0, 6};
inline std::vector<int64_t> const order_of_10{5, 4, 1, 7, 2, 8, 9, 0, 6, 3};
inline std::vector<int64_t> const order_of_epoch{12, 2, 3, 6, 13, 18, 11, 9, 15, 16, 14, 1, 17, 7, 8, 4, 10, 5, 0, 19};  // seed 5, epoch 1, 20 samples
