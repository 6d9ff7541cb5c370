/// explain: a fused kernel in words.
#pragma once

#include <string>
#include <vector>

#include <situ/expr/formula.hpp>
#include <situ/expr/lower.hpp>
#if defined(__CUDACC__)
#include <situ/expr/cuda/launch.hpp>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

/// What explain collects: the inputs in the order of their first appearance, each with a letter.
struct Explanation {
  struct Entry {
    void const* data;
    std::string text;
    int64_t bytes;
    Layout layout;
  };
  Entry entries[64];
  int count = 0;
  int64_t reads = 0;

  template <class T, class D>
  std::string input(Tensor<T, D> const& x, Shape const& shape) {
    for (int k = 0; k < count; ++k) {
      if (entries[k].data == x.data() && entries[k].layout.shape == x.shape() && entries[k].layout.strides == x.strides()) return input_letter(k);
    }
    if (count == 64) return "x";
    int64_t distinct = 1;  // elements that a broadcast input really has
    for (int k = 0; k < x.rank(); ++k) distinct *= x.strides()[k] == 0 && x.shape()[k] > 0 ? 1 : x.shape()[k];
    int64_t const bytes = distinct * static_cast<int64_t>(sizeof(T));
    char const* const how = !(x.shape() == shape) ? ", broadcast" : x.is_contiguous() ? "" : x.layout().is_broadcast() ? ", broadcast" : ", strided";
    entries[count] = {x.data(), text(input_letter(count), ": ", dtype_name<T>(), " ", x.shape(), " on ", device_traits<D>::name(), how, ", ", bytes, bytes == 1 ? " byte" : " bytes"),
                      bytes, x.layout()};
    reads += bytes;
    return input_letter(count++);
  }
};

template <class T>
std::string number_text(T value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<T>) {
    char buffer[32];
    __builtin_snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
    return buffer;
  } else return std::to_string(value);
}

/// The inputs and constants of an expression in words, from left to right.
struct ExplainedLeaves {
  Explanation& seen;
  Shape const& shape;
  std::vector<std::string> inputs, constants;

  template <class T, class D>
  void add(Tensor<T, D> const& x) {
    inputs.push_back(seen.input(x, shape));
  }
  template <class T>
  void add(Constant<T> const& c) {
    constants.push_back(number_text(c.value));
  }
  template <class Op, class... Es>
  void add(Map<Op, Es...> const& map) {
    add(map.operands);
  }
  void add(Fields<> const&) {}
  template <class E, class... Es>
  void add(Fields<E, Es...> const& operands) {
    add(operands.head);
    add(operands.tail);
  }
};

inline namespace SITU_ABI_COMPILER {

/// What the device's compiler made of a kernel; nothing to say of the CPU's.
template <class D, class P>
std::string kernel_facts([[maybe_unused]] bool contiguous) {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    return "";
  } else {
#if defined(__CUDACC__)
    int constexpr device = device_traits<D>::ordinal;
    if (device >= cuda::device_count()) return "  kernel: its registers are known where there is a GPU\n";
    cuda::DeviceGuard const guard(device);
    void const* const kernel = contiguous ? reinterpret_cast<void const*>(&cuda::contiguous_kernel<P>) : reinterpret_cast<void const*>(&cuda::strided_kernel<P>);
    cudaFuncAttributes attributes{};
    int blocks = 0, threads = 0;
    cuda::check(device, cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
    cuda::check(device, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, cuda::block_threads, 0), "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    cuda::check(device, cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device), "cudaDeviceGetAttribute");
    return text("  kernel: ", contiguous ? "contiguous, " : "strided, ", attributes.numRegs, " registers, ", attributes.localSizeBytes, " bytes of local memory, ",
                attributes.sharedSizeBytes, " bytes of shared memory; ", blocks * cuda::block_threads, " of ", threads, " threads at a time on a multiprocessor\n");
#else
    return "  kernel: its registers are known to files that nvcc compiles\n";
#endif
  }
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail

inline namespace SITU_ABI_COMPILER {

/// The kernel that an expression becomes: its formula, its inputs, the bytes that it moves and the operations per element.
///
///     one kernel for 1000 elements on cpu: out = (a * b) + 2
///       a: float32 [1000] on cpu, 4000 bytes
///       b: float32 [1000] on cpu, 4000 bytes
///       out: float32 [1000] on cpu, 4000 bytes
///       moves 12000 bytes, 2 operations per element
///
/// On a GPU, in a file that nvcc compiles, also the registers and the memory that the kernel takes.
template <class E>
  requires expression<E>
std::string explain(E const& e) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  detail::Explanation seen;
  detail::ExplainedLeaves leaves{seen, e.shape(), {}, {}};
  leaves.add(e);
  std::string formula;
  detail::FormulaTexts texts{leaves.inputs.data(), leaves.constants.data()};
  detail::append_formula(formula, detail::formula_of<detail::tree_of<E>>, false, &texts);
  bool contiguous = detail::is_uniform(e);
  detail::for_each_leaf(e, [&](auto const& leaf) { contiguous = contiguous && leaf.is_contiguous(); });
  std::string const where = device_traits<D>::name();
  int64_t const written = e.size() * static_cast<int64_t>(sizeof(T));
  int constexpr operations = detail::operation_count<detail::tree_of<E>>;
  std::string result = detail::text("one kernel for ", e.size(), e.size() == 1 ? " element" : " elements", " on ", where, ": out = ", formula, "\n");
  for (int k = 0; k < seen.count; ++k) result += "  " + seen.entries[k].text + "\n";
  return result + detail::text("  out: ", dtype_name<T>(), " ", e.shape(), " on ", where, ", ", written, written == 1 ? " byte" : " bytes", "\n  moves ",
                               seen.reads + written, " bytes, ", operations, operations == 1 ? " operation" : " operations", " per element\n") +
         detail::kernel_facts<D, detail::Program<detail::tree_of<E>, T, detail::leaf_count<E>>>(contiguous);
}

}  // namespace SITU_ABI_COMPILER

}  // namespace situ::inline SITU_ABI
