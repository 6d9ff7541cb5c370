/// Operations that are not elementwise.
#pragma once

#include <situ/ops/reduce.hpp>
