// error: attention_masks_are_bool_or_floating_numbers_of_the_scores_type
// in-header
#include <situ/ops/attention.hpp>

void misuse(situ::Tensor<float> const& x, situ::Tensor<std::int64_t> const& mask) {
#ifdef SITU_EXPECT_ERROR
  (void)situ::scaled_dot_product_attention(x, x, x, {.mask = mask});
#else
  (void)situ::scaled_dot_product_attention(x, x, x, {.mask = mask > 0}), (void)situ::scaled_dot_product_attention(x, x, x, {.mask = situ::cast<float>(mask)});
#endif
}
