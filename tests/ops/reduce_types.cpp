#include <ops/reduce_checks.hpp>

using namespace situ;
using namespace situ_test;

TEST_CASE_TEMPLATE("every element type reduces as plain loops do", T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{1}, Shape{130}, Shape{6, 35}, Shape{3, 4, 19}}) {
      for_each_layout(scattered<T>(shape), [](auto const& x) { check_every_subset(x); });
    }
  });
}
