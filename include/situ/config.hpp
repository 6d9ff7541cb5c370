/// Version, feature macros and the few macros that every header uses.
#pragma once

#define SITU_VERSION_MAJOR 0
#define SITU_VERSION_MINOR 1
#define SITU_VERSION_PATCH 0

/// The inline namespace that carries the version: libraries that embed different versions link side by side.
#define SITU_JOINED_VERSION(major, minor, patch) v##major##_##minor##_##patch
#define SITU_ABI_OF(major, minor, patch) SITU_JOINED_VERSION(major, minor, patch)
#ifndef SITU_ABI
#define SITU_ABI SITU_ABI_OF(SITU_VERSION_MAJOR, SITU_VERSION_MINOR, SITU_VERSION_PATCH)
#endif

#if !defined(__GNUC__) && !defined(__clang__)
#error "situ needs g++, clang++ or nvcc with one of them as its host compiler"
#elif __cplusplus < 202002L
#error "situ needs C++20: pass -std=c++20"
#elif !defined(__clang__) && __GNUC__ < 12
#error "situ needs g++ 12 or later"
#elif defined(__SIZEOF_POINTER__) && __SIZEOF_POINTER__ != 8
#error "situ needs pointers of 64 bits: leave out -m32"
#elif !defined(__CUDACC__) && !defined(__cpp_exceptions)
#error "situ needs exceptions: leave out -fno-exceptions"
#else
#define SITU_CAN_BE_COMPILED
#endif
#ifndef SITU_CAN_BE_COMPILED
#include <what_situ_needs>  // there is none: the compilation ends here, with the message above and no others
#endif
#undef SITU_CAN_BE_COMPILED

/// SITU_WITH_CUDA: `Cuda<N>` tensors can be made. Set by nvcc, and by the CMake target situ::cuda for host files.
#if defined(__CUDACC__) && !defined(SITU_WITH_CUDA)
#define SITU_WITH_CUDA 1
#endif

/// Functions whose body depends on how a file is compiled stand in one of these inline namespaces, so that files
/// compiled in different ways link into one program. Data types never do.
#if defined(SITU_WITH_CUDA)
#define SITU_ABI_CUDA with_cuda
#else
#define SITU_ABI_CUDA without_cuda
#endif
#if defined(_OPENMP)
#define SITU_ABI_THREADS with_openmp
#else
#define SITU_ABI_THREADS without_openmp
#endif
#if defined(SITU_WITH_BLAS)
#define SITU_ABI_BLAS with_blas
#else
#define SITU_ABI_BLAS without_blas
#endif
#if defined(SITU_WITH_LAPACK)
#define SITU_ABI_LAPACK with_lapack
#else
#define SITU_ABI_LAPACK without_lapack
#endif
#if defined(SITU_WITH_CUDNN)
#define SITU_ABI_CUDNN with_cudnn
#else
#define SITU_ABI_CUDNN without_cudnn
#endif
#if defined(SITU_WITH_MPI)
#define SITU_ABI_MPI with_mpi
#else
#define SITU_ABI_MPI without_mpi
#endif
#if defined(__CUDACC__)
#define SITU_ABI_COMPILER by_nvcc
#else
#define SITU_ABI_COMPILER by_host_compiler
#endif

#if defined(__CUDACC__)
#define SITU_HOST_DEVICE __host__ __device__
#define SITU_DEVICE __device__
#else
#define SITU_HOST_DEVICE
#define SITU_DEVICE
#endif

/// Vector code is inlined into the kernel of each instruction set, also at -O0: no pack ever crosses a call. (Tests of rules, which have one
/// instruction set and are not optimised, have a function once instead.)
#if defined(SITU_TEST_BASELINE_ONLY) && !defined(__OPTIMIZE__)
#define SITU_INLINE inline
#else
#define SITU_INLINE __attribute__((always_inline)) inline
#endif
#define SITU_NOINLINE __attribute__((noinline))
#define SITU_LIKELY(x) __builtin_expect(!!(x), 1)
#define SITU_UNLIKELY(x) __builtin_expect(!!(x), 0)

/// A function of the C library by its name, without <cmath>, which costs more to include than all of situ's mathematics.
/// nvcc has the functions declared, with a version for each side.
#if defined(__CUDACC__)
#define SITU_LIBM(NAME) ::NAME
#else
#define SITU_LIBM(NAME) __builtin_##NAME
#endif

/// State that must be one per process is exported, also from libraries built with hidden visibility.
#define SITU_PROCESS_STATE __attribute__((visibility("default"))) inline

#if defined(__x86_64__) || defined(__i386__)
#define SITU_X86 1
#else
#define SITU_X86 0
#endif

/// True in an AddressSanitizer build: nothing is then recycled, so that a use after free is seen.
#if defined(__SANITIZE_ADDRESS__)
#define SITU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SITU_ASAN 1
#endif
#endif
#ifndef SITU_ASAN
#define SITU_ASAN 0
#endif
