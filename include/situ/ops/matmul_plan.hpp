/// The geometry of a product: which matrices are multiplied, and where they lie.
#pragma once

#include <situ/core/layout.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Where the matrices of a product lie: strides in elements.
struct ProductPlan {
  Shape shape;  ///< of the result
  int64_t m = 1, n = 1, k = 1;
  int64_t a_i = 0, a_k = 0, b_k = 0, b_j = 0;
  int rank = 0;  ///< of the batch
  int64_t sizes[max_rank], a[max_rank], b[max_rank], c[max_rank];

  int64_t batches() const {
    int64_t count = 1;
    for (int axis = 0; axis < rank; ++axis) count = extended(count, sizes[axis]);
    return count;
  }
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail_product(char const* who, Layout const& a, Layout const& b, int64_t left, int64_t right,
                                                                      char const* what) {
  fail<ShapeError>(who, ": shapes ", a.shape, " and ", b.shape, " cannot be multiplied: ", left, " != ", right, what);
}

/// Reads the geometry of a product from its operands. Throws ShapeError.
SITU_NOINLINE inline ProductPlan plan_product(Layout const& a, Layout const& b, char const* who) {
  if (a.rank() == 0 || b.rank() == 0) {
    fail<ShapeError>(who, ": shapes ", a.shape, " and ", b.shape, " cannot be multiplied: each operand needs an axis; use * for products with one number");
  }
  ProductPlan plan;
  int const a_batch = a.rank() < 2 ? 0 : a.rank() - 2, b_batch = b.rank() < 2 ? 0 : b.rank() - 2;
  plan.k = a.shape.back(), plan.a_k = a.strides.back();
  if (a.rank() > 1) plan.m = a.shape[a_batch], plan.a_i = a.strides[a_batch];
  int64_t const inner = b.shape[b_batch];
  plan.b_k = b.strides[b_batch];
  if (b.rank() > 1) plan.n = b.shape.back(), plan.b_j = b.strides.back();
  if (plan.k != inner) fail_product(who, a, b, plan.k, inner, "");

  int const rank = a_batch > b_batch ? a_batch : b_batch;
  for (int axis = 0; axis < rank; ++axis) {
    int const p = axis - (rank - a_batch), q = axis - (rank - b_batch);
    int64_t const na = p < 0 ? 1 : a.shape[p], nb = q < 0 ? 1 : b.shape[q];
    if (na != nb && na != 1 && nb != 1) fail_product(who, a, b, na, nb, ", the batches do not broadcast");
    plan.shape.push_back(na == 1 ? nb : na);
    plan.sizes[axis] = plan.shape.back();
    plan.a[axis] = na == 1 ? 0 : a.strides[p], plan.b[axis] = nb == 1 ? 0 : b.strides[q];
  }
  plan.rank = rank;
  if (a.rank() > 1) plan.shape.push_back(plan.m);
  if (b.rank() > 1) plan.shape.push_back(plan.n);
  if (rank == 0) return plan;

  int64_t step = extended(plan.m, plan.n);
  for (int axis = rank - 1; axis >= 0; --axis) plan.c[axis] = step, step = extended(step, plan.sizes[axis]);
  // Batches that multiply the same B are rows of one larger product, where A's rows follow each other.
  while (plan.rank > 0) {
    int const axis = plan.rank - 1;
    if (plan.sizes[axis] != 1) {
      if (plan.b[axis] != 0 || (plan.m != 1 && plan.a[axis] != plan.m * plan.a_i)) break;
      if (plan.m == 1) plan.a_i = plan.a[axis];
      plan.m = extended(plan.m, plan.sizes[axis]);
    }
    --plan.rank;
  }
  // Neighbouring axes that all three step through as through one.
  for (int axis = plan.rank - 1; axis > 0; --axis) {
    int const outer = axis - 1;
    int64_t const size = plan.sizes[axis];
    if (plan.a[outer] != plan.a[axis] * size || plan.b[outer] != plan.b[axis] * size) continue;
    plan.sizes[outer] = extended(plan.sizes[outer], size);
    plan.a[outer] = plan.a[axis], plan.b[outer] = plan.b[axis], plan.c[outer] = plan.c[axis];
    --plan.rank;
    for (int k = axis; k < plan.rank; ++k) plan.sizes[k] = plan.sizes[k + 1], plan.a[k] = plan.a[k + 1], plan.b[k] = plan.b[k + 1], plan.c[k] = plan.c[k + 1];
  }
  return plan;
}

/// The activation of a product that has none. Others are functors of expr/functions.hpp.
struct identity {
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x) {
    return x;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
