#pragma once
#include <situ/core/device.hpp>
