/// Devices: memory, streams, launches, and questions about them.
#pragma once

#include <situ/device/any.hpp>
#include <situ/device/cpu/device.hpp>
#include <situ/device/cuda/device.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/event.hpp>
#include <situ/device/graph.hpp>
#include <situ/device/nvtx.hpp>
#include <situ/device/pinned.hpp>
#include <situ/device/profile.hpp>
#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/device/transfer_log.hpp>
