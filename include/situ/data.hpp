/// Datasets and loaders.
#pragma once

#include <situ/data/dataset.hpp>
#include <situ/data/loader.hpp>
#include <situ/data/subset.hpp>
