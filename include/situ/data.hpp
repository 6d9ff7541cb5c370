/// Datasets in memory, splits and loaders; datasets in files come with io.hpp.
#pragma once

#include <situ/data/dataset.hpp>
#include <situ/data/loader.hpp>
#include <situ/data/subset.hpp>
#include <situ/tensor/print.hpp>
