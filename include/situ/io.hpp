/// Files.
#pragma once

#include <situ/io/csv.hpp>
#include <situ/io/npy.hpp>
#include <situ/io/npy_dataset.hpp>
#include <situ/io/npz.hpp>
#include <situ/io/safetensors.hpp>
#include <situ/io/state.hpp>
