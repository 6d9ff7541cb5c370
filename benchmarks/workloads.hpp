/// The workloads of the comparison. Every library implements each of these functions in a file of its own, in the way
/// that is fastest in it; `harness.cpp` registers them with Google Benchmark and checks what they computed.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace workloads {

using benchmark::State;

/// What the inputs hold: uniform numbers, the same ones for every library.
enum class Input : std::uint32_t {
  a,         ///< in [-3, 3)
  b,         ///< in [-3, 3)
  c,         ///< in [-3, 3)
  positive,  ///< in [0.01, 6)
  near_one,  ///< in [0.9999, 1.0001): a thousand products of it stay of ordinary size
};

inline float value(Input which, std::size_t i) {
  auto h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + static_cast<std::uint32_t>(which) * 0x85EBCA6Bu + 1u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  h ^= h >> 16;
  float unit = static_cast<float>(h >> 8) * 0x1p-24f;
  switch (which) {
    case Input::positive: return 0.01f + 5.99f * unit;
    case Input::near_one: return 0.9999f + 0.0002f * unit;
    default: return 6.0f * unit - 3.0f;
  }
}

/// Number i of some indices in [0, n).
inline std::int64_t index(std::size_t i, std::size_t n) {
  auto h = static_cast<std::uint32_t>(i) * 0x9E3779B9u + 0x7F4A7C15u;
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  h = (h ^ (h >> 15)) * 0x846CA68Bu;
  return static_cast<std::int64_t>((h ^ (h >> 16)) % n);
}
inline std::vector<std::int64_t> indices(std::size_t count, std::size_t n) {
  std::vector<std::int64_t> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = index(i, n);
  return result;
}

inline void fill(Input which, float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) values[i] = value(which, i);
}

enum class Row {
  chain, exp, log, tanh, sigmoid, gelu_tanh, gelu_erf, fresh, power,
  add_row, add_column, outer, add_transposed, sum, max, norm, row_sums, column_sums,
  product, softmax, layer_norm, sort,
  argmax, cumsum, cumsum_rows, cumsum_columns, softmax_columns, layer_norm_cached, small_product, batched_product,
  convolution, convolution_block, masked_select, gather, index_select, scatter_add, argsort, topk, unique,
  product_power, bfloat16_product, variance, pad, roll, stack, stack_last, nonzero
};

/// Compares a result with a double-precision evaluation of the row's formula, and stops the benchmark when it is wrong.
void verify(State& state, Row row, const float* result);
void verify(State& state, Row row, float result);

/// The same for results of `count` elements that are no matrix of the row's size.
void verify(State& state, Row row, const float* result, std::size_t count);

/// The library's name and number of threads.
extern const char* const library;
void set_threads(int threads);

/// Makes the compiler believe that all memory, x included, is read and written here.
template <class T>
inline void keep(const T& x) {
  asm volatile("" : : "r"(&x) : "memory");
}

inline std::size_t size(const State& state) { return static_cast<std::size_t>(state.range(0)); }

// Elementwise, into an existing result of n elements.
void chain(State& state);      ///< y = a*b + c - 0.5*a
void exp(State& state);        ///< y = exp(a)
void log(State& state);        ///< y = log(positive)
void tanh(State& state);       ///< y = tanh(a*b + c)
void sigmoid(State& state);    ///< y = 1 / (1 + exp(-a))
void gelu_tanh(State& state);  ///< y = a/2 * (1 + tanh(sqrt(2/pi) * (a + 0.044715 a^3)))
void gelu_erf(State& state);   ///< y = a/2 * (1 + erf(a / sqrt(2)))

void fresh(State& state);  ///< y = a*b + c in a new result of n elements, freed again
void power(State& state);  ///< z = z*x, 1000 times, from z = x; then the norm of z

// Matrices of n rows and n columns, row after row.
void add_row(State& state);         ///< Y = A + one row, into an existing result
void add_column(State& state);      ///< Y = A + one column, into an existing result
void outer(State& state);           ///< Y = x times the transpose of y, a new result
void add_transposed(State& state);  ///< Y = A + the transpose of B, into an existing result

void sum(State& state);           ///< of n elements, read back
void max(State& state);           ///< of n elements, read back
void norm(State& state);          ///< of n elements, read back
void row_sums(State& state);      ///< of an n x n matrix, into an existing result where the library has a way to
void column_sums(State& state);   ///< of an n x n matrix, likewise

// Rows of an n x n matrix, into an existing result where the library has a way to.
void softmax(State& state);     ///< of every row
void layer_norm(State& state);  ///< of every row: (x - mean) / sqrt(variance + 1e-5)
void product(State& state);     ///< of two n x n matrices
void sort(State& state);        ///< a vector of n elements, copied first

void argmax(State& state);             ///< of n elements, read back
void cumsum(State& state);             ///< running sums of n elements
void cumsum_rows(State& state);        ///< along the rows of an n x n matrix
void cumsum_columns(State& state);     ///< down its columns
void softmax_columns(State& state);    ///< of every column of an n x n matrix
void layer_norm_cached(State& state);  ///< of n rows of 1024 elements
void small_product(State& state);      ///< of two n x n matrices, a new result
void batched_product(State& state);    ///< of pairs of n x n matrices, of which there are 2^18 / n^2

/// The images of the convolutions: n of 3 channels of 32 x 32, which 16 kernels of 3 x 3 go over; padding 1, biases.
struct Images {
  static constexpr std::size_t channels = 3, outputs = 16, side = 32, pooled = side / 2;
};
void convolution(State& state);        ///< and biases
void convolution_block(State& state);  ///< biases, relu, and the maxima of 2 x 2 pixels

/// Selections.
struct Selections {
  static constexpr std::size_t width = 128, rows = 50000, bins = 1000, best = 100;
};
void masked_select(State& state);  ///< the positive ones of n elements; the mask exists
void gather(State& state);         ///< n of n elements, in an order without order
void index_select(State& state);   ///< n rows of a matrix of 50000 rows of 128
void scatter_add(State& state);    ///< n elements into 1000 sums
void argsort(State& state);        ///< of n elements
void topk(State& state);           ///< the 100 largest of n elements, and where they are
void unique(State& state);         ///< of n elements with n / 2 different values

/// A square matrix of n rows whose powers stay of ordinary size: positive, and each row adds up to 1.001.
inline void fill_for_powers(float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    double total = 0;
    for (std::size_t j = 0; j < n; ++j) total += static_cast<double>(value(Input::positive, i * n + j));
    for (std::size_t j = 0; j < n; ++j) values[i * n + j] = static_cast<float>(1.001 * static_cast<double>(value(Input::positive, i * n + j)) / total);
  }
}
void product_power(State& state);     ///< z = the matrix product of z and x, n x n, 1000 times, from z = x; then the norm of z
void bfloat16_product(State& state);  ///< of two n x n matrices of bfloat16

void variance(State& state);    ///< of n elements, divided by n - 1, read back
void pad(State& state);         ///< of an n x n matrix, a zero on each of its four sides
void roll(State& state);        ///< of n elements by rolled_by
void stack(State& state);       ///< of three vectors of n elements, one after the other
void stack_last(State& state);  ///< the same, element by element
void nonzero(State& state);     ///< the places of the positive ones of n elements; the mask exists
inline constexpr std::size_t rolled_by = 12345;

/// For a library that lacks an operation.
inline void lacking(State& state) {
  for (auto _ : state) {
  }
  state.SkipWithError("not in this library");
}

}  // namespace workloads
