/// Optimisers, gradient clipping, schedules of learning rates, and loss scaling.
#pragma once

#include <situ/autograd/print.hpp>
#include <situ/optim/adagrad.hpp>
#include <situ/optim/adam.hpp>
#include <situ/optim/clip_grad.hpp>
#include <situ/optim/grad_scaler.hpp>
#include <situ/optim/rmsprop.hpp>
#include <situ/optim/schedules.hpp>
#include <situ/optim/sgd.hpp>
