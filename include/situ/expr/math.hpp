/// The mathematical functions of expressions: each one for numbers, on every device, and for CPU packs.
#pragma once

#include <situ/expr/math/basic.hpp>
#include <situ/expr/math/detail.hpp>
#include <situ/expr/math/erf.hpp>
#include <situ/expr/math/exp.hpp>
#include <situ/expr/math/gamma.hpp>
#include <situ/expr/math/hyperbolic.hpp>
#include <situ/expr/math/log.hpp>
#include <situ/expr/math/pow.hpp>
#include <situ/expr/math/sigmoid.hpp>
#include <situ/expr/math/trig.hpp>
