/// Training: the loop around modules, optimisers and data, in the namespace learning.
#pragma once

#include <situ/autograd/print.hpp>
#include <situ/train/accuracy.hpp>
#include <situ/train/checkpoint.hpp>
#include <situ/train/history.hpp>
#include <situ/train/progress.hpp>
#include <situ/train/trainer.hpp>
