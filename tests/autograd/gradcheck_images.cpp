/// The table's operations on images, batch_norm and dropout.
#include <doctest/doctest.h>

#include <autograd/gradcheck_table.hpp>

#include <situ/autograd/batch_norm.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/autograd/pool2d.hpp>
#include <situ/autograd/random.hpp>

using namespace situ;
using namespace situ_test;

namespace {

Rows const rows{
    {"conv2d", "", {{2, 2, 4, 5}, {2, 2, 3, 2}}, [](V const& x, V const& w) -> V { return conv2d(x, w); }},
    {"conv2d", "bias, stride, padding, groups", {{1, 4, 4, 5}, {2, 2, 3, 2}, {2}},
     [](V const& x, V const& w, V const& b) -> V { return conv2d(x, w, {.bias = b, .stride = 2, .padding = 1, .groups = 2}); }},
    {"conv2d", "dilation, of a formula", {{1, 1, 5, 6}, {2, 1, 2, 2}}, [](V const& x, V const& w) -> V { return conv2d(x * x, w * 2, {.stride = {1, 2}, .dilation = 2}); }},
    {"conv2d", "depthwise", {{2, 3, 3, 4}, {3, 1, 2, 2}}, [](V const& x, V const& w) -> V { return conv2d(x, w, {.groups = 3}); }},
    {"conv2d", "1 x 1", {{2, 3, 2, 3}, {2, 3, 1, 1}}, [](V const& x, V const& w) -> V { return conv2d(x, w); }},
    {"max_pool2d", "", {{1, 2, 4, 6}}, [](V const& x) -> V { return max_pool2d(x, 2); }, distinct},
    {"max_pool2d", "windows that overlap", {{1, 5, 6}}, [](V const& x) -> V { return max_pool2d(x, {3, 2}, {.stride = {2, 1}, .padding = 1}); }, distinct},
    {"max_pool2d", "dilation and ceil, of a formula", {{1, 1, 7, 8}}, [](V const& x) -> V { return max_pool2d(x * 2 + 1, 2, {.stride = 3, .dilation = 2, .ceil_mode = true}); }, distinct},
    {"avg_pool2d", "", {{1, 2, 4, 6}}, [](V const& x) -> V { return avg_pool2d(x, 2); }},
    {"avg_pool2d", "windows that overlap, of a formula", {{1, 1, 6, 7}}, [](V const& x) -> V { return avg_pool2d(tanh(x), 3, {.stride = 2, .padding = 1}); }},
    {"avg_pool2d", "without padding", {{1, 5, 6}}, [](V const& x) -> V { return avg_pool2d(x, {3, 2}, {.stride = 1, .padding = 1, .ceil_mode = true, .count_include_pad = false}); }},
    {"adaptive_avg_pool2d", "", {{1, 5, 7}}, [](V const& x) -> V { return adaptive_avg_pool2d(x, {2, 3}); }},
    {"adaptive_avg_pool2d", "beyond the image", {{1, 1, 2, 3}}, [](V const& x) -> V { return adaptive_avg_pool2d(x * 2, {3, 5}); }},
    {"batch_norm", "training", {{3, 2, 2, 3}, {2}, {2}},
     [](V const& x, V const& w, V const& b) -> V { return V(batch_norm(x, Tensor<double>(), Tensor<double>(), w, b, {.training = true, .eps = 0.1}) * x); }},
    {"batch_norm", "training, of columns, of a formula", {{4, 3}}, [](V const& x) -> V { return V(batch_norm(x * 2 + 1, Tensor<double>(), Tensor<double>(), {.training = true, .eps = 0.1}) * x); }},
    {"batch_norm", "running statistics", {{3, 2, 4}, {2}, {2}},
     [](V const& x, V const& w, V const& b) -> V { return batch_norm(x, Tensor<double>{0.1, -0.2}, Tensor<double>{1.5, 0.5}, w, b, {.training = false}); }},
    {"dropout", "", {{3, 4}}, [](V const& x) -> V { Generator generator(5); return dropout(x, 0.4, generator); }},
    {"dropout", "of a formula", {{3, 4}}, [](V const& x) -> V { Generator generator(5); return V(dropout(x * x, 0.4, generator) * x); }},
};

}  // namespace

TEST_CASE("operations on images and batches have the gradients of finite differences, in every layout") { check_gradients(rows); }
