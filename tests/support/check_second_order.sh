#!/bin/sh
# Usage: check_second_order.sh COMPILER REPOSITORY
# What second derivatives are computed by is compiled where create_graph is asked for, and nowhere else: a file that records a formula
# carries none of it, and the graph that it makes is differentiated twice by another file that asks, also behind a transfer.
set -eu
compiler=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/formula.cpp" <<'END'
#include <situ/autograd.hpp>
using namespace situ;
Variable<double> formula(Variable<double> const& x) { return sum(where(x > 0.0, x * x * x, tanh(x))); }
double first(Variable<double> const& x) {
  formula(x).backward();
  return x.grad().item(0);
}
END
cat > "$work/asks.cpp" <<'END'
#include <situ/autograd.hpp>
#include <cmath>
using namespace situ;
Variable<double> formula(Variable<double> const& x);
double first(Variable<double> const& x);
int main() {
  Variable<double> x{Tensor<double>{2, -0.5}};
  Tensor<double> const second = grad(Variable<double>(sum(grad(formula(x), x, create_graph))), x);
  // The same through another device, on which nobody asks.
  Variable<double, Emulated<0>> const there = x.to(Emulated<0>{});
  Variable<double> const back = Variable<double, Emulated<0>>(sum(there * there * there)).to(Cpu{});
  Tensor<double> const elsewhere = grad(Variable<double>(sum(grad(back, x, create_graph))), x);
  if (elsewhere.item(0) != 6 * 2.0 || elsewhere.item(1) != 6 * -0.5) return 1;
  double const t = std::tanh(-0.5);
  bool const right = std::fabs(second.item(0) - 6 * 2.0) < 1e-12 && std::fabs(second.item(1) + 2 * t * (1 - t * t)) < 1e-12;
  return right && std::fabs(first(x) - 3 * 4.0) < 1e-12 ? 0 : 1;
}
END
for file in formula asks; do
  "$compiler" -std=c++20 -O0 -I "$root/include" -c "$work/$file.cpp" -o "$work/$file.o"
done
count() { nm -C "$work/$1.o" | grep -c -E "record_lanes<|LaneArithmetic<|LaneState<" || true; }
[ "$(count asks)" -gt 0 ] || { echo "the names that this script looks for are gone: adapt it"; exit 1; }
[ "$(count formula)" -eq 0 ] || { echo "a formula carries $(count formula) functions for second derivatives:"; nm -C "$work/formula.o" | grep -E "record_lanes<|LaneArithmetic<|LaneState<"; exit 1; }
"$compiler" "$work/formula.o" "$work/asks.o" -o "$work/program" -pthread
"$work/program" || { echo "second derivatives of the graph of another file, or of another device, are wrong or missing"; exit 1; }
