#!/bin/sh
# Usage: check_second_order.sh COMPILER REPOSITORY
# What second derivatives are computed by is compiled where create_graph is asked for, and nowhere else: a file that records a formula, or
# products, sums and views, carries none of it, and the graph that it makes is differentiated twice by another file that asks, also behind a
# transfer.
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
cat > "$work/layers.cpp" <<'END'
#include <situ/autograd.hpp>
using namespace situ;
// Σ x xᵀ x + Σ max(x xᵀ, 0) for w = 1.
Variable<double> layers(Variable<double> const& x, Variable<double> const& w) {
  Variable<double> const y = linear(x.unsqueeze(0), w, zeros<double>({2})).flatten();
  Variable<double> const squares = outer(y, y);
  return sum(matmul(squares.t().flip(0), y.reshape({2, 1})), {0, 1}) + sum(linear_relu(squares, w));
}
void first(Variable<double> const& x, Variable<double> const& w) { layers(x, w).backward(); }
END
cat > "$work/asks.cpp" <<'END'
#include <situ/autograd.hpp>
#include <cmath>
using namespace situ;
Variable<double> formula(Variable<double> const& x);
double first(Variable<double> const& x);
Variable<double> layers(Variable<double> const& x, Variable<double> const& w);
int main() {
  Variable<double> x{Tensor<double>{2, -0.5}};
  Tensor<double> const second = grad(Variable<double>(sum(grad(formula(x), x, create_graph))), x);
  // The same through another device, on which nobody asks.
  Variable<double, Emulated<0>> const there = x.to(Emulated<0>{});
  Variable<double> const back = Variable<double, Emulated<0>>(sum(there * there * there)).to(Cpu{});
  Tensor<double> const elsewhere = grad(Variable<double>(sum(grad(back, x, create_graph))), x);
  if (elsewhere.item(0) != 6 * 2.0 || elsewhere.item(1) != 6 * -0.5) return 1;
  // (a + b) (a² + b²) + a² + b² where a b < 0: its gradient sums up to 4 a² + 4 b² + 4 a b + 2 a + 2 b.
  Variable<double> const w{Tensor<double>{{1, 0}, {0, 1}}};
  Tensor<double> const of_layers = grad(Variable<double>(sum(grad(layers(x, w), x, create_graph))), x);
  if (std::fabs(of_layers.item(0) - (8 * 2.0 + 4 * -0.5 + 2)) > 1e-12 || std::fabs(of_layers.item(1) - (8 * -0.5 + 4 * 2.0 + 2)) > 1e-12) return 2;
  double const t = std::tanh(-0.5);
  bool const right = std::fabs(second.item(0) - 6 * 2.0) < 1e-12 && std::fabs(second.item(1) + 2 * t * (1 - t * t)) < 1e-12;
  return right && std::fabs(first(x) - 3 * 4.0) < 1e-12 ? 0 : 1;
}
END
for file in formula layers asks; do
  "$compiler" -std=c++20 -O0 -DSITU_TEST_BASELINE_ONLY -I "$root/include" -c "$work/$file.cpp" -o "$work/$file.o"
done
# Where the graph is made, also gradients that are Variables: as operands of a product or a sum.
seconds() { nm -C "$work/$1.o" | grep -E "record_lanes<|LaneArithmetic<|LaneState<|::add_recorded\(|summed_to<.*Variable<|Rule<.*operator\(\)<.*Variable<" || true; }
[ -n "$(seconds asks)" ] || { echo "the names that this script looks for are gone: adapt it"; exit 1; }
for file in formula layers; do
  [ -z "$(seconds $file)" ] || { echo "$file.cpp carries functions for second derivatives:"; seconds $file; exit 1; }
done
"$compiler" "$work/formula.o" "$work/layers.o" "$work/asks.o" -o "$work/program" -pthread
"$work/program" || { echo "second derivatives of the graph of another file, or of another device, are wrong or missing"; exit 1; }
