// The GPU kernels as functions of C, for tests without TensorFlow. Layouts, parts and lists are in
// host memory. Everything else is in device memory, also what lists point to.

#include <cstdint>
#include <vector>

#include "kernels/block_momentum_gpu.h"
#include "kernels/one_bit_gpu.h"
#include "kernels/threshold_gpu.h"
#include "kernels/transform_gpu.h"
#include "lib/layout.h"

using tf_onebit::FloatType;
using tf_onebit::Layout;
using tf_onebit::LevelRule;
using tf_onebit::OneBitQuantizer;
using tf_onebit::Parts;
using tf_onebit::StateOf;
using tf_onebit::ThresholdUpdate;

namespace gpu = tf_onebit::gpu;

struct CDeviceLayout {
  const Layout* layout;
  const int64_t* table;
};

struct CQuantizer {
  int32_t rule, bits;
  int64_t residual_type;
  void* residual;
  float* sum_of_squares;
  void* scratch;
};

static gpu::DeviceLayout Of(const CDeviceLayout* layout) { return {*layout->layout, layout->table}; }

static OneBitQuantizer Of(const CQuantizer* quantizer) {
  return {static_cast<LevelRule>(quantizer->rule), quantizer->bits,
          static_cast<FloatType>(quantizer->residual_type), quantizer->residual,
          quantizer->sum_of_squares};
}

template <typename Item>
static std::vector<Item> ListOf(const Item* items, int64_t count) {
  return std::vector<Item>(items, items + count);
}

extern "C" {

Layout* layout_new(int64_t num_tensors, const int64_t* sizes, const int64_t* row_sizes,
                   const int64_t* column_sizes, int64_t num_shards, const int64_t* shard_starts) {
  return new Layout({sizes, sizes + num_tensors}, {row_sizes, row_sizes + num_tensors},
                    {column_sizes, column_sizes + num_tensors},
                    {shard_starts, shard_starts + num_shards + 1});
}

void layout_delete(Layout* layout) { delete layout; }

int64_t layout_table_size(const Layout* layout) { return layout->table().size(); }

void layout_table(const Layout* layout, int64_t* out) {
  for (int64_t value : layout->table()) *out++ = value;
}

int64_t one_bit_scratch_bytes(int64_t num_columns) {
  return gpu::OneBitScratchBytes(num_columns);
}

const char* one_bit_encode(const CDeviceLayout* layout, int32_t type, const void* const* gradients,
                           const float* value_scales, const CQuantizer* quantizer,
                           int32_t* messages, void* stream) {
  return gpu::OneBitEncode(Of(layout), static_cast<FloatType>(type),
                      ListOf(gradients, layout->layout->num_tensors()), value_scales,
                      Of(quantizer), messages, quantizer->scratch, stream);
}

const char* one_bit_decode_sum(const CDeviceLayout* layout, int64_t rank, const int32_t* messages,
                               float* aggregate, float* plain, void* stream) {
  return gpu::OneBitDecodeSum(Of(layout), rank, messages, aggregate, plain, stream);
}

const char* one_bit_encode_shard(const CDeviceLayout* layout, int64_t rank, const float* aggregate,
                                 const CQuantizer* quantizer, int32_t* message, void* stream) {
  return gpu::OneBitEncodeShard(Of(layout), rank, aggregate, Of(quantizer), message,
                           quantizer->scratch, stream);
}

const char* one_bit_aggregate(const CDeviceLayout* layout, int64_t rank, const int32_t* messages,
                              const CQuantizer* quantizer, int32_t* message, float* plain,
                              void* stream) {
  return gpu::OneBitAggregate(Of(layout), rank, messages, Of(quantizer), message, plain,
                         quantizer->scratch, stream);
}

const char* one_bit_decode(const CDeviceLayout* layout, int32_t type, const int32_t* messages,
                           int32_t bits, const float* plain, float scale,
                           const float* value_scales, void* const* gradients, void* stream) {
  return gpu::OneBitDecode(Of(layout), static_cast<FloatType>(type), messages, bits, plain, scale,
                      value_scales, ListOf(gradients, layout->layout->num_tensors()), stream);
}

const char* one_bit_decode_add(const CDeviceLayout* layout, const int32_t* messages, int32_t bits,
                               const float* plain, float scale, const float* value_scales,
                               const float* factor, void* const* variables, void* stream) {
  return gpu::OneBitDecodeAdd(Of(layout), messages, bits, plain, scale, value_scales, factor,
                         ListOf(variables, layout->layout->num_tensors()), stream);
}

const char* one_bit_learn_scales(const CDeviceLayout* layout, int32_t type,
                                 const void* const* updates, float* squares, void* stream) {
  return gpu::OneBitLearnScales(*layout->layout, static_cast<FloatType>(type),
                           ListOf(updates, layout->layout->num_tensors()), squares, stream);
}

Parts* parts_new(int64_t num_tensors, const int64_t* sizes, int64_t part_size) {
  return new Parts({sizes, sizes + num_tensors}, part_size, Parts::kWhole);
}

void parts_delete(Parts* parts) { delete parts; }

int64_t parts_table_size(const Parts* parts) { return parts->table().size(); }

void parts_table(const Parts* parts, int64_t* out) {
  for (int64_t value : parts->table()) *out++ = value;
}

int64_t threshold_scratch_bytes(const Parts* parts) {
  return gpu::ThresholdScratchBytes(*parts);
}

const char* threshold_encode(const Parts* parts, const int64_t* table, int32_t type,
                             const void* const* gradients, float* residual, const float* threshold,
                             const float* magnitude, const float* step, float decay,
                             int64_t capacity, int32_t* message, void* scratch, void* stream) {
  return gpu::ThresholdEncode({*parts, table}, static_cast<FloatType>(type),
                         ListOf(gradients, parts->num_tensors()), residual, threshold, magnitude,
                         step, decay, capacity, message, scratch, stream);
}

const char* threshold_decode_sum(const Parts* parts, const int64_t* table, int32_t type,
                                 const int32_t* messages, int64_t num_rows, int64_t num_words,
                                 float scale, void* const* gradients, void* stream) {
  return gpu::ThresholdDecodeSum({*parts, table}, static_cast<FloatType>(type),
                            {messages, num_rows, num_words}, scale,
                            ListOf(gradients, parts->num_tensors()), stream);
}

const char* threshold_decode_add(const Parts* parts, const int64_t* table, const int32_t* messages,
                                 int64_t num_rows, int64_t num_words, float scale,
                                 const float* factor, void* const* variables, void* stream) {
  return gpu::ThresholdDecodeAdd({*parts, table}, {messages, num_rows, num_words}, scale, factor,
                                 ListOf(variables, parts->num_tensors()), stream);
}

const char* threshold_update(const Parts* parts, const int64_t* table, const int32_t* messages,
                             int64_t num_rows, int64_t num_words, int32_t update,
                             void* const* variables, void* stream) {
  return gpu::UpdateVariables({*parts, table}, {messages, num_rows, num_words},
                              static_cast<ThresholdUpdate>(update),
                              ListOf(variables, parts->num_tensors()), stream);
}

int64_t adagrad_scratch_bytes(const Parts* runs) {
  return gpu::AdagradScratchBytes(*runs);
}

const char* adagrad_accumulate(const Parts* runs, const int64_t* table, const float* gradient,
                               const double* share, float* average, double* sums, void* scratch,
                               void* stream) {
  return gpu::AdagradAccumulate(*runs, table, gradient, share, average, sums, scratch,
                                           stream);
}

const char* adagrad_normalize(const Parts* runs, const float* gradient, const float* average,
                              const double* means, float epsilon, float* out, void* stream) {
  return gpu::AdagradNormalize(*runs, gradient, average, means, epsilon, out, stream);
}

const char* momentum(int64_t count, const float* gradient, float* velocity, float momentum,
                     int32_t nesterov, const float* factor, float* out, void* stream) {
  return gpu::Momentum(count, gradient, velocity, {momentum, nesterov != 0}, factor, out, stream);
}

const char* adam(int64_t count, const float* gradient, float* average, float* square,
                 const float* rule, const float* step, float* out, void* stream) {
  return gpu::Adam(count, gradient, average, square,
                   tf_onebit::MakeAdamRule(rule[0], rule[1], rule[2]),
                   {step, step + 1, step + 2}, out, stream);
}

#define BLOCK_MOMENTUM(T, NAME)                                                                   \
  const char* block_difference_##NAME(                                                            \
      int64_t n, const T* const* variables, const StateOf<T>* const* globals,                     \
      const StateOf<T>* const* deltas, const int64_t* sizes, const double* coefficients,          \
      T* const* differences, void* stream) {                                                      \
    return gpu::BlockDifference<T>(                                                    \
        ListOf(variables, n), ListOf(globals, n), ListOf(deltas, deltas == nullptr ? 0 : n),      \
        ListOf(sizes, n), static_cast<StateOf<T>>(coefficients[0]),                               \
        static_cast<StateOf<T>>(coefficients[1]), ListOf(differences, n), stream);                \
  }                                                                                               \
  const char* block_update_##NAME(int64_t n, const T* const* means, const int64_t* sizes,         \
                                  const double* coefficients, int32_t nesterov, int32_t relative, \
                                  T* const* variables, StateOf<T>* const* globals,                \
                                  StateOf<T>* const* deltas, void* stream) {                      \
    using State = StateOf<T>;                                                                     \
    return gpu::BlockUpdate<T>(                                                        \
        {static_cast<State>(coefficients[0]), static_cast<State>(coefficients[1]),                \
         static_cast<State>(coefficients[2]), nesterov != 0, relative != 0},                      \
        ListOf(means, n), ListOf(sizes, n), ListOf(variables, n), ListOf(globals, n),             \
        ListOf(deltas, n), stream);                                                               \
  }                                                                                               \
  const char* late_block_update_##NAME(                                                           \
      int64_t n, const T* const* sums, const int64_t* sizes, const double* coefficients,          \
      int32_t nesterov, const T* const* changes, T* const* variables,                             \
      StateOf<T>* const* globals, StateOf<T>* const* deltas, void* stream) {                      \
    using State = StateOf<T>;                                                                     \
    const tf_onebit::BlockUpdateRule<State> block = {                                             \
        static_cast<State>(coefficients[0]), static_cast<State>(coefficients[1]),                 \
        static_cast<State>(coefficients[2]), nesterov != 0, true};                                \
    return gpu::LateBlockUpdate<T>(                                                               \
        {block, static_cast<State>(coefficients[3]), static_cast<State>(coefficients[4])},        \
        ListOf(sums, n), ListOf(changes, n), ListOf(sizes, n), ListOf(variables, n),              \
        ListOf(globals, n), ListOf(deltas, n), stream);                                           \
  }                                                                                               \
  const char* moments_update_##NAME(int64_t n, const T* const* means, const int64_t* sizes,       \
                                    const double* coefficients, int32_t relative,                 \
                                    T* const* variables, StateOf<T>* const* begins,               \
                                    void* stream) {                                               \
    using State = StateOf<T>;                                                                     \
    return gpu::MomentsUpdate<T>(                                                      \
        {static_cast<State>(coefficients[0]), static_cast<State>(coefficients[1]),                \
         relative != 0},                                                                          \
        ListOf(means, n), ListOf(sizes, n), ListOf(variables, n), ListOf(begins, n), stream);     \
  }
BLOCK_MOMENTUM(float, float32)
BLOCK_MOMENTUM(double, float64)
BLOCK_MOMENTUM(tf_onebit::float16, float16)
BLOCK_MOMENTUM(tf_onebit::bfloat16, bfloat16)
#undef BLOCK_MOMENTUM

}  // extern "C"
