/// cuBLAS and cuBLASLt: found when they are first used, through prototypes written here, so that programs neither link nor include them.
///
/// Matrices are row-major here and column-major there: C = A B is computed as its transpose, Cᵀ = Bᵀ Aᵀ.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/ops/cuda/library.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// The functions that are used; handles and descriptors as void*, enumerations as int. tests/cuda/matmul.cu compares them with the headers.
struct CublasFunctions {
  int (*create)(void** handle);
  int (*set_stream)(void* handle, cudaStream_t stream);
  int (*set_workspace)(void* handle, void* workspace, std::size_t bytes);
  int (*set_math_mode)(void* handle, int mode);
  char const* (*status_string)(int status);
  int (*gemm)(void* handle, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, void const* alpha, void const* a, int type_a, int64_t lda,
              long long stride_a, void const* b, int type_b, int64_t ldb, long long stride_b, void const* beta, void* c, int type_c, int64_t ldc,
              long long stride_c, int64_t batches, int compute, int algorithm);
};

struct CublasLtAlgorithm {
  uint64_t data[8];
};
struct CublasLtHeuristic {
  CublasLtAlgorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
struct CublasLtFunctions {
  int (*create)(void** handle);
  int (*description_create)(void** description, int compute, int scale_type);
  int (*description_set)(void* description, int attribute, void const* value, std::size_t bytes);
  int (*description_destroy)(void* description);
  int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*layout_set)(void* layout, int attribute, void const* value, std::size_t bytes);
  int (*layout_destroy)(void* layout);
  int (*preference_create)(void** preference);
  int (*preference_set)(void* preference, int attribute, void const* value, std::size_t bytes);
  int (*preference_destroy)(void* preference);
  int (*heuristic)(void* handle, void* description, void* a, void* b, void* c, void* d, void* preference, int wanted, CublasLtHeuristic* results, int* found);
  int (*matmul)(void* handle, void* description, void const* alpha, void const* a, void* layout_a, void const* b, void* layout_b, void const* beta,
                void const* c, void* layout_c, void* d, void* layout_d, CublasLtAlgorithm const* algorithm, void* workspace, std::size_t workspace_bytes,
                cudaStream_t stream);
};

/// One per process. The lock is held while a handle is used: its stream is set and the call is enqueued as one.
struct CublasState {
  pthread_mutex_t mutex;
  CublasFunctions blas;
  CublasLtFunctions lt;
  bool blas_loaded, lt_loaded;
  void* handles[max_devices];
  void* lt_handles[max_devices];
};
SITU_PROCESS_STATE CublasState& cublas_state() {
  static constinit CublasState state{PTHREAD_MUTEX_INITIALIZER, {}, {}, false, false, {}, {}};
  return state;
}

inline namespace SITU_ABI_CUDA {

/// Values of cuBLAS's enumerations.
inline constexpr int cublas_compute_32f = 68, cublas_compute_64f = 70, cublas_default_algorithm = -1, cublas_not_supported = 15;
inline constexpr int cublas_whole_sums = 16;            ///< sums of 16-bit products are not rounded to 16 bits before they are complete
inline constexpr uint32_t cublas_lt_sums_in_float = 2;  ///< the same of cuBLASLt: parts of sums meet in the type that they are computed in
template <class T>
inline constexpr int cublas_type = std::is_same_v<T, float> ? 0 : std::is_same_v<T, double> ? 1 : std::is_same_v<T, float16> ? 2 : 14;

struct CublasLock : MutexLock {
  CublasLock() : MutexLock(cublas_state().mutex) {}
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail_cublas(int device, int status, char const* call) {
  CublasState const& state = cublas_state();
  fail<CudaError>("cuda:", device, ": ", call, " failed: ", state.blas_loaded ? state.blas.status_string(status) : "status", " (", status, ")");
}
inline void check_cublas(int device, int status, char const* call) {
  if (status != 0) [[unlikely]] fail_cublas(device, status, call);
}

inline void load_cublas() {
  CublasState& state = cublas_state();
  if (state.blas_loaded) return;
  void* const library = open_library("cublas");
  find_function(state.blas.create, library, "cublasCreate_v2");
  find_function(state.blas.set_stream, library, "cublasSetStream_v2");
  find_function(state.blas.set_workspace, library, "cublasSetWorkspace_v2");
  find_function(state.blas.set_math_mode, library, "cublasSetMathMode");
  find_function(state.blas.status_string, library, "cublasGetStatusString");
  find_function(state.blas.gemm, library, "cublasGemmStridedBatchedEx_64");
  state.blas_loaded = true;
}
inline void load_cublas_lt() {
  CublasState& state = cublas_state();
  load_cublas();  // tells what a status means
  if (state.lt_loaded) return;
  void* const library = open_library("cublasLt");
  CublasLtFunctions& lt = state.lt;
  find_function(lt.create, library, "cublasLtCreate");
  find_function(lt.description_create, library, "cublasLtMatmulDescCreate");
  find_function(lt.description_set, library, "cublasLtMatmulDescSetAttribute");
  find_function(lt.description_destroy, library, "cublasLtMatmulDescDestroy");
  find_function(lt.layout_create, library, "cublasLtMatrixLayoutCreate");
  find_function(lt.layout_set, library, "cublasLtMatrixLayoutSetAttribute");
  find_function(lt.layout_destroy, library, "cublasLtMatrixLayoutDestroy");
  find_function(lt.preference_create, library, "cublasLtMatmulPreferenceCreate");
  find_function(lt.preference_set, library, "cublasLtMatmulPreferenceSetAttribute");
  find_function(lt.preference_destroy, library, "cublasLtMatmulPreferenceDestroy");
  find_function(lt.heuristic, library, "cublasLtMatmulAlgoGetHeuristic");
  find_function(lt.matmul, library, "cublasLtMatmul");
  state.lt_loaded = true;
}

/// Memory that what is enqueued meanwhile works in.
class CublasWorkspace {
 public:
  CublasWorkspace() = default;
  CublasWorkspace(CublasWorkspace const&) = delete;
  CublasWorkspace& operator=(CublasWorkspace const&) = delete;
  ~CublasWorkspace() {
    if (memory_) Runtime::deallocate(device_, memory_, bytes_);
  }
  void* allocate(int device, std::size_t bytes) {
    if (bytes > 0) memory_ = Runtime::allocate(device, bytes);
    device_ = device, bytes_ = bytes;
    return memory_;
  }

 private:
  int device_ = 0;
  std::size_t bytes_ = 0;
  void* memory_ = nullptr;
};

/// cuBLAS's handle of a device, for calls on its current stream; the device is current and the lock held meanwhile.
///
/// The handle's own working memory serves the default stream alone: streams that share it would get other algorithms, and other last bits, by what
/// each of them holds of it at that moment. Calls on other streams, and what is recorded, bring as much of their own.
class CublasCall {
 public:
  explicit CublasCall(int device) : guard_(device) {
    load_cublas();
    CublasState& state = cublas_state();
    void*& known = state.handles[device];
    if (!known) {
      void* made = nullptr;
      check_cublas(device, state.blas.create(&made), "cublasCreate");
      check_cublas(device, state.blas.set_math_mode(made, cublas_whole_sums), "cublasSetMathMode");
      known = made;
    }
    handle = known;
    cudaStream_t const stream = current_stream(device);
    check_cublas(device, state.blas.set_stream(handle, stream), "cublasSetStream");  // and the handle's own working memory
    if (stream != cudaStreamLegacy) {
      int major = 0;
      cuda::check(device, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
      std::size_t const bytes = std::size_t{major < 9 ? 4u : major < 12 ? 32u : 12u} << 20;
      void* memory = nullptr;
      try {
        memory = workspace_.allocate(device, bytes);
      } catch (OutOfMemory const&) {  // then the handle's own
      }
      if (memory) check_cublas(device, state.blas.set_workspace(handle, memory, bytes), "cublasSetWorkspace");
    }
  }

  void* handle = nullptr;

 private:
  DeviceGuard guard_;
  CublasLock lock_;
  CublasWorkspace workspace_;
};

/// A matrix as cuBLAS takes it, seen transposed: 0 as it is, 1 transposed; -1 where neither axis is without gaps.
struct CublasMatrix {
  int how = -1;
  int64_t step = 1;
  CublasMatrix(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step) {
    if ((column_step == 1 || columns == 1) && (row_step >= columns || rows == 1)) how = 0, step = rows == 1 ? columns : row_step;
    else if ((row_step == 1 || rows == 1) && (column_step >= rows || columns == 1)) how = 1, step = columns == 1 ? rows : column_step;
    if (step < 1) step = 1;
  }
};

/// Products of the matrices at a, b and c and `batches - 1` more of each, so many elements apart. C is row-major without gaps.
struct CublasProduct {
  int64_t m, n, k;
  CublasMatrix left, right;
  void const* a;
  void const* b;
  void* c;
  int64_t a_step, b_step, c_step, batches;
  bool onto = false;  ///< adds to what C holds
};

template <class T>
void cublas_product(int device, CublasProduct const& p) {
  using Scale = compute_t<T>;
  Scale const one = Scale(1), zero = Scale(0);
  constexpr int type = cublas_type<T>, compute = std::is_same_v<T, double> ? cublas_compute_64f : cublas_compute_32f;
  CublasCall const call(device);
  check_cublas(device,
               cublas_state().blas.gemm(call.handle, p.right.how, p.left.how, p.n, p.m, p.k, &one, p.b, type, p.right.step, p.b_step, p.a, type, p.left.step, p.a_step,
                               p.onto ? &one : &zero, p.c, type, p.n, p.c_step, p.batches, compute, cublas_default_algorithm),
               "cublasGemmStridedBatchedEx");
}

/// Descriptors of cuBLASLt, destroyed in the end.
struct CublasLtDescription {
  CublasLtFunctions const& lt;
  int device;
  void *operation = nullptr, *a = nullptr, *b = nullptr, *c = nullptr, *preference = nullptr;

  CublasLtDescription(CublasLtFunctions const& functions, int ordinal) : lt(functions), device(ordinal) {}
  CublasLtDescription(CublasLtDescription const&) = delete;
  CublasLtDescription& operator=(CublasLtDescription const&) = delete;
  ~CublasLtDescription() {
    if (preference) lt.preference_destroy(preference);
    for (void* layout : {a, b, c}) {
      if (layout) lt.layout_destroy(layout);
    }
    if (operation) lt.description_destroy(operation);
  }
  template <class V>
  void set(int attribute, V value) {
    check_cublas(device, lt.description_set(operation, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  template <class V>
  void prefer(int attribute, V value) {
    check_cublas(device, lt.preference_set(preference, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  }
  /// A layout of columns that are `ld` elements long.
  void describe(void*& layout, int type, int64_t rows, int64_t columns, int64_t ld, int64_t batches, int64_t step) {
    check_cublas(device, lt.layout_create(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), ld), "cublasLtMatrixLayoutCreate");
    int32_t const count = static_cast<int32_t>(batches);
    check_cublas(device, lt.layout_set(layout, 5, &count, sizeof count), "cublasLtMatrixLayoutSetAttribute");
    check_cublas(device, lt.layout_set(layout, 6, &step, sizeof step), "cublasLtMatrixLayoutSetAttribute");
  }
};

/// As cublas_product, with an epilogue: bias (an element for each column of C, or null), then the activation: 0 none, 2 relu, 32 gelu
/// in its tanh form. False where cuBLASLt has no algorithm for it; nothing is enqueued then.
template <class T>
bool cublas_lt_product(int device, CublasProduct const& p, void const* bias, uint32_t activation) {
  using Scale = compute_t<T>;
  Scale const one = Scale(1), zero = Scale(0);
  constexpr int type = cublas_type<T>, scale = cublas_type<Scale>;
  constexpr int compute = std::is_same_v<T, double> ? cublas_compute_64f : cublas_compute_32f;
  if (p.batches > INT32_MAX) return false;
  DeviceGuard const guard(device);
  CublasLtHeuristic chosen{};
  CublasLock const lock;
  load_cublas_lt();
  CublasState& state = cublas_state();
  CublasLtFunctions const& lt = state.lt;
  void*& handle = state.lt_handles[device];
  if (!handle) check_cublas(device, lt.create(&handle), "cublasLtCreate");

  // The epilogue reads 16 bytes at once: cuBLASLt is told how the matrices lie, and not how the bias does.
  CublasWorkspace aligned;
  if (std::size_t const bytes = static_cast<std::size_t>(p.n) * sizeof(T); reinterpret_cast<std::uintptr_t>(bias) % 16 != 0) {
    void* const copy = aligned.allocate(device, bytes);
    Runtime::copy(device, copy, bias, bytes);
    bias = copy;
  }
  CublasLtDescription d(lt, device);
  check_cublas(device, lt.description_create(&d.operation, compute, scale), "cublasLtMatmulDescCreate");
  d.set(3, int32_t{p.right.how});
  d.set(4, int32_t{p.left.how});
  d.set(7, uint32_t{(activation | (bias ? 4u : 0u)) == 0 ? 1u : activation | (bias ? 4u : 0u)});
  if (bias) d.set(8, bias), d.set(26, int32_t{type});
  d.describe(d.a, type, p.right.how == 0 ? p.n : p.k, p.right.how == 0 ? p.k : p.n, p.right.step, p.batches, p.b_step);
  d.describe(d.b, type, p.left.how == 0 ? p.k : p.m, p.left.how == 0 ? p.m : p.k, p.left.step, p.batches, p.a_step);
  d.describe(d.c, type, p.n, p.m, p.n, p.batches, p.c_step);
  check_cublas(device, lt.preference_create(&d.preference), "cublasLtMatmulPreferenceCreate");
  auto const alignment = [](void const* address) {
    auto const bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
    return static_cast<uint32_t>(bits & (~bits + 1));
  };
  d.prefer(1, std::size_t{32} << 20);  // a workspace of at most 32 MiB
  d.prefer(3, cublas_lt_sums_in_float);
  d.prefer(5, alignment(p.b)), d.prefer(6, alignment(p.a)), d.prefer(7, alignment(p.c)), d.prefer(8, alignment(p.c));
  int found = 0;
  int const status = lt.heuristic(handle, d.operation, d.a, d.b, d.c, d.c, d.preference, 1, &chosen, &found);
  bool const recorded = current_streams()[device].recorder != nullptr;  // some versions cannot answer then
  if (status == cublas_not_supported || (status == 0 && found == 0) || (status != 0 && recorded)) return false;
  check_cublas(device, status, "cublasLtMatmulAlgoGetHeuristic");

  CublasWorkspace workspace;
  void* const memory = workspace.allocate(device, chosen.workspace);
  check_cublas(device,
               lt.matmul(handle, d.operation, &one, p.b, d.a, p.a, d.b, &zero, p.c, d.c, p.c, d.c, &chosen.algorithm, memory, chosen.workspace,
                         current_stream(device)),
               "cublasLtMatmul");
  return true;
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
