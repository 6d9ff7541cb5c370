/// cuSOLVER, and what linear algebra needs of cuBLAS: found when they are first used, through prototypes written here, so that
/// programs neither link nor include them.
#pragma once

#include <situ/ops/cuda/cublas.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

// The libraries' enumerations, as int.
inline constexpr int fill_lower = 0, fill_upper = 1;        // cublasFillMode_t
inline constexpr int as_it_is = 0, as_its_transpose = 1;    // cublasOperation_t
inline constexpr int values_alone = 0, values_and_vectors = 1;  // cusolverEigMode_t

/// The functions of an element type; tests/cuda/linalg.cu compares them with the libraries' headers.
template <class T>
struct SolverFunctions {
  int (*getrf_size)(void* handle, int m, int n, T* a, int lda, int* size);
  int (*getrf)(void* handle, int m, int n, T* a, int lda, T* work, int* pivots, int* info);
  int (*getrs)(void* handle, int trans, int n, int nrhs, T const* a, int lda, int const* pivots, T* b, int ldb, int* info);
  int (*potrf_size)(void* handle, int uplo, int n, T* a, int lda, int* size);
  int (*potrf)(void* handle, int uplo, int n, T* a, int lda, T* work, int size, int* info);
  int (*geqrf_size)(void* handle, int m, int n, T* a, int lda, int* size);
  int (*geqrf)(void* handle, int m, int n, T* a, int lda, T* tau, T* work, int size, int* info);
  int (*orgqr_size)(void* handle, int m, int n, int k, T const* a, int lda, T const* tau, int* size);
  int (*orgqr)(void* handle, int m, int n, int k, T* a, int lda, T const* tau, T* work, int size, int* info);
  int (*gesvd_size)(void* handle, int m, int n, int* size);
  int (*gesvd)(void* handle, signed char jobu, signed char jobvt, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* vt, int ldvt, T* work, int size, T* rwork,
               int* info);
  int (*syevd_size)(void* handle, int jobz, int uplo, int n, T const* a, int lda, T const* w, int* size);
  int (*syevd)(void* handle, int jobz, int uplo, int n, T* a, int lda, T* w, T* work, int size, int* info);
  int (*potrf_batched)(void* handle, int uplo, int n, T** a, int lda, int* info, int batches);
  int (*syevj_size)(void* handle, int jobz, int uplo, int n, T const* a, int lda, T const* w, int* size, void* options, int batches);
  int (*syevj_batched)(void* handle, int jobz, int uplo, int n, T* a, int lda, T* w, T* work, int size, int* info, void* options, int batches);
  int (*gesvdj_size)(void* handle, int jobz, int m, int n, T const* a, int lda, T const* s, T const* u, int ldu, T const* v, int ldv, int* size, void* options,
                     int batches);
  int (*gesvdj_batched)(void* handle, int jobz, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v, int ldv, T* work, int size, int* info, void* options,
                        int batches);
  // of cuBLAS
  int (*getrf_batched)(void* handle, int n, T* const* a, int lda, int* pivots, int* info, int batches);
  int (*getrs_batched)(void* handle, int trans, int n, int nrhs, T const* const* a, int lda, int const* pivots, T* const* b, int ldb, int* info_on_host,
                       int batches);
  int (*getri_batched)(void* handle, int n, T const* const* a, int lda, int const* pivots, T* const* c, int ldc, int* info, int batches);
  int (*geqrf_batched)(void* handle, int m, int n, T* const* a, int lda, T* const* tau, int* info_on_host, int batches);
  int (*geam)(void* handle, int transa, int transb, int m, int n, T const* alpha, T const* a, int lda, T const* beta, T const* b, int ldb, T* c, int ldc);
  int (*copy)(void* handle, int n, T const* x, int incx, T* y, int incy);
  int (*pack_triangle)(void* handle, int uplo, int n, T const* a, int lda, T* packed);
  int (*unpack_triangle)(void* handle, int uplo, int n, T const* packed, T* a, int lda);
};

struct SolverLibrary {
  int (*create)(void** handle);
  int (*set_stream)(void* handle, cudaStream_t stream);
  int (*syevj_options_create)(void** options);
  int (*syevj_options_destroy)(void* options);
  int (*gesvdj_options_create)(void** options);
  int (*gesvdj_options_destroy)(void* options);
  SolverFunctions<float> of_float;
  SolverFunctions<double> of_double;

  template <class T>
  SolverFunctions<T> const& of() const {
    if constexpr (std::is_same_v<T, float>) return of_float;
    else return of_double;
  }
};

/// cuSOLVER counts its versions on its own: that of CUDA 13 is 12. Throws CudaError.
inline void* open_cusolver() { return open_library("cusolver", CUDART_VERSION / 1000 == 11 ? 11 : CUDART_VERSION / 1000 - 1); }

template <class T>
SolverFunctions<T> solver_functions(void* solver, void* blas, char const* letter) {
  std::string const s = std::string("cusolverDn") + letter, b = std::string("cublas") + letter;
  SolverFunctions<T> f;
  find_function(f.getrf_size, solver, (s + "getrf_bufferSize").c_str());
  find_function(f.getrf, solver, (s + "getrf").c_str());
  find_function(f.getrs, solver, (s + "getrs").c_str());
  find_function(f.potrf_size, solver, (s + "potrf_bufferSize").c_str());
  find_function(f.potrf, solver, (s + "potrf").c_str());
  find_function(f.geqrf_size, solver, (s + "geqrf_bufferSize").c_str());
  find_function(f.geqrf, solver, (s + "geqrf").c_str());
  find_function(f.orgqr_size, solver, (s + "orgqr_bufferSize").c_str());
  find_function(f.orgqr, solver, (s + "orgqr").c_str());
  find_function(f.gesvd_size, solver, (s + "gesvd_bufferSize").c_str());
  find_function(f.gesvd, solver, (s + "gesvd").c_str());
  find_function(f.syevd_size, solver, (s + "syevd_bufferSize").c_str());
  find_function(f.syevd, solver, (s + "syevd").c_str());
  find_function(f.potrf_batched, solver, (s + "potrfBatched").c_str());
  find_function(f.syevj_size, solver, (s + "syevjBatched_bufferSize").c_str());
  find_function(f.syevj_batched, solver, (s + "syevjBatched").c_str());
  find_function(f.gesvdj_size, solver, (s + "gesvdjBatched_bufferSize").c_str());
  find_function(f.gesvdj_batched, solver, (s + "gesvdjBatched").c_str());
  find_function(f.getrf_batched, blas, (b + "getrfBatched").c_str());
  find_function(f.getrs_batched, blas, (b + "getrsBatched").c_str());
  find_function(f.getri_batched, blas, (b + "getriBatched").c_str());
  find_function(f.geqrf_batched, blas, (b + "geqrfBatched").c_str());
  find_function(f.geam, blas, (b + "geam").c_str());
  find_function(f.copy, blas, (b + "copy_v2").c_str());
  find_function(f.pack_triangle, blas, (b + "trttp").c_str());
  find_function(f.unpack_triangle, blas, (b + "tpttr").c_str());
  return f;
}

/// Opened once in a process; a failure throws, and the next call tries again.
SITU_PROCESS_STATE SolverLibrary const& solver_library() {
  static SolverLibrary const library = [] {
    void* const solver = open_cusolver();
    void* const blas = open_library("cublas");
    SolverLibrary all;
    find_function(all.create, solver, "cusolverDnCreate");
    find_function(all.set_stream, solver, "cusolverDnSetStream");
    find_function(all.syevj_options_create, solver, "cusolverDnCreateSyevjInfo");
    find_function(all.syevj_options_destroy, solver, "cusolverDnDestroySyevjInfo");
    find_function(all.gesvdj_options_create, solver, "cusolverDnCreateGesvdjInfo");
    find_function(all.gesvdj_options_destroy, solver, "cusolverDnDestroyGesvdjInfo");
    all.of_float = solver_functions<float>(solver, blas, "S");
    all.of_double = solver_functions<double>(solver, blas, "D");
    return all;
  }();
  return library;
}

/// A handle stays with its stream, whose work may use the handle's memory for as long as it runs.
struct SolverHandle {
  void* handle;
  int device;
  cudaStream_t stream;
  SolverHandle* next;
};
/// Handles that are kept for the next callers. One per process.
struct SpareSolvers {
  pthread_mutex_t mutex;
  SolverHandle* first;
};
SITU_PROCESS_STATE SpareSolvers& spare_solvers() {
  static constinit SpareSolvers spares{PTHREAD_MUTEX_INITIALIZER, nullptr};
  return spares;
}
/// One of the stream's, or null.
inline SolverHandle* take_spare_solver(int device, cudaStream_t stream) {
  SpareSolvers& spares = spare_solvers();
  ::pthread_mutex_lock(&spares.mutex);
  SolverHandle** link = &spares.first;
  while (*link && ((*link)->device != device || (*link)->stream != stream)) link = &(*link)->next;
  SolverHandle* const found = *link;
  if (found) *link = found->next;
  ::pthread_mutex_unlock(&spares.mutex);
  return found;
}
inline void keep_spare_solver(SolverHandle* handle) noexcept {
  SpareSolvers& spares = spare_solvers();
  ::pthread_mutex_lock(&spares.mutex);
  handle->next = spares.first;
  spares.first = handle;
  ::pthread_mutex_unlock(&spares.mutex);
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_solver(int device, int status, char const* call) {
  constexpr char const* names[] = {"NOT_INITIALIZED", "ALLOC_FAILED", "INVALID_VALUE", "ARCH_MISMATCH", "MAPPING_ERROR",
                                   "EXECUTION_FAILED", "INTERNAL_ERROR", "MATRIX_TYPE_NOT_SUPPORTED", "NOT_SUPPORTED"};
  fail<CudaError>("cuda:", device, ": ", call, " failed: CUSOLVER_STATUS_", status >= 1 && status <= 9 ? names[status - 1] : "", " (", status, ")");
}
inline void check_solver(int device, int status, char const* call) {
  if (status != 0) [[unlikely]] fail_solver(device, status, call);
}

/// For calls of cuSOLVER: the device made current, and a handle on its current stream that no other thread uses meanwhile.
template <class T>
class SolverCall {
 public:
  explicit SolverCall(int device) : f(solver_library().of<T>()), guard_(device), device_(device) {
    cudaStream_t const stream = current_stream(device);
    held_ = take_spare_solver(device, stream);
    if (!held_) {
      check(solver_library().create(&handle), "cusolverDnCreate");
      held_ = new SolverHandle{handle, device, stream, nullptr};
    }
    handle = held_->handle;
    if (int const status = solver_library().set_stream(handle, stream); status != 0) {
      keep_spare_solver(held_);
      fail_solver(device, status, "cusolverDnSetStream");
    }
  }
  SolverCall(SolverCall const&) = delete;
  SolverCall& operator=(SolverCall const&) = delete;
  ~SolverCall() { keep_spare_solver(held_); }
  void check(int status, char const* what) const { check_solver(device_, status, what); }

  SolverFunctions<T> const& f;
  void* handle = nullptr;

 private:
  DeviceGuard guard_;
  int device_;
  SolverHandle* held_ = nullptr;
};

/// The options of a routine by Jacobi's method, as they are by default: to the precision of the type, sorted.
class JacobiOptions {
 public:
  JacobiOptions(int device, int (*create)(void** options), int (*destroy)(void* options)) : destroy_(destroy) {
    check_solver(device, create(&options_), "cusolverDnCreateSyevjInfo or cusolverDnCreateGesvdjInfo");
  }
  JacobiOptions(JacobiOptions const&) = delete;
  JacobiOptions& operator=(JacobiOptions const&) = delete;
  ~JacobiOptions() { (void)destroy_(options_); }
  void* get() const { return options_; }

 private:
  int (*destroy_)(void* options);
  void* options_ = nullptr;
};

/// For calls of cuBLAS: the same, with the one handle that all of situ uses, which is locked meanwhile.
template <class T>
class BlasCall : CublasCall {
 public:
  explicit BlasCall(int device) : CublasCall(device), f(solver_library().of<T>()), device_(device) {}
  void check(int status, char const* what) const { check_cublas(device_, status, what); }

  using CublasCall::handle;
  SolverFunctions<T> const& f;

 private:
  int device_;
};

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
