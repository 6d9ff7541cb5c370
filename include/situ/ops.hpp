/// Operations that are not elementwise.
#pragma once

#include <situ/ops/arrange.hpp>
#include <situ/ops/attention.hpp>
#include <situ/ops/batch_norm.hpp>
#include <situ/ops/compare.hpp>
#include <situ/ops/concat.hpp>
#include <situ/ops/conv2d.hpp>
#include <situ/ops/einsum.hpp>
#include <situ/ops/index.hpp>
#include <situ/ops/linalg.hpp>
#include <situ/ops/linear.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/ops/matrix_parts.hpp>
#include <situ/ops/normalization.hpp>
#include <situ/ops/pad.hpp>
#include <situ/ops/pool2d.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/random_ops.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/sampling.hpp>
#include <situ/ops/scan.hpp>
#include <situ/ops/searchsorted.hpp>
#include <situ/ops/select.hpp>
#include <situ/ops/softmax.hpp>
#include <situ/ops/sort.hpp>
#include <situ/ops/unique.hpp>
