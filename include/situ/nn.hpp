/// Modules, layers and losses.
#pragma once

#include <situ/autograd/print.hpp>
#include <situ/nn/activations.hpp>
#include <situ/nn/attention.hpp>
#include <situ/nn/batch_norm.hpp>
#include <situ/nn/conv2d.hpp>
#include <situ/nn/dropout.hpp>
#include <situ/nn/embedding.hpp>
#include <situ/nn/flatten.hpp>
#include <situ/nn/init.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/nn/lstm.hpp>
#include <situ/nn/mixed.hpp>
#include <situ/nn/module.hpp>
#include <situ/nn/move.hpp>
#include <situ/nn/normalization.hpp>
#include <situ/nn/pool2d.hpp>
#include <situ/nn/residual.hpp>
#include <situ/nn/sequential.hpp>
#include <situ/nn/summary.hpp>
#include <situ/nn/transformer.hpp>
