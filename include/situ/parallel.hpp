/// Several devices in one process.
#pragma once

#include <situ/parallel/data_parallel.hpp>
