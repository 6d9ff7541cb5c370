// The functions of cuBLAS and cuBLASLt that situ calls, as plain loops on the host, with the real ones' refusals.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int invalid_value = 7, type_float = 0, type_double = 1, type_half = 2;
int size_of(int type) { return type == type_float ? 4 : type == type_double ? 8 : 2; }

double number(void const* from, int type, std::int64_t at) {
  char const* const p = static_cast<char const*>(from) + at * size_of(type);
  if (type == type_double) {
    double x;
    return std::memcpy(&x, p, sizeof x), x;
  }
  float x;
  if (type == type_float) return std::memcpy(&x, p, sizeof x), x;
  if (type == type_half) {
    _Float16 half;
    return std::memcpy(&half, p, sizeof half), static_cast<float>(half);
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  std::uint32_t const wide = static_cast<std::uint32_t>(bits) << 16;
  return std::memcpy(&x, &wide, sizeof x), x;
}
void put(void* to, int type, std::int64_t at, double value) {
  char* const p = static_cast<char*>(to) + at * size_of(type);
  if (type == type_double) return (void)std::memcpy(p, &value, sizeof value);
  auto const x = static_cast<float>(value);
  if (type == type_float) return (void)std::memcpy(p, &x, sizeof x);
  if (type == type_half) {
    auto const half = static_cast<_Float16>(x);
    return (void)std::memcpy(p, &half, sizeof half);
  }
  std::uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  std::uint16_t const bits = x != x ? 0x7fff : static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  std::memcpy(p, &bits, sizeof bits);
}

struct Matrices {
  int type;
  std::int64_t step, between;
  bool transposed;
};
struct Epilogue {
  void const* bias = nullptr;
  int bias_type = 0;
  unsigned activation = 0;
};

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, double alpha, void const* a, Matrices const& a_is, void const* b, Matrices const& b_is, double beta, void* c,
              Matrices const& c_is, std::int64_t batches, Epilogue const& then) {
  auto const element = [](void const* from, Matrices const& is, std::int64_t batch, std::int64_t row, std::int64_t column) {
    return number(from, is.type, batch * is.between + (is.transposed ? column + row * is.step : row + column * is.step));
  };
  for (std::int64_t batch = 0; batch < batches; ++batch) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::int64_t l = 0; l < k; ++l) sum += element(a, a_is, batch, i, l) * element(b, b_is, batch, l, j);
        sum *= alpha;
        if (beta != 0) sum += beta * element(c, c_is, batch, i, j);
        if (then.bias) sum += number(then.bias, then.bias_type, i);
        if (then.activation & 2u) sum = sum < 0 ? 0 : sum;
        if (then.activation & 32u) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        put(c, c_is.type, batch * c_is.between + i + j * c_is.step, sum);
      }
    }
  }
}

struct Description {
  int transposed_a = 0, transposed_b = 0, scale_type = 0, bias_type = 0;
  unsigned epilogue = 1;
  void const* bias = nullptr;
};
struct Layout {
  int type;
  std::uint64_t rows, columns;
  std::int64_t step;
  std::int32_t batches = 1;
  std::int64_t between = 0;
};
template <class T>
int set(T& to, void const* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return invalid_value;
  return std::memcpy(&to, value, bytes), 0;
}
void* working_memory = nullptr;  // what the caller has brought
std::size_t working_bytes = 0;
int make_handle(void** handle) {
  static int known;
  return *handle = &known, 0;
}

}  // namespace

extern "C" {

int cublasCreate_v2(void** handle) { return make_handle(handle); }
int cublasSetStream_v2(void*, void*) { return working_memory = nullptr, 0; }
int cublasSetWorkspace_v2(void*, void* memory, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(memory) % 256 != 0) return invalid_value;
  return working_memory = memory, working_bytes = bytes, 0;
}
int cublasSetMathMode(void*, int) { return 0; }
char const* cublasGetStatusString(int) { return "refused by the products on the host"; }
int cublasGemmStridedBatchedEx_64(void*, int transposed_a, int transposed_b, std::int64_t m, std::int64_t n, std::int64_t k, void const* alpha, void const* a, int type_a,
                                  std::int64_t lda, long long stride_a, void const* b, int type_b, std::int64_t ldb, long long stride_b, void const* beta, void* c,
                                  int type_c, std::int64_t ldc, long long stride_c, std::int64_t batches, int compute, int) {
  auto const at_least = [](std::int64_t step, std::int64_t rows) { return step >= rows && step >= 1; };
  if (m < 0 || n < 0 || k < 0 || batches < 0) return invalid_value;
  if (!at_least(lda, transposed_a ? k : m) || !at_least(ldb, transposed_b ? n : k) || !at_least(ldc, m)) return invalid_value;
  int const scale = compute == 70 ? type_double : type_float;
  if (working_memory) std::memset(working_memory, 0xff, working_bytes);
  multiply(m, n, k, number(alpha, scale, 0), a, {type_a, lda, stride_a, transposed_a != 0}, b, {type_b, ldb, stride_b, transposed_b != 0}, number(beta, scale, 0), c,
           {type_c, ldc, stride_c, false}, batches, {});
  return 0;
}

int cublasLtCreate(void** handle) { return make_handle(handle); }
int cublasLtMatmulDescCreate(void** result, int, int scale_type) {
  auto* const description = new Description;
  description->scale_type = scale_type;
  return *result = description, 0;
}
int cublasLtMatmulDescSetAttribute(void* to, int attribute, void const* value, std::size_t bytes) {
  auto& description = *static_cast<Description*>(to);
  switch (attribute) {
    case 3: return set(description.transposed_a, value, bytes);
    case 4: return set(description.transposed_b, value, bytes);
    case 7: return set(description.epilogue, value, bytes);
    case 8: return set(description.bias, value, bytes);
    case 26: return set(description.bias_type, value, bytes);
    default: return invalid_value;
  }
}
int cublasLtMatmulDescDestroy(void* description) { return delete static_cast<Description*>(description), 0; }
int cublasLtMatrixLayoutCreate(void** result, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t step) {
  *result = new Layout{type, rows, columns, step};
  return step < static_cast<std::int64_t>(rows) ? invalid_value : 0;
}
int cublasLtMatrixLayoutSetAttribute(void* to, int attribute, void const* value, std::size_t bytes) {
  auto& layout = *static_cast<Layout*>(to);
  return attribute == 5 ? set(layout.batches, value, bytes) : attribute == 6 ? set(layout.between, value, bytes) : invalid_value;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), 0; }
int cublasLtMatmulPreferenceCreate(void** preference) { return make_handle(preference); }
int cublasLtMatmulPreferenceSetAttribute(void*, int, void const*, std::size_t) { return 0; }
int cublasLtMatmulPreferenceDestroy(void*) { return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* found) {
  struct Heuristic {
    std::uint64_t algorithm[8];
    std::size_t workspace;
    int state;
    float waves;
    int reserved[4];
  } const any{{}, 1024, 0, 1, {}};
  std::memcpy(results, &any, sizeof any);
  return *found = 1, 0;
}
int cublasLtMatmul(void*, void* how, void const* alpha, void const* a, void* a_layout, void const* b, void* b_layout, void const* beta, void const*, void*, void* d,
                   void* d_layout, void const*, void*, std::size_t, void*) {
  auto const& is = *static_cast<Description const*>(how);
  auto const &left = *static_cast<Layout const*>(a_layout), &right = *static_cast<Layout const*>(b_layout), &result = *static_cast<Layout const*>(d_layout);
  std::uint64_t const m = result.rows, n = result.columns, k = is.transposed_a ? left.rows : left.columns;
  if ((is.transposed_a ? left.columns : left.rows) != m || (is.transposed_b ? right.rows : right.columns) != n || (is.transposed_b ? right.columns : right.rows) != k) {
    return invalid_value;
  }
  if (reinterpret_cast<std::uintptr_t>(is.bias) % 16 != 0) return invalid_value;  // kernels read 16 bytes at once
  auto const count = [](std::uint64_t x) { return static_cast<std::int64_t>(x); };
  multiply(count(m), count(n), count(k), number(alpha, is.scale_type, 0), a, {left.type, left.step, left.between, is.transposed_a != 0}, b,
           {right.type, right.step, right.between, is.transposed_b != 0}, number(beta, is.scale_type, 0), d, {result.type, result.step, result.between, false},
           result.batches, {is.epilogue & 4u ? is.bias : nullptr, is.bias_type, is.epilogue & 34u});
  return 0;
}

}
