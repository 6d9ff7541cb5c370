/// Tensors of other libraries: what needs nothing of theirs to be included.
#pragma once

#include <situ/interop/dlpack.hpp>
#include <situ/interop/eigen.hpp>
#include <situ/interop/mdspan.hpp>
