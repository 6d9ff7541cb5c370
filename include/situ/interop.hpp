/// Tensors of other libraries: what needs nothing of theirs to be included.
#pragma once

#include <situ/interop/dlpack.hpp>
