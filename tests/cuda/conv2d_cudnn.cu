// Convolution by cuDNN, beside conv2d.cu in the same program, which does without it unless the build has the option.
#ifndef SITU_WITH_CUDNN
#define SITU_WITH_CUDNN 1
#endif
#include <doctest/doctest.h>

#include <cuda/conv2d_cases.hpp>
#include <cuda/prototypes.hpp>

#include <cstddef>

#if __has_include(<cudnn.h>)
#include <cudnn.h>
#endif

using namespace situ;
using situ_test::called_alike;

#if __has_include(<cudnn.h>)
namespace {

using F = detail::cuda::CudnnFunctions;
static_assert(called_alike<decltype(F::create), decltype(&cudnnCreate)>);
static_assert(called_alike<decltype(F::set_stream), decltype(&cudnnSetStream)>);
static_assert(called_alike<decltype(F::status_string), decltype(&cudnnGetErrorString)>);
static_assert(called_alike<decltype(F::tensor_create), decltype(&cudnnCreateTensorDescriptor)>);
static_assert(called_alike<decltype(F::tensor_set), decltype(&cudnnSetTensorNdDescriptor)>);
static_assert(called_alike<decltype(F::tensor_destroy), decltype(&cudnnDestroyTensorDescriptor)>);
static_assert(called_alike<decltype(F::filter_create), decltype(&cudnnCreateFilterDescriptor)>);
static_assert(called_alike<decltype(F::filter_set), decltype(&cudnnSetFilterNdDescriptor)>);
static_assert(called_alike<decltype(F::filter_destroy), decltype(&cudnnDestroyFilterDescriptor)>);
static_assert(called_alike<decltype(F::convolution_create), decltype(&cudnnCreateConvolutionDescriptor)>);
static_assert(called_alike<decltype(F::convolution_set), decltype(&cudnnSetConvolutionNdDescriptor)>);
static_assert(called_alike<decltype(F::convolution_set_groups), decltype(&cudnnSetConvolutionGroupCount)>);
static_assert(called_alike<decltype(F::convolution_set_math), decltype(&cudnnSetConvolutionMathType)>);
static_assert(called_alike<decltype(F::convolution_destroy), decltype(&cudnnDestroyConvolutionDescriptor)>);
static_assert(called_alike<decltype(F::algorithms), decltype(&cudnnGetConvolutionForwardAlgorithm_v7)>);
static_assert(called_alike<decltype(F::workspace), decltype(&cudnnGetConvolutionForwardWorkspaceSize)>);
static_assert(called_alike<decltype(F::forward), decltype(&cudnnConvolutionForward)>);
static_assert(called_alike<decltype(F::add), decltype(&cudnnAddTensor)>);
using Ours = detail::cuda::CudnnAlgorithm;
using Theirs = cudnnConvolutionFwdAlgoPerf_t;
static_assert(sizeof(Ours) == sizeof(Theirs) && offsetof(Ours, algorithm) == offsetof(Theirs, algo) && offsetof(Ours, status) == offsetof(Theirs, status) &&
              offsetof(Ours, memory) == offsetof(Theirs, memory) && offsetof(Ours, determinism) == offsetof(Theirs, determinism) &&
              offsetof(Ours, math) == offsetof(Theirs, mathType));
static_assert(detail::cuda::cudnn_type<float> == CUDNN_DATA_FLOAT && detail::cuda::cudnn_type<double> == CUDNN_DATA_DOUBLE);
static_assert(detail::cuda::cudnn_type<float16> == CUDNN_DATA_HALF && detail::cuda::cudnn_type<bfloat16> == CUDNN_DATA_BFLOAT16);
static_assert(detail::cuda::cudnn_row_major == CUDNN_TENSOR_NCHW && detail::cuda::cudnn_cross_correlation == CUDNN_CROSS_CORRELATION);
static_assert(detail::cuda::cudnn_deterministic == CUDNN_DETERMINISTIC && CUDNN_STATUS_SUCCESS == 0);
static_assert(detail::cuda::cudnn_default_math == CUDNN_DEFAULT_MATH && detail::cuda::cudnn_tensor_math == CUDNN_TENSOR_OP_MATH &&
              detail::cuda::cudnn_fma_math == CUDNN_FMA_MATH);

}  // namespace
#endif

TEST_CASE_TEMPLATE("conv2d by cuDNN is the same on a GPU as on the host", T, float, double, float16, bfloat16) {
  CHECK(convolution_differences<T>() == "");
}

TEST_SUITE("without a gpu") {
  TEST_CASE("a convolution is described to cuDNN without an error, or the library is named that is not installed") {
    using namespace detail::cuda;
    try {
      load_cudnn();
    } catch (CudaError const& error) {
      std::string const message = error.what();
      CHECK(message.find("cuda: libcudnn.so.9 was not found: ") == 0);
      CHECK(message.find("; install cuDNN 9, add its folder to LD_LIBRARY_PATH, or compile without SITU_WITH_CUDNN") != std::string::npos);
      return;
    }
    for (int type : {cudnn_type<float>, cudnn_type<double>, cudnn_type<float16>, cudnn_type<bfloat16>}) {
      detail::ConvolutionPlan const plan = detail::plan_convolution({3, 6, 17, 21}, {9, 2, 3, 5}, {9}, true, {1, 2}, {2, 1}, {2, 3}, 3);
      CudnnRecipe recipe{};
      recipe.geometry = cudnn_geometry<float>(0, plan, 3, 3);
      recipe.geometry.type = type;
      CHECK_NOTHROW(describe(recipe, type == cudnn_type<double> ? type : cudnn_type<float>, cudnn_default_math));
      forget(recipe);
      CHECK(recipe.x == nullptr);
    }
  }
  TEST_CASE("cuDNN is given as many images as 32-bit numbers can count, and nothing that they cannot") {
    using detail::cuda::cudnn_images_at_once;
    auto const plan = [](Shape const& x, Shape const& w, std::int64_t groups = 1) { return detail::plan_convolution(x, w, {}, false, 1, 0, 1, groups); };
    CHECK(cudnn_images_at_once(plan({3, 6, 17, 21}, {9, 2, 3, 5}, 3), 3) == 3);
    CHECK(cudnn_images_at_once(plan({5000, 64, 1024, 1024}, {32, 64, 3, 3}), 1) == 31);
    CHECK(cudnn_images_at_once(plan({100'000, 1, 227, 227}, {1, 1, 1, 1}), 1) == 41'672);  // of 51529 elements each: 41675 would leave the next one unaligned
    CHECK(cudnn_images_at_once(plan({1, 1, 65536, 32768}, {1, 1, 1, 1}), 1) == 0);
    CHECK(cudnn_images_at_once(plan({2, 0, 8, 8}, {4, 0, 3, 3}), 1) == 0);
  }
}
