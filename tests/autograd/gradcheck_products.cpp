/// The table's products, attention and LSTM.
#include <doctest/doctest.h>

#include <autograd/gradcheck_table.hpp>

#include <situ/autograd/attention.hpp>
#include <situ/autograd/lstm.hpp>
#include <situ/autograd/matmul.hpp>

using namespace situ;
using namespace situ_test;

namespace {

Rows const rows{
    {"matmul", "", {{3, 4}, {4, 2}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "matrix and vector", {{3, 4}, {4}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "vector and matrix", {{3}, {3, 2}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "vectors", {{5}, {5}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "batch and matrix", {{2, 3, 2}, {2, 3}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "matrix and batch", {{3, 2}, {2, 2, 3}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "batches that broadcast", {{2, 1, 2, 3}, {3, 3, 1}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "batch and vector", {{2, 3, 2}, {2}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "vector and batch", {{3}, {2, 3, 2}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, twice},
    {"matmul", "nothing to sum", {{2, 0}, {0, 3}}, [](V const& a, V const& b) -> V { return matmul(a, b); }, plain},
    {"matmul", "formulas", {{3, 2}, {2, 2}}, [](V const& a, V const& b) -> V { return matmul(tanh(a), b * 2 + 1); }, twice},
    {"matmul", "itself", {{3, 3}, {3}}, [](V const& a, V const& b) -> V { return matmul(matmul(a, a.t()), b); }, twice},
    {"bmm", "", {{2, 3, 2}, {2, 2, 2}}, [](V const& a, V const& b) -> V { return bmm(a, b); }, twice},
    {"dot", "", {{5}, {5}}, [](V const& a, V const& b) -> V { return dot(a, b); }, twice},
    {"dot", "of formulas", {{5}, {5}}, [](V const& a, V const& b) -> V { return dot(tanh(a), b * b); }, twice},
    {"outer", "", {{3}, {4}}, [](V const& a, V const& b) -> V { return outer(a, b); }, twice},
    {"linear", "", {{3, 4}, {2, 4}}, [](V const& a, V const& b) -> V { return linear(a, b); }, twice},
    {"linear", "of batches", {{2, 2, 3}, {2, 3}}, [](V const& a, V const& b) -> V { return linear(a, b, b.t()[0]); }, twice},
    {"linear", "of a vector", {{3}, {2, 3}}, [](V const& a, V const& b) -> V { return linear(a, b); }, twice},
    {"linear", "of one output", {{2, 3}, {3}}, [](V const& a, V const& b) -> V { return linear(a, b, b[1]); }, twice},
    {"linear_relu", "", {{3, 4}, {2, 4}}, [](V const& a, V const& b) -> V { return linear_relu(a, b, b.t()[0]); }, twice},
    {"linear_gelu_tanh", "", {{3, 2}, {2, 2}}, [](V const& a, V const& b) -> V { return linear_gelu_tanh(a, b, b[0]); }, twice},
    {"einsum", "of a product", {{3, 2}, {2, 4}}, [](V const& a, V const& b) -> V { return einsum("ij,jk->ik", a, b); }, twice},
    {"einsum", "of a batch, transposed", {{2, 3, 2}, {2, 2, 2}}, [](V const& a, V const& b) -> V { return einsum("bij,bjk->kbi", a, b); }, twice},
    {"einsum", "that sums one operand alone", {{3, 2}, {4}}, [](V const& a, V const& b) -> V { return einsum("ij,k->i", a, b); }, twice},
    {"einsum", "elementwise", {{3, 2}, {2}}, [](V const& a, V const& b) -> V { return einsum("ij,j->ij", a, b); }, twice},
    {"einsum", "of a diagonal", {{3, 3}, {3}}, [](V const& a, V const& b) -> V { return einsum("ii,i->i", a, b); }, twice},
    {"einsum", "trace", {{3, 3}, {3}}, [](V const& a, V const& b) -> V { return einsum("ii", a) * b; }, twice},
    {"einsum", "that broadcasts", {{3, 1}, {3, 4}}, [](V const& a, V const& b) -> V { return einsum("ij,ij->i", a, b); }, twice},
    {"einsum", "of ellipses", {{2, 3, 2}, {3, 2}}, [](V const& a, V const& b) -> V { return einsum("...i,...i->...", a, b); }, twice},
    {"einsum", "of three", {{2, 3}, {3, 2}}, [](V const& a, V const& b) -> V { return einsum("ij,jk,kl->il", a, b, a); }, twice},
    {"einsum", "of a constant first", {{2, 3}, {3, 2}}, [](V const& a, V const& b) -> V { return einsum("xi,ij,jk->xk", sample({2, 2}), a, b); }, twice},
    {"scaled_dot_product_attention", "", {{2, 3, 4}, {2, 3, 4}, {2, 3, 4}}, [](V const& q, V const& k, V const& v) -> V { return scaled_dot_product_attention(q, k, v); }},
    {"scaled_dot_product_attention", "causal, of heads", {{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}},
     [](V const& q, V const& k, V const& v) -> V { return scaled_dot_product_attention(q, k, v, {.causal = true}); }},
    {"scaled_dot_product_attention", "formulas, shapes of their own", {{2, 3, 4}, {2, 5, 4}, {2, 5, 2}},
     [](V const& q, V const& k, V const& v) -> V { return scaled_dot_product_attention(q * 2, tanh(k), v * v); }},
    {"lstm", "a layer with states and biases", {{2, 2, 3}, {8, 3}, {8, 2}}, [](V const& x, V const& w, V const& r) -> V {
       V const h(x[0](all(), range(0, 2)).contiguous()), c(x[1](all(), range(1, 3)).contiguous());
       return detail::recorded_lstm(V(x.contiguous()), h, c, w, r, V(w.t()[0]), V(r.t()[1]));
     }},
};

}  // namespace

TEST_CASE("products, attention and LSTM have the gradients of finite differences, in every layout") { check_gradients(rows); }
