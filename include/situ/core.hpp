/// What a tensor is made of: devices as tags, element types, shapes, layouts, storage, errors.
#pragma once

#include <situ/core/device.hpp>
#include <situ/core/error.hpp>
#include <situ/core/layout.hpp>
#include <situ/core/list.hpp>
#include <situ/core/scalar.hpp>
#include <situ/core/shape.hpp>
#include <situ/core/storage.hpp>
