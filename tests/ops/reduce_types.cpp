#include <ops/reduce_checks.hpp>

using namespace situ;
using namespace situ_test;

TEST_CASE_TEMPLATE("many short rows, which are taken side by side, reduce as plain loops do", T, float, double, float16, int8_t) {
  for_each_instruction_set([] {
    for (int64_t length : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33}) check_every_subset(scattered<T>({70, length}));
    check_every_subset(scattered<T>({70, 3}).t().contiguous().t());
    check_every_subset(scattered<T>({65, 2, 3}));
  });
}

TEST_CASE_TEMPLATE("every element type reduces as plain loops do", T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{1}, Shape{130}, Shape{6, 35}, Shape{3, 4, 19}}) {
      for_each_layout(scattered<T>(shape), [](auto const& x) { check_every_subset(x); });
    }
  });
}
