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

TEST_CASE_TEMPLATE("many rows of a few columns, some of which make one, reduce as plain loops do", T, float, double, float16, int8_t) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{64, 1}, Shape{130, 5}, Shape{65, 63}, Shape{256, 3}, Shape{1029, 9}, Shape{3, 301, 2}}) check_every_subset(scattered<T>(shape));
  });
}

TEST_CASE_TEMPLATE("kept axes in any order of memory reduce as plain loops do", T, float, int8_t) {
  for_each_instruction_set([] {
    for (Shape const& order : {Shape{0, 2, 1}, Shape{1, 0, 2}, Shape{1, 2, 0}, Shape{2, 0, 1}, Shape{2, 1, 0}}) {
      check_every_subset(scattered<T>({9, 12, 70}).permute(order));
      check_every_subset(scattered<T>({70, 9, 4}).permute(order));
      check_every_subset(scattered<T>({3, 66, 3}).permute(order));
    }
    check_every_subset(scattered<T>({2, 65, 3, 3}).permute({1, 3, 0, 2}));
    check_every_subset(scattered<T>({8, 9, 2, 14}).permute({3, 0, 2, 1}));
  });
}

TEST_CASE_TEMPLATE("every element type reduces as plain loops do", T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{1}, Shape{130}, Shape{6, 35}, Shape{3, 4, 19}}) {
      for_each_layout(scattered<T>(shape), [](auto const& x) { check_every_subset(x); });
    }
  });
}
