/// Expression templates: functions with their derivatives, nodes, lowering, evaluation.
#pragma once

#include <situ/expr/evaluate.hpp>
#include <situ/expr/explain.hpp>
#include <situ/expr/functions.hpp>
#include <situ/expr/lower.hpp>
#include <situ/expr/map.hpp>
#include <situ/expr/node.hpp>
