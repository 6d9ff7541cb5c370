/// Convolution by cuDNN, which is found when it is first used, through prototypes written here: programs neither link nor include it.
///
/// Images and weights are row-major (NCHW). Algorithms are asked for once for each geometry, by cuDNN's heuristics, and the first one that is
/// deterministic is taken: results are the same from run to run. float is computed in float, not in TF32.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/ops/conv2d_plan.hpp>
#include <situ/ops/cuda/library.hpp>

#if defined(SITU_WITH_CUDA)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// What cuDNN says about an algorithm: cudnnConvolutionFwdAlgoPerf_t.
struct CudnnAlgorithm {
  int algorithm, status;
  float time;
  std::size_t memory;
  int determinism, math;
  int reserved[3];
};

/// The functions that are used; handles and descriptors as void*, enumerations as int. tests/cuda/conv2d_cudnn.cu compares them with the headers.
struct CudnnFunctions {
  int (*create)(void** handle);
  int (*set_stream)(void* handle, cudaStream_t stream);
  char const* (*status_string)(int status);
  int (*tensor_create)(void** descriptor);
  int (*tensor_set)(void* descriptor, int type, int rank, int const sizes[], int const strides[]);
  int (*tensor_destroy)(void* descriptor);
  int (*filter_create)(void** descriptor);
  int (*filter_set)(void* descriptor, int type, int format, int rank, int const sizes[]);
  int (*filter_destroy)(void* descriptor);
  int (*convolution_create)(void** descriptor);
  int (*convolution_set)(void* descriptor, int rank, int const padding[], int const stride[], int const dilation[], int mode, int compute_type);
  int (*convolution_set_groups)(void* descriptor, int groups);
  int (*convolution_set_math)(void* descriptor, int math);
  int (*convolution_destroy)(void* descriptor);
  int (*algorithms)(void* handle, void* x, void* w, void* convolution, void* y, int wanted, int* found, CudnnAlgorithm* results);
  int (*workspace)(void* handle, void* x, void* w, void* convolution, void* y, int algorithm, std::size_t* bytes);
  int (*forward)(void* handle, void const* alpha, void* x_descriptor, void const* x, void* w_descriptor, void const* w, void* convolution, int algorithm,
                 void* workspace, std::size_t workspace_bytes, void const* beta, void* y_descriptor, void* y);
  int (*add)(void* handle, void const* alpha, void* a_descriptor, void const* a, void const* beta, void* c_descriptor, void* c);
};

/// What an algorithm is chosen by. Numbers alone, so that keys are compared as bytes.
struct CudnnGeometry {
  int device, type, images, groups;
  int channels, height, width;  ///< of the images
  int outputs, rows, columns;   ///< of the results
  int kernel[2], stride[2], padding[2], dilation[2];
};

/// A geometry with its descriptors and its algorithm: -1 where cuDNN has none.
struct CudnnRecipe {
  CudnnGeometry geometry;
  void *x, *w, *y, *bias, *convolution;
  int algorithm;
  std::size_t workspace;
};

/// A handle stays with its stream, whose work may use the handle's memory for as long as it runs.
struct CudnnHandle {
  int device;
  cudaStream_t stream;
  void* handle;
  CudnnHandle* next;
};

inline constexpr int cudnn_recipes = 64;  // so many are kept

/// One per process. The lock is held while a call is enqueued.
struct CudnnState {
  pthread_mutex_t mutex;
  bool loaded;
  CudnnFunctions f;
  CudnnHandle* handles;  ///< of each stream that there was; to destroy one would wait for all of its device
  CudnnRecipe recipes[cudnn_recipes];
};
SITU_PROCESS_STATE CudnnState& cudnn_state() {
  static constinit CudnnState state{PTHREAD_MUTEX_INITIALIZER, false, {}, nullptr, {}};
  return state;
}

inline namespace SITU_ABI_CUDA {

/// Values of cuDNN's enumerations.
inline constexpr int cudnn_row_major = 0, cudnn_cross_correlation = 1, cudnn_deterministic = 1;
inline constexpr int cudnn_default_math = 0, cudnn_tensor_math = 1, cudnn_fma_math = 3;
template <class T>
inline constexpr int cudnn_type = std::is_same_v<T, float> ? 0 : std::is_same_v<T, double> ? 1 : std::is_same_v<T, float16> ? 2 : 9;
template <class T>
inline constexpr int cudnn_math = std::is_same_v<T, float> ? cudnn_fma_math : std::is_same_v<T, double> ? cudnn_default_math : cudnn_tensor_math;

inline constexpr std::size_t cudnn_workspace_limit = std::size_t{1} << 30;  // algorithms that want more are not taken

[[noreturn]] __attribute__((noinline, cold)) inline void fail_cudnn(int device, int status, char const* call) {
  fail<CudaError>("cuda:", device, ": ", call, " failed: ", cudnn_state().f.status_string(status), " (", status, ")");
}
inline void check_cudnn(int device, int status, char const* call) {
  if (status != 0) [[unlikely]] fail_cudnn(device, status, call);
}

inline void load_cudnn() {
  CudnnState& state = cudnn_state();
  if (state.loaded) return;
  void* const library = open_library("cudnn", 9, "install cuDNN 9, add its folder to LD_LIBRARY_PATH, or compile without SITU_WITH_CUDNN");
  CudnnFunctions& f = state.f;
  find_function(f.create, library, "cudnnCreate");
  find_function(f.set_stream, library, "cudnnSetStream");
  find_function(f.status_string, library, "cudnnGetErrorString");
  find_function(f.tensor_create, library, "cudnnCreateTensorDescriptor");
  find_function(f.tensor_set, library, "cudnnSetTensorNdDescriptor");
  find_function(f.tensor_destroy, library, "cudnnDestroyTensorDescriptor");
  find_function(f.filter_create, library, "cudnnCreateFilterDescriptor");
  find_function(f.filter_set, library, "cudnnSetFilterNdDescriptor");
  find_function(f.filter_destroy, library, "cudnnDestroyFilterDescriptor");
  find_function(f.convolution_create, library, "cudnnCreateConvolutionDescriptor");
  find_function(f.convolution_set, library, "cudnnSetConvolutionNdDescriptor");
  find_function(f.convolution_set_groups, library, "cudnnSetConvolutionGroupCount");
  find_function(f.convolution_set_math, library, "cudnnSetConvolutionMathType");
  find_function(f.convolution_destroy, library, "cudnnDestroyConvolutionDescriptor");
  find_function(f.algorithms, library, "cudnnGetConvolutionForwardAlgorithm_v7");
  find_function(f.workspace, library, "cudnnGetConvolutionForwardWorkspaceSize");
  find_function(f.forward, library, "cudnnConvolutionForward");
  find_function(f.add, library, "cudnnAddTensor");
  state.loaded = true;
}

/// The handle of a stream. For callers that hold the lock, with the device current.
inline void* cudnn_handle(int device, cudaStream_t stream) {
  CudnnState& state = cudnn_state();
  CudnnHandle* chosen = state.handles;
  while (chosen && (chosen->device != device || chosen->stream != stream)) chosen = chosen->next;
  if (!chosen) {
    void* made = nullptr;
    check_cudnn(device, state.f.create(&made), "cudnnCreate");
    chosen = state.handles = new CudnnHandle{device, stream, made, state.handles};
  }
  check_cudnn(device, state.f.set_stream(chosen->handle, stream), "cudnnSetStream");  // a new stream may have an old one's address
  return chosen->handle;
}

inline void forget(CudnnRecipe& recipe) {
  CudnnFunctions const& f = cudnn_state().f;
  for (void* tensor : {recipe.x, recipe.y, recipe.bias}) {
    if (tensor) (void)f.tensor_destroy(tensor);
  }
  if (recipe.w) (void)f.filter_destroy(recipe.w);
  if (recipe.convolution) (void)f.convolution_destroy(recipe.convolution);
  recipe = {};
}

/// Describes a geometry to cuDNN. Throws CudaError.
inline void describe(CudnnRecipe& recipe, int compute_type, int math) {
  CudnnFunctions const& f = cudnn_state().f;
  CudnnGeometry const& g = recipe.geometry;
  auto const tensor = [&](void*& descriptor, int images, int channels, int height, int width) {
    int const sizes[] = {images, channels, height, width}, strides[] = {channels * height * width, height * width, width, 1};
    check_cudnn(g.device, f.tensor_create(&descriptor), "cudnnCreateTensorDescriptor");
    check_cudnn(g.device, f.tensor_set(descriptor, g.type, 4, sizes, strides), "cudnnSetTensorNdDescriptor");
  };
  tensor(recipe.x, g.images, g.channels, g.height, g.width);
  tensor(recipe.y, g.images, g.outputs, g.rows, g.columns);
  tensor(recipe.bias, 1, g.outputs, 1, 1);
  int const sizes[] = {g.outputs, g.channels / g.groups, g.kernel[0], g.kernel[1]};
  check_cudnn(g.device, f.filter_create(&recipe.w), "cudnnCreateFilterDescriptor");
  check_cudnn(g.device, f.filter_set(recipe.w, g.type, cudnn_row_major, 4, sizes), "cudnnSetFilterNdDescriptor");
  check_cudnn(g.device, f.convolution_create(&recipe.convolution), "cudnnCreateConvolutionDescriptor");
  check_cudnn(g.device, f.convolution_set(recipe.convolution, 2, g.padding, g.stride, g.dilation, cudnn_cross_correlation, compute_type),
              "cudnnSetConvolutionNdDescriptor");
  check_cudnn(g.device, f.convolution_set_groups(recipe.convolution, g.groups), "cudnnSetConvolutionGroupCount");
  check_cudnn(g.device, f.convolution_set_math(recipe.convolution, math), "cudnnSetConvolutionMathType");
}

/// Takes the first algorithm of cuDNN's heuristics that is deterministic and whose workspace has an end.
inline void choose_algorithm(CudnnRecipe& recipe, void* handle, int math) {
  CudnnFunctions const& f = cudnn_state().f;
  CudnnAlgorithm candidates[16];
  int found = 0;
  recipe.algorithm = -1;
  if (f.algorithms(handle, recipe.x, recipe.w, recipe.convolution, recipe.y, 16, &found, candidates) != 0) return;
  for (int k = 0; k < found && recipe.algorithm < 0; ++k) {
    CudnnAlgorithm const& each = candidates[k];
    if (each.status != 0 || each.determinism != cudnn_deterministic) continue;
    // What float is computed in is not for heuristics to choose; 16-bit types may go without tensor cores.
    int const wanted = math == cudnn_tensor_math ? each.math : math;
    if (f.convolution_set_math(recipe.convolution, wanted) != 0) continue;
    std::size_t bytes = 0;
    if (f.workspace(handle, recipe.x, recipe.w, recipe.convolution, recipe.y, each.algorithm, &bytes) != 0 || bytes > cudnn_workspace_limit) continue;
    recipe.algorithm = each.algorithm, recipe.workspace = bytes;
  }
}

/// The recipe of a geometry: a kept one, or a new one in its place. For callers that hold the lock.
inline CudnnRecipe& cudnn_recipe(CudnnGeometry const& geometry, int compute_type, int math, void* handle) {
  uint32_t hash = 2166136261u;
  for (std::size_t k = 0; k < sizeof geometry; ++k) hash = (hash ^ reinterpret_cast<unsigned char const*>(&geometry)[k]) * 16777619u;
  CudnnRecipe& recipe = cudnn_state().recipes[hash % cudnn_recipes];
  if (recipe.x && __builtin_memcmp(&recipe.geometry, &geometry, sizeof geometry) == 0) return recipe;
  forget(recipe);
  recipe.geometry = geometry;
  try {
    describe(recipe, compute_type, math);
    choose_algorithm(recipe, handle, math);
  } catch (...) {
    forget(recipe);
    throw;
  }
  return recipe;
}

/// What cuDNN's 32-bit numbers can say of `images` images of a planned convolution.
template <class T>
CudnnGeometry cudnn_geometry(int device, ConvolutionPlan const& plan, int64_t groups, int64_t images) {
  WindowAxis const &y = plan.windows.y, &x = plan.windows.x;
  auto const i = [](int64_t n) { return static_cast<int>(n); };
  return {device, cudnn_type<T>, i(images), i(groups), i(plan.channels * groups), i(y.extent), i(x.extent), i(plan.outputs * groups), i(y.windows), i(x.windows),
          {i(y.kernel), i(x.kernel)}, {i(y.stride), i(x.stride)}, {i(y.padding), i(x.padding)}, {i(y.dilation), i(x.dilation)}};
}

/// How many images one call takes: fewer than 2^31 elements on either side; 0 where cuDNN cannot take this convolution.
inline int64_t cudnn_images_at_once(ConvolutionPlan const& plan, int64_t groups) {
  WindowAxis const &y = plan.windows.y, &x = plan.windows.x;
  for (int64_t number : {y.padding, x.padding, y.stride, x.stride, y.dilation, x.dilation}) {
    if (number > INT32_MAX) return 0;
  }
  auto const elements = [](std::initializer_list<int64_t> extents) {
    int64_t result = 1;
    for (int64_t extent : extents) {
      if (__builtin_mul_overflow(result, extent, &result)) return INT64_MAX;
    }
    return result;
  };
  int64_t const in = elements({plan.channels, groups, y.extent, x.extent}), out = elements({plan.outputs, groups, y.windows, x.windows});
  int64_t const most = in > out ? in : out;
  if (in == 0 || out == 0 || most > INT32_MAX || elements({plan.outputs, groups, plan.channels, y.kernel, x.kernel}) > INT32_MAX) return 0;
  int64_t const images = INT32_MAX / most;
  if (images >= plan.images) return plan.images;
  return in % 8 == 0 && out % 8 == 0 ? images : images & ~int64_t{7};  // each part begins at a multiple of 16 bytes, as the whole does
}

/// Convolves contiguous images that begin at a multiple of 16 bytes, as all else here; enqueued on the current stream. False where cuDNN has
/// no algorithm for it, and the result is to be computed in another way. Throws CudaError.
template <class D, class T>
bool cudnn_convolution(ConvolutionPlan const& plan, int64_t groups, T const* x, T const* w, T const* bias, T* y) {
  using Scale = compute_t<T>;
  constexpr int device = device_traits<D>::ordinal;
  int64_t const at_once = cudnn_images_at_once(plan, groups);
  if (at_once < 1) return false;
  int64_t const in = plan.channels * groups * plan.windows.y.extent * plan.windows.x.extent, out = plan.outputs * groups * plan.windows.outputs();
  Scale const one = 1, zero = 0;
  DeviceGuard const guard(device);
  MutexLock const lock(cudnn_state().mutex);
  load_cudnn();
  CudnnFunctions const& f = cudnn_state().f;
  void* const handle = cudnn_handle(device, current_stream(device));
  for (int64_t first = 0; first < plan.images; first += at_once) {
    int64_t const images = plan.images - first < at_once ? plan.images - first : at_once;
    CudnnRecipe const& r = cudnn_recipe(cudnn_geometry<T>(device, plan, groups, images), cudnn_type<Scale>, cudnn_math<T>, handle);
    if (r.algorithm < 0) return false;
    Temporary<D> const workspace(r.workspace);
    ObservedWork work(device, current_stream(device), "conv2d (cuDNN)");
    // The bias goes first, and the sums onto it: they are rounded once.
    if (bias) check_cudnn(device, f.add(handle, &one, r.bias, bias, &zero, r.y, y + first * out), "cudnnAddTensor");
    check_cudnn(device,
                f.forward(handle, &one, r.x, x + first * in, r.w, w, r.convolution, r.algorithm, workspace.get(), r.workspace, bias ? &one : &zero, r.y,
                          y + first * out),
                "cudnnConvolutionForward");
    work.enqueued();
  }
  return true;
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
