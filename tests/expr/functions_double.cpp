#include <expr/functions.hpp>

using namespace situ;

TEST_CASE_TEMPLATE("exponential functions of double agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_exponential_functions<double, D>();
}

TEST_CASE_TEMPLATE("trigonometric functions of double agree with mpmath on every instruction set", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_trigonometric_functions<double, D>();
}

TEST_CASE_TEMPLATE("rounding, roots and signs of double agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_simple_functions<double, D>();
}

TEST_CASE_TEMPLATE("functions of two doubles agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_functions_of_two_operands<double, D>();
}

TEST_CASE_TEMPLATE("comparisons, logic and where of double agree with NumPy", D, SITU_TEST_KERNEL_DEVICES) {
  situ_test::check_comparisons<double, D>();
}
