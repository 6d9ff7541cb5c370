/// Files: npy, npz, safetensors, CSV; and the datasets in npy and CSV files, in the namespace data.
#pragma once

#include <situ/io/csv.hpp>
#include <situ/io/npy.hpp>
#include <situ/io/npy_dataset.hpp>
#include <situ/io/npz.hpp>
#include <situ/io/safetensors.hpp>
#include <situ/io/state.hpp>
#include <situ/tensor/print.hpp>
