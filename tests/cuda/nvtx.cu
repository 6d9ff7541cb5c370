// Ranges of NVTX, seen by a tool: this program brings along what Nsight would load.
#define SITU_NVTX

#include <situ/tensor.hpp>

#include <situ/device/profile.hpp>

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace situ;

namespace {

std::vector<std::string> ranges;
int depth = 0;

int push(char const* name) {
  ranges.push_back(std::string(static_cast<std::size_t>(depth), ' ') + name);
  return depth++;
}
int pop() { return --depth; }

int attach(NvtxGetExportTableFunc_t table) {
  auto const* const callbacks = static_cast<NvtxExportTableCallbacks const*>(table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size) || size <= NVTX_CBID_CORE_RangePop) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&pop);
  return 1;
}

template <class D>
void check_ranges() {
  Tensor<float, D> const a = ones({1000}, D{}), b = ones({1000}, D{});
  ranges.clear();
  {
    ProfileRange const range("step");
    Tensor<float, D> const y = tanh(a * b + 2);
  }
  CHECK(ranges == std::vector<std::string>{"step", " tanh((a * b) + number)"});
  CHECK(depth == 0);
}

[[maybe_unused]] bool const attached = [] {  // before the first range
  InitializeInjectionNvtx2_fnptr = &attach;
  return true;
}();

}  // namespace

TEST_SUITE("without a gpu") {
  TEST_CASE("launches on the host are ranges named after their formulas, inside those of the program") { check_ranges<Cpu>(); }
  TEST_CASE("a launch that fails ends its range") {
    ranges.clear();
    CHECK_THROWS_AS(ones({4}, Cuda<0>{}), DeviceUnavailable);
    CHECK(depth == 0);
  }
}

TEST_CASE("launches on a GPU are ranges named after their formulas") { check_ranges<Cuda<0>>(); }
