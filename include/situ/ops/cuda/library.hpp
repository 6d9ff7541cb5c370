/// Libraries that are opened when they are first used: programs neither link nor include them. Their functions are found by name, through
/// prototypes written by hand, which the tests compare with the libraries' own.
#pragma once

#include <string>

#include <situ/core/error.hpp>

#if defined(SITU_WITH_CUDA)

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

/// lib<name>.so.<version>, or without a version. Throws CudaError, which ends with the cure.
inline void* open_library(char const* name, int version, char const* cure) {
  for (std::string const& file : {text("lib", name, ".so.", version), text("lib", name, ".so")}) {
    if (void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  char const* const why = ::dlerror();
  fail<CudaError>("cuda: lib", name, ".so.", version, " was not found: ", why ? why : "no reason is known", "; ", cure);
}

/// A library of the CUDA Toolkit, of the runtime's major version. Throws CudaError.
inline void* open_library(char const* name, int version = CUDART_VERSION / 1000) {
  return open_library(name, version, "install it with the CUDA Toolkit, or add its folder to LD_LIBRARY_PATH");
}

/// Throws CudaError.
template <class F>
void find_function(F*& to, void* library, char const* name) {
  to = reinterpret_cast<F*>(::dlsym(library, name));
  if (!to) fail<CudaError>("cuda: ", name, " was not found: the library that was loaded is too old; install the one for CUDA ", CUDART_VERSION / 1000);
}

/// Holds a mutex while it lives.
class MutexLock {
 public:
  explicit MutexLock(pthread_mutex_t& mutex) : mutex_(mutex) { ::pthread_mutex_lock(&mutex_); }
  MutexLock(MutexLock const&) = delete;
  MutexLock& operator=(MutexLock const&) = delete;
  ~MutexLock() { ::pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t& mutex_;
};

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
