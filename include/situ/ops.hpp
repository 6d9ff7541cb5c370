/// Operations that are not elementwise.
#pragma once

#include <situ/ops/compare.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
