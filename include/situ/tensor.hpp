/// Tensors: views, factories, transfers, printing, and everything elementwise.
#pragma once

#include <situ/core.hpp>
#include <situ/device.hpp>
#include <situ/expr.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/print.hpp>
#include <situ/tensor/tensor.hpp>
#include <situ/tensor/transfer.hpp>
#include <situ/tensor/transfer_async.hpp>
