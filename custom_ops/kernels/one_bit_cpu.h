// The one-bit ops on the CPU: they find columns and their messages, and divide the work among
// threads. one_bit_columns.h has the loops over a column's values. For files that include
// TensorFlow.

#ifndef TF_ONEBIT_KERNELS_ONE_BIT_CPU_H_
#define TF_ONEBIT_KERNELS_ONE_BIT_CPU_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/one_bit_columns.h"
#include "kernels/op_common.h"
#include "lib/layout.h"
#include "lib/one_bit.h"

namespace tf_onebit {

class OneBitOnCpu {
 public:
  absl::Status Encode(tensorflow::OpKernelContext* context, const Layout& layout, FloatType type,
                      const std::vector<const void*>& gradients, const float* value_scales,
                      const OneBitQuantizer& quantizer, int32_t* messages) {
    WithType(type, [&](auto zero) {
      WithResidual(quantizer, [&](auto* residual) {
        EncodeAs<decltype(zero)>(context, layout, gradients, value_scales, quantizer, residual,
                                 messages);
      });
    });
    return absl::OkStatus();
  }

  absl::Status DecodeSum(tensorflow::OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, float* aggregate, float* plain) {
    const int64_t words = layout.worker_message_words();
    const bool stream = layout.shard_size(rank) * sizeof(float) > kStreamBytes;
    const ShardStart& shard = layout.shard(rank);
    const LayoutView view = layout.view();
    const OneBitColumns& columns = GetOneBitColumns();
    ForColumns(context, layout, shard.column, layout.shard(rank + 1).column, [&](int64_t index) {
      const Column column = view.column(index);
      columns.decode_sum(messages + view.levels_of(index, rank),
                         messages + view.codes_of(column, rank), words, layout.num_shards(),
                         column.count, stream, aggregate + column.value - shard.value);
    });
    SumPlain(layout, messages, plain);
    return absl::OkStatus();
  }

  absl::Status EncodeShard(tensorflow::OpKernelContext* context, const Layout& layout,
                           int64_t rank, const float* aggregate, const OneBitQuantizer& quantizer,
                           int32_t* message) {
    const int64_t first_value = layout.shard(rank).value;
    EncodeShardFrom(context, layout, rank, quantizer, message,
                    [&](int64_t, const Column& column) {
                      return aggregate + column.value - first_value;
                    });
    return absl::OkStatus();
  }

  absl::Status Aggregate(tensorflow::OpKernelContext* context, const Layout& layout, int64_t rank,
                         const int32_t* messages, const OneBitQuantizer& quantizer,
                         int32_t* message, float* plain) {
    const LayoutView view = layout.view();
    const OneBitColumns& columns = GetOneBitColumns();
    EncodeShardFrom(
        context, layout, rank, quantizer, message,
        [&, sum = std::vector<float>()](int64_t index, const Column& column) mutable {
          sum.resize(std::max<size_t>(sum.size(), column.count));
          columns.decode_sum(messages + view.levels_of(index, rank),
                             messages + view.codes_of(column, rank), layout.worker_message_words(),
                             layout.num_shards(), column.count, /*stream=*/false, sum.data());
          return static_cast<const float*>(sum.data());
        });
    SumPlain(layout, messages, plain);
    return absl::OkStatus();
  }

  absl::Status Decode(tensorflow::OpKernelContext* context, const Layout& layout, FloatType type,
                      const int32_t* messages, int bits, const float* plain, float scale,
                      const float* value_scales, const std::vector<void*>& gradients) {
    WithType(type, [&](auto zero) {
      DecodeAs<decltype(zero)>(context, layout, messages, bits, plain, scale, value_scales,
                               gradients);
    });
    return absl::OkStatus();
  }

  absl::Status DecodeAdd(tensorflow::OpKernelContext* context, const Layout& layout,
                         const int32_t* messages, int bits, const float* plain, float scale,
                         const float* value_scales, const float* factor,
                         const std::vector<void*>& variables) {
    ForDecodedColumns<float>(
        context, layout, messages, bits, scale, value_scales,
        [&, decoded = std::vector<float>()](const Column& column, const auto& decode) mutable {
          decoded.resize(std::max<size_t>(decoded.size(), column.count));
          decode(/*stream=*/false, decoded.data());
          AddMultiple(decoded.data(), column.count, *factor,
                      static_cast<float*>(variables[column.tensor]) + column.offset);
        });
    for (const PlainRun& run : layout.plain_runs()) {
      float* const values = static_cast<float*>(variables[run.tensor]);
      for (int64_t i = 0; i < run.size; ++i) values[i] += *factor * (plain[run.first + i] * scale);
    }
    return absl::OkStatus();
  }

  absl::Status LearnScales(tensorflow::OpKernelContext* context, const Layout& layout,
                           FloatType type, const std::vector<const void*>& updates,
                           float* squares) {
    const LayoutView view = layout.view();
    WithType(type, [&](auto zero) {
      using T = decltype(zero);
      const auto learn = GetOneBitColumns().of<T>().learn;
      ForColumns(context, layout, 0, layout.num_columns(), [&](int64_t index) {
        const Column column = view.column(index);
        learn(static_cast<const T*>(updates[column.tensor]) + column.offset,
              squares + column.value, column.count);
      });
    });
    return absl::OkStatus();
  }

 private:
  // Threads get columns in blocks of this many.
  static constexpr int64_t kColumnsPerBlock = 32;

  // Calls work(column) for the columns [begin, end), in parallel. Each thread has a copy of `work`.
  template <typename Work>
  static void ForColumns(tensorflow::OpKernelContext* context, const Layout& layout, int64_t begin,
                         int64_t end, const Work& work) {
    if (begin == end) return;
    const int64_t blocks = CeilDiv(end - begin, kColumnsPerBlock);
    const Column last = layout.view().column(end - 1);
    const int64_t values = last.value + last.count - layout.view().column(begin).value;
    // About one cycle per value: bandwidth bound.
    ParallelFor(context, blocks, CeilDiv(values, blocks), [&](int64_t first, int64_t last) {
      const int64_t end_column = std::min(end, begin + last * kColumnsPerBlock);
      Work mine = work;
      for (int64_t i = begin + first * kColumnsPerBlock; i < end_column; ++i) mine(i);
      GetOneBitColumns().finish_streaming();
    });
  }

  // Zeroes the rest of a message behind the levels and codes of this shard. Shards differ by a
  // column.
  static void ZeroPadding(const Layout& layout, int64_t shard, int32_t* message) {
    const LayoutView view = layout.view();
    const int64_t levels_end = view.levels_at + 2 * layout.shard_columns(shard);
    const int64_t codes_end =
        view.codes_at + layout.shard(shard + 1).word - layout.shard(shard).word;
    std::fill(message + levels_end, message + view.codes_at, 0);
    std::fill(message + codes_end, message + view.plain_at, 0);
  }

  // Adds up the values that travel in full precision, in the order of ranks.
  static void SumPlain(const Layout& layout, const int32_t* messages, float* plain) {
    std::fill(plain, plain + layout.plain_size(), 0.0f);
    const int64_t words = layout.worker_message_words();
    for (int64_t k = 0; k < layout.num_shards(); ++k) {
      const float* values = FloatsOf(messages + k * words + layout.view().plain_at);
      for (int64_t i = 0; i < layout.plain_size(); ++i) plain[i] += values[i];
    }
  }

  // Collects the results of encoding columns.
  class Sums {
   public:
    Sums(int64_t first_column, int64_t num_columns) : first_(first_column), sums_(num_columns) {}

    // `sum` is NaN for a column that is not finite.
    void Add(int64_t index, const Column& column, double sum) {
      if (std::isnan(sum)) {
        not_finite.Report(column.tensor);
      } else {
        sums_[index - first_] = sum;
      }
    }
    float total() const { return static_cast<float>(SumOfMany(sums_.data(), sums_.size())); }

    FirstFailure not_finite;

   private:
    int64_t first_;
    std::vector<double> sums_;
  };

  template <typename T, typename R>
  static void EncodeAs(tensorflow::OpKernelContext* context, const Layout& layout,
                       const std::vector<const void*>& gradients, const float* value_scales,
                       const OneBitQuantizer& quantizer, R* residuals, int32_t* messages) {
    const EncodeColumns<T, R>& columns = GetOneBitColumns().of<T>().template with<R>();
    const int64_t words = layout.worker_message_words();
    const LayoutView view = layout.view();
    Sums sums(0, layout.num_columns());
    for (int64_t shard = 0; shard < layout.num_shards(); ++shard) {
      ZeroPadding(layout, shard, messages + shard * words);
    }
    ForColumns(context, layout, 0, layout.num_columns(),
               [&, quotients = std::vector<float>()](int64_t index) mutable {
      const Column column = view.column(index);
      const int64_t shard = view.shard_of(index);
      int32_t* const message = messages + shard * words;
      float* const levels = FloatsOf(message + view.levels_of(index, shard));
      uint32_t* const codes = CodesOf(message + view.codes_of(column, shard));
      const T* const gradient = static_cast<const T*>(gradients[column.tensor]) + column.offset;
      R* const residual = At(residuals, column.value);
      double sum;
      if (value_scales == nullptr) {
        sum = columns.encode(gradient, residual, column.count, quantizer.rule, levels, codes);
      } else {
        quotients.resize(std::max<size_t>(quotients.size(), column.count));
        sum = columns.encode_scaled(gradient, value_scales + column.value, quotients.data(),
                                    residual, column.count, quantizer.rule, levels, codes);
      }
      sums.Add(index, column, sum);
    });
    CopyPlain<T>(layout, gradients, messages, &sums.not_finite);
    for (int64_t shard = 0; shard < layout.num_shards(); ++shard) {
      messages[shard * words] = sums.not_finite.flag();
    }
    *quantizer.sum_of_squares = sums.total();
  }

  template <typename T>
  static void CopyPlain(const Layout& layout, const std::vector<const void*>& gradients,
                        int32_t* messages, FirstFailure* not_finite) {
    float* const first = FloatsOf(messages + layout.view().plain_at);
    float* out = first;
    for (const PlainRun& run : layout.plain_runs()) {
      const T* const values = static_cast<const T*>(gradients[run.tensor]);
      for (int64_t i = 0; i < run.size; ++i) {
        const float value = ToFloat(values[i]);
        if (!IsFinite(value)) not_finite->Report(run.tensor);
        *out++ = value;
      }
    }
    for (int64_t shard = 1; shard < layout.num_shards(); ++shard) {
      std::copy(first, first + layout.plain_size(), first + shard * layout.worker_message_words());
    }
  }

  // Runs the second stage: quantizes the aggregate of this worker's shard. source(index, column)
  // returns a column's aggregate, which is valid until the next call in the same thread. The second
  // row quantizes the residual that the first one leaves, while it is in the cache.
  template <typename Source>
  static void EncodeShardFrom(tensorflow::OpKernelContext* context, const Layout& layout,
                              int64_t rank, const OneBitQuantizer& quantizer, int32_t* message,
                              const Source& source) {
    WithResidual(quantizer, [&](auto* residuals) {
      EncodeShardAs(context, layout, rank, quantizer, residuals, message, source);
    });
  }

  template <typename R, typename Source>
  static void EncodeShardAs(tensorflow::OpKernelContext* context, const Layout& layout,
                            int64_t rank, const OneBitQuantizer& quantizer, R* residuals,
                            int32_t* message, const Source& source) {
    const auto encode = GetOneBitColumns().of<float>().with<R>().encode;
    const ShardStart& shard = layout.shard(rank);
    const LayoutView view = layout.view();
    const int64_t words = layout.shard_message_words();
    Sums sums(shard.column, layout.shard_columns(rank));
    for (int row = 0; row < quantizer.bits; ++row) {
      ZeroPadding(layout, rank, message + row * words);
    }
    const int64_t end = layout.shard(rank + 1).column;
    ForColumns(context, layout, shard.column, end,
               [&, mine = Source(source), nothing = std::vector<float>()](int64_t index) mutable {
      const Column column = view.column(index);
      const float* values = mine(index, column);
      R* const residual = At(residuals, column.value - shard.value);
      double sum = 0;
      for (int row = 0; row < quantizer.bits; ++row) {
        float* const levels = FloatsOf(message + row * words + view.levels_of(index, rank));
        uint32_t* const codes = CodesOf(message + row * words + view.codes_of(column, rank));
        if (row > 0) {
          // Not 0.0, which would turn a residual of -0.0 into another one.
          nothing.resize(std::max<size_t>(nothing.size(), column.count), -0.0f);
          values = nothing.data();
        }
        if (std::isnan(sum)) {
          levels[0] = levels[1] = 0;
          std::fill(codes, codes + NumWords(column.count), 0);
        } else {
          sum = encode(values, residual, column.count, quantizer.rule, levels, codes);
        }
      }
      sums.Add(index, column, sum);
    });
    for (int row = 0; row < quantizer.bits; ++row) message[row * words] = sums.not_finite.flag();
    *quantizer.sum_of_squares = sums.total();
  }

  // Calls work(column, decode) for all columns. decode(stream, out) decodes the column's values.
  template <typename T, typename Work>
  static void ForDecodedColumns(tensorflow::OpKernelContext* context, const Layout& layout,
                                const int32_t* messages, int bits, float scale,
                                const float* value_scales, const Work& work) {
    const ColumnsOf<T>& columns = GetOneBitColumns().of<T>();
    const int64_t words = layout.shard_message_words();
    const LayoutView view = layout.view();
    ForColumns(context, layout, 0, layout.num_columns(),
               [&, mine = Work(work)](int64_t index) mutable {
      const Column column = view.column(index);
      const int64_t shard = view.shard_of(index);
      const int32_t* const message = messages + shard * bits * words;
      const int32_t* const levels = message + view.levels_of(index, shard);
      const int32_t* const codes = message + view.codes_of(column, shard);
      mine(column, [&](bool stream, T* out) {
        if (value_scales == nullptr) {
          columns.decode(levels, codes, words, bits, column.count, scale, stream, out);
        } else {
          columns.decode_scaled(levels, codes, words, bits, column.count, scale,
                                value_scales + column.value, stream, out);
        }
      });
    });
  }

  template <typename T>
  static void DecodeAs(tensorflow::OpKernelContext* context, const Layout& layout,
                       const int32_t* messages, int bits, const float* plain, float scale,
                       const float* value_scales, const std::vector<void*>& gradients) {
    const bool stream = layout.size() * static_cast<int64_t>(sizeof(T)) > kStreamBytes;
    ForDecodedColumns<T>(context, layout, messages, bits, scale, value_scales,
                         [&](const Column& column, const auto& decode) {
      decode(stream, static_cast<T*>(gradients[column.tensor]) + column.offset);
    });
    for (const PlainRun& run : layout.plain_runs()) {
      T* const values = static_cast<T*>(gradients[run.tensor]);
      for (int64_t i = 0; i < run.size; ++i) {
        values[i] = FromFloat<T>(plain[run.first + i] * scale);
      }
    }
  }

  // sums_i = sums_i + factor * values_i
  static void AddMultiple(const float* __restrict values, int64_t count, float factor,
                          float* __restrict sums) {
    for (int64_t i = 0; i < count; ++i) sums[i] += factor * values[i];
  }

  template <typename R>
  static R* At(R* values, int64_t i) {
    return values == nullptr ? nullptr : values + i;
  }
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_ONE_BIT_CPU_H_
