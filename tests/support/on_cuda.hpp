/// Included in front of a test file of the host when nvcc compiles it for a GPU. Each TEST_CASE_TEMPLATE over devices, which calls
/// its parameter D, then runs on Cuda<0>; the other test cases, which the host's programs run, are parsed and left out.
#pragma once

#include <doctest/doctest.h>

#include <situ/device/cuda/device.hpp>

#pragma nv_diag_suppress 177  // what only the others use
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"

#define SITU_LEFT_OUT(NAME, X, ...) \
  template <class X>                \
  [[maybe_unused]] static void DOCTEST_ANONYMOUS(situ_left_out_)()
#define SITU_TEST_CASES_OF_D(NAME, D, ...) DOCTEST_TEST_CASE_TEMPLATE(NAME, D, situ::Cuda<0>)
#define SITU_TEST_CASES_OF_T(...) SITU_LEFT_OUT(__VA_ARGS__)
#define SITU_TEST_CASES_OF_X(...) SITU_LEFT_OUT(__VA_ARGS__)

#undef TEST_CASE
#define TEST_CASE(NAME) SITU_LEFT_OUT(NAME, situ_no_type)
#undef TEST_CASE_TEMPLATE
#define TEST_CASE_TEMPLATE(NAME, PARAMETER, ...) SITU_TEST_CASES_OF_##PARAMETER(NAME, PARAMETER, __VA_ARGS__)
