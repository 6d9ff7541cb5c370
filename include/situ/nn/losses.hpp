/// The losses: cross_entropy, nll_loss, mse_loss, l1_loss, smooth_l1_loss, binary_cross_entropy_with_logits, kl_div.
#pragma once

#include <situ/nn/cross_entropy.hpp>
#include <situ/nn/pair_losses.hpp>
