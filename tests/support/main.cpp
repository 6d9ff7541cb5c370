// The entry point of every test program.
//
// Compiled with SITU_TESTS_NEED_GPU for the programs whose tests run kernels of nvcc: without a GPU these run only the
// test suite "without a gpu" (what must happen on such a machine, left out where there is a GPU) and exit with 77, which
// ctest reports as skipped. Other programs run every test case.
// A run that selects no test case at all fails: a filter that matches nothing must not look like success.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#ifdef SITU_TESTS_NEED_GPU
#include <cuda_runtime_api.h>

// Empty when there is a GPU, otherwise why there is none. The version is asked first: without a driver it is 0, while
// every other call returns an error that sticks.
static const char* why_no_gpu() {
  int version = 0, count = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "no CUDA driver";
  if (cudaGetDeviceCount(&count) != cudaSuccess) return "the CUDA driver reports an error";
  return count == 0 ? "no CUDA device" : "";
}
#else
static const char* why_no_gpu() { return ""; }
#endif

static unsigned selected = 0;

struct CountSelected : doctest::IReporter {
  explicit CountSelected(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override { selected = 1; }
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { selected = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
DOCTEST_REGISTER_LISTENER("count_selected", 1, CountSelected);

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const char* const reason = why_no_gpu();
#ifdef SITU_TESTS_NEED_GPU
  context.addFilter(*reason != '\0' ? "test-suite" : "test-suite-exclude", "without a gpu");
#endif

  const int result = context.run();
  if (context.shouldExit() || result != 0) return result;
  if (*reason != '\0') {
    std::printf("skipped: %s; run this test on a machine with a GPU\n", reason);
    return 77;
  }
  if (selected == 0) {
    std::printf("no test case matches these filters\n");
    return 1;
  }
  return 0;
}
