/// Files.
#pragma once

#include <situ/io/npy.hpp>
