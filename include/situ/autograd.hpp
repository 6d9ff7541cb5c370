/// Autograd: tensors that record, and gradients.
#pragma once

#include <situ/autograd/arrange.hpp>
#include <situ/autograd/attention.hpp>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/batch_norm.hpp>
#include <situ/autograd/checkpoint.hpp>
#include <situ/autograd/concat.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/autograd/function.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/autograd/index.hpp>
#include <situ/autograd/linalg.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/autograd/operands.hpp>
#include <situ/autograd/pool2d.hpp>
#include <situ/autograd/print.hpp>
#include <situ/autograd/random.hpp>
#include <situ/autograd/reduce.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/autograd/second_order.hpp>
#include <situ/autograd/sort.hpp>
#include <situ/autograd/values.hpp>
#include <situ/autograd/writes.hpp>
