/// One function body compiled for every instruction set, chosen at run time, so that a plain -O2 build is fast.
#pragma once

#include <situ/device/cpu/launch.hpp>
#include <situ/expr/pack.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Four passes of the loop that follows become one. (nvcc would warn of what it does not know; its host compiler then does without.)
#if defined(__CUDACC__)
#define SITU_UNROLL
#elif defined(__clang__)
#define SITU_UNROLL _Pragma("clang loop unroll_count(4)")
#else
#define SITU_UNROLL _Pragma("GCC unroll 4")
#endif

/// The short loop that follows begins on a line of code. Across two lines each pass takes half a cycle longer, by chance of what stands before it.
#if SITU_X86
#define SITU_ALIGN_LOOP __asm__ volatile(".p2align 6")
#else
#define SITU_ALIGN_LOOP
#endif

// Programs that test rules and not kernels define SITU_TEST_BASELINE_ONLY, in all of their files: they compile in half of the time.
#if SITU_X86 && !defined(SITU_TEST_BASELINE_ONLY)
#if defined(__clang__)
#define SITU_TARGET_AVX512 target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)
#else
#define SITU_TARGET_AVX512 target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
template <class Body, class... Args>
__attribute__((SITU_TARGET_AVX512, noinline)) auto run_avx512(Args... args) {
  return Body::template run<isa::avx512>(args...);
}
template <class Body, class... Args>
__attribute__((target("avx2,fma"), noinline)) auto run_avx2(Args... args) {
  return Body::template run<isa::avx2>(args...);
}
#undef SITU_TARGET_AVX512
#define SITU_BASELINE noinline, cold  // few processors are left that run it: it need not cost what the others do to compile
#else
#define SITU_BASELINE noinline
#endif
template <class Body, class... Args>
__attribute__((SITU_BASELINE)) auto run_baseline(Args... args) {
  return Body::template run<isa::baseline>(args...);
}
#undef SITU_BASELINE

struct not_run {
  template <class T>
  operator T() const {
    return T();
  }
};

/// Body::run<Isa>(args...) for the instruction set in force. `run` is SITU_INLINE; arguments are scalars and pointers.
template <class Body, class... Args>
SITU_INLINE auto dispatch([[maybe_unused]] Args... args) {
#if defined(__CUDA_ARCH__)
  return not_run{};  // nvcc's pass for the device: no host code comes out of it, and functions for both sides may hold no vectors there
#else
#if SITU_X86 && !defined(SITU_TEST_BASELINE_ONLY)
  instruction_set const set = current_instruction_set();
  if (SITU_LIKELY(set == instruction_set::avx512)) return run_avx512<Body>(args...);
  if (set == instruction_set::avx2) return run_avx2<Body>(args...);
#endif
  return run_baseline<Body>(args...);
#endif
}

/// Body::run for each instruction set, where it is called by those that do not know the body.
template <class R, class... Args>
struct Variants {
  R (*of[3])(Args...);
  SITU_INLINE R operator()(Args... args) const { return of[static_cast<int>(current_instruction_set())](args...); }
};
template <class Body, class R, class... Args>
#if defined(__CUDA_ARCH__)
inline constexpr Variants<R, Args...> variants_of{};
#elif SITU_X86 && !defined(SITU_TEST_BASELINE_ONLY)
inline constexpr Variants<R, Args...> variants_of{{&run_baseline<Body, Args...>, &run_avx2<Body, Args...>, &run_avx512<Body, Args...>}};
#else
inline constexpr Variants<R, Args...> variants_of{{&run_baseline<Body, Args...>, &run_baseline<Body, Args...>, &run_baseline<Body, Args...>}};
#endif

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
