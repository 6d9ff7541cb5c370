/// Several devices in one process, and several processes.
#pragma once

#include <situ/parallel/collectives.hpp>
#include <situ/parallel/data_parallel.hpp>
#include <situ/parallel/distributed_data_parallel.hpp>
