/// All of situ.
#pragma once

#include <situ/core.hpp>
#include <situ/device.hpp>
#include <situ/expr.hpp>
#include <situ/tensor.hpp>
#include <situ/ops.hpp>
#include <situ/autograd.hpp>
#include <situ/nn.hpp>
#include <situ/optim.hpp>
#include <situ/data.hpp>
#include <situ/parallel.hpp>
#include <situ/io.hpp>
#include <situ/train.hpp>
#include <situ/interop.hpp>
