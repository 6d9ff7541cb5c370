// Two translation units, compiled in different ways, that become one program.
#pragma once
#include <vector>

// The same computation in both, through situ: tanh(2x + 1), and the sum of its squares at the end.
std::vector<float> by_first(const std::vector<float>& x);
std::vector<float> by_second(const std::vector<float>& x);

// How many of its places of extrema are wrong.
int places_by_first();

// How many of its values of exp and log are more than a few ULP off.
int inaccurate_by_first();

// How many lengths of `a*b + c - 0.5*a` differ from the same with a copy of a.
int unlike_by_first();

// Where both see the same situ, a tensor crosses: made by the second, used by the first.
int crossing_by_first();
