// The threshold ops on the CPU: they find the values of each message, and divide the work among
// threads. threshold_blocks.h has the loops over a block's values. For files that include
// TensorFlow.

#ifndef TF_ONEBIT_KERNELS_THRESHOLD_CPU_H_
#define TF_ONEBIT_KERNELS_THRESHOLD_CPU_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

#include "kernels/op_parts.h"
#include "kernels/op_threshold.h"
#include "kernels/threshold_blocks.h"

namespace tf_onebit {

class ThresholdOnCpu {
 public:
  static constexpr int64_t kStripeSize = tf_onebit::kStripeSize;

  // Makes output 0, the messages of all parts.
  absl::Status Encode(tensorflow::OpKernelContext* context, const Parts& parts, FloatType type,
                      const std::vector<const void*>& gradients, float* residual,
                      const float* threshold, const float* magnitude, const float* step,
                      float decay, int64_t capacity, bool pad) {
    if (!(*threshold > 0)) {
      return tensorflow::errors::InvalidArgument(
          "threshold must be positive. Received: threshold=", *threshold, ".");
    }
    // With an infinite threshold nothing is sent, and its magnitude does not matter.
    if (!(*magnitude >= 0 && (IsFinite(*magnitude) || !IsFinite(*threshold)))) {
      return tensorflow::errors::InvalidArgument(
          "magnitude must be at least 0 and finite. Received: magnitude=", *magnitude, ".");
    }
    if (!(*step >= 0 && IsFinite(*step))) {
      return tensorflow::errors::InvalidArgument(
          "step must be at least 0 and finite. Received: step=", *step, ".");
    }
    return WithType(type, [&](auto zero) {
      return EncodeAs<decltype(zero)>(context, parts, gradients, residual,
                                      {*threshold, *magnitude, decay}, *step, capacity, pad);
    });
  }

  absl::Status DecodeSum(tensorflow::OpKernelContext* context, const Parts& parts, FloatType type,
                         const ThresholdRows& rows, float scale,
                         const std::vector<void*>& gradients) {
    WithType(type, [&](auto zero) {
      using T = decltype(zero);
      const bool stream = parts.size() * static_cast<int64_t>(sizeof(T)) > kStreamBytes;
      ForStripes(context, parts.stripes(), [&](const Stripe& stripe, int64_t) {
        T* const out = static_cast<T*>(gradients[stripe.tensor]) + stripe.offset;
        DecodeStripe(rows, parts, stripe, scale, stream, out);
      });
    });
    return absl::OkStatus();
  }

  absl::Status DecodeAdd(tensorflow::OpKernelContext* context, const Parts& parts,
                         const ThresholdRows& rows, float scale, const float* factor,
                         const std::vector<void*>& variables) {
    ForStripes(context, parts.stripes(), [&](const Stripe& stripe, int64_t) {
      float* const variable = static_cast<float*>(variables[stripe.tensor]) + stripe.offset;
      AddStripe(rows, parts, stripe, scale, *factor, variable);
    });
    return absl::OkStatus();
  }

  absl::Status Update(tensorflow::OpKernelContext*, const Parts& parts, const ThresholdRows& rows,
                      ThresholdUpdate update, const std::vector<void*>& variables) {
    for (int64_t r = 0; r < rows.num_rows; ++r) {
      CodeRun run = CodesOfRow(rows.row(r));
      int64_t first = -parts.part_begin(r % parts.num_parts());  // of the variable, in the part
      for (int64_t t = 0; t < parts.num_tensors(); ++t) {
        const int64_t end = first + parts.tensor_size(t);
        const uint32_t* const begin = run.next;
        run.next = FirstFrom(run, end);
        UpdateRun({begin, run.next, run.step}, update, first, static_cast<float*>(variables[t]));
        first = end;
      }
    }
    return absl::OkStatus();
  }

 private:
  // Calls work(stripe, index) for all stripes of a list, in parallel.
  template <typename Work>
  static void ForStripes(tensorflow::OpKernelContext* context, const std::vector<Stripe>& stripes,
                         const Work& work) {
    if (stripes.empty()) return;
    const int64_t count = stripes.size(), values = stripes.back().value + stripes.back().count;
    // About one cycle per value: bandwidth bound.
    ParallelFor(context, count, 1 + values / count, [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i) work(stripes[i], i);
      GetThresholdBlocks().finish_streaming();
    });
  }

  template <typename T>
  static absl::Status EncodeAs(tensorflow::OpKernelContext* context, const Parts& parts,
                               const std::vector<const void*>& gradients, float* residual,
                               const ThresholdRule& rule, float step, int64_t capacity, bool pad) {
    const std::vector<Stripe>& stripes = parts.stripes();
    std::vector<std::vector<uint32_t>> codes(stripes.size());
    std::vector<double> squares(parts.num_blocks());  // for each block
    FirstFailure not_finite;
    ForStripes(context, stripes, [&](const Stripe& stripe, int64_t index) {
      const T* const gradient = static_cast<const T*>(gradients[stripe.tensor]) + stripe.offset;
      if (!EncodeStripe(parts, stripe, gradient, residual + stripe.value, rule, &codes[index],
                        &squares[stripe.first_block])) {
        not_finite.Report(stripe.tensor);
      }
    });

    std::vector<int64_t> exceeding(parts.num_parts());
    for (size_t i = 0; i < stripes.size(); ++i) exceeding[stripes[i].part] += codes[i].size();
    int64_t longest = 0;
    for (int64_t count : exceeding) longest = std::max(longest, count);
    const int64_t words = kHeaderWords + (pad ? capacity : std::min(capacity, longest));
    tensorflow::Tensor* output;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {parts.num_parts(), words}, &output));
    int32_t* message = WordsOf(output);
    size_t i = 0;
    for (int64_t part = 0; part < parts.num_parts(); ++part, message += words) {
      int32_t* end = message + kHeaderWords;
      const int64_t first_block = i < stripes.size() ? stripes[i].first_block : 0;
      int64_t blocks = 0;
      for (; i < stripes.size() && stripes[i].part == part; ++i) {
        const int64_t room = message + kHeaderWords + capacity - end;
        const int64_t sent = std::min<int64_t>(room, codes[i].size());
        end = std::copy_n(codes[i].begin(), sent, end);
        Keep(parts, stripes[i],
             {codes[i].data() + sent, codes[i].data() + codes[i].size(), rule.magnitude},
             residual + stripes[i].value, &squares[stripes[i].first_block]);
        blocks += CeilDiv(stripes[i].count, kBlockSize);
      }
      std::fill(end, message + words, 0);
      message[kFlagWord] = not_finite.flag();
      message[kWordsWord] = static_cast<int32_t>(end - message);
      message[kCountWord] = static_cast<int32_t>(end - message - kHeaderWords);
      message[kExceedingWord] = static_cast<int32_t>(exceeding[part]);
      FloatsOf(message)[kStepWord] = step;
      FloatsOf(message)[kSquaresWord] =
          static_cast<float>(SumOfMany(squares.data() + first_block, blocks));
    }
    return absl::OkStatus();
  }

  // Returns whether all values are finite. `squares` gets a sum for each block.
  template <typename T>
  static bool EncodeStripe(const Parts& parts, const Stripe& stripe, const T* gradient,
                           float* residual, const ThresholdRule& rule,
                           std::vector<uint32_t>* all_codes, double* squares) {
    const auto encode = GetThresholdBlocks().encode(gradient);
    const int64_t first_index = stripe.value - parts.part_begin(stripe.part);
    bool finite = true;
    for (int64_t begin = 0; begin < stripe.count; begin += kBlockSize) {
      uint32_t codes[kBlockSize];
      const EncodedBlock block =
          encode(gradient + begin, residual + begin, std::min(kBlockSize, stripe.count - begin),
                 rule, static_cast<uint32_t>(first_index + begin), codes);
      all_codes->insert(all_codes->end(), codes, codes + block.num_codes);
      *squares++ = block.sum_of_squares;
      finite &= block.finite;
    }
    return finite;
  }

  // Adds values that do not fit to the residual again, to wait for the next message.
  static void Keep(const Parts& parts, const Stripe& stripe, const CodeRun& unsent,
                   float* residual, double* squares) {
    if (unsent.next == unsent.end) return;
    const int64_t first_index = stripe.value - parts.part_begin(stripe.part);
    for (const uint32_t* code = unsent.next; code != unsent.end; ++code) {
      residual[IndexOf(*code) - first_index] += SignedStep(*code, unsent.step);
    }
    const int64_t first_block = (IndexOf(*unsent.next) - first_index) / kBlockSize;
    for (int64_t block = first_block; block * kBlockSize < stripe.count; ++block) {
      const int64_t begin = block * kBlockSize;
      squares[block] =
          SumOfSquares(residual + begin, std::min(kBlockSize, stripe.count - begin));
    }
  }

  static CodeRun CodesOfRow(const int32_t* row) {
    const uint32_t* const codes = CodesOf(row + kHeaderWords);
    return {codes, codes + static_cast<uint32_t>(row[kCountWord]),
            FloatOf(static_cast<uint32_t>(row[kStepWord]))};
  }

  // Returns the first code of a value from `index` on.
  static const uint32_t* FirstFrom(const CodeRun& run, int64_t index) {
    return std::partition_point(run.next, run.end,
                                [index](uint32_t code) { return IndexOf(code) < index; });
  }

  // Returns the codes of each message from the first value of a stripe on.
  static std::vector<CodeRun> RunsFrom(const ThresholdRows& rows, const Parts& parts,
                                       const Stripe& stripe) {
    const int64_t first_index = stripe.value - parts.part_begin(stripe.part);
    std::vector<CodeRun> runs;
    for (int64_t r = stripe.part; r < rows.num_rows; r += parts.num_parts()) {
      CodeRun run = CodesOfRow(rows.row(r));
      run.next = FirstFrom(run, first_index);
      runs.push_back(run);
    }
    return runs;
  }

  template <typename T>
  static void DecodeStripe(const ThresholdRows& rows, const Parts& parts, const Stripe& stripe,
                           float scale, bool stream, T* out) {
    const int64_t first_index = stripe.value - parts.part_begin(stripe.part);
    std::vector<CodeRun> runs = RunsFrom(rows, parts, stripe);
    const auto decode = GetThresholdBlocks().decode(out);
    for (int64_t begin = 0; begin < stripe.count; begin += kBlockSize) {
      decode(runs.data(), runs.size(), static_cast<uint32_t>(first_index + begin),
             std::min(kBlockSize, stripe.count - begin), scale, stream, out + begin);
    }
  }

  // Adds up the messages block by block, and touches only the values that they have.
  static void AddStripe(const ThresholdRows& rows, const Parts& parts, const Stripe& stripe,
                        float scale, float factor, float* variable) {
    const int64_t first_index = stripe.value - parts.part_begin(stripe.part);
    std::vector<CodeRun> runs = RunsFrom(rows, parts, stripe);
    float sums[kBlockSize] = {};  // all zero between blocks
    for (int64_t begin = 0; begin < stripe.count; begin += kBlockSize) {
      const int64_t first = first_index + begin;
      const int64_t count = std::min(kBlockSize, stripe.count - begin);
      const auto for_codes = [&](CodeRun run, const auto& work) {
        for (; run.next != run.end && IndexOf(*run.next) - first < count; ++run.next) {
          work(*run.next, IndexOf(*run.next) - first);
        }
        return run.next;
      };
      for (const CodeRun& run : runs) {
        for_codes(run, [&](uint32_t code, int64_t i) { sums[i] += SignedStep(code, run.step); });
      }
      for (CodeRun& run : runs) {
        run.next = for_codes(run, [&](uint32_t, int64_t i) {
          // A value of several messages is added by the first.
          if (sums[i] != 0) variable[begin + i] += factor * (scale * sums[i]);
          sums[i] = 0;
        });
      }
    }
  }

  // Codes are fetched well ahead of their use. Every value is in another line of memory, and mostly
  // in another page.
  static constexpr int64_t kPrefetchCodes = 32;

  static void UpdateRun(const CodeRun& run, ThresholdUpdate update, int64_t first,
                        float* variable) {
    for (const uint32_t* code = run.next; code != run.end; ++code) {
      if (run.end - code > kPrefetchCodes) {
        __builtin_prefetch(variable + (IndexOf(code[kPrefetchCodes]) - first), 1);
      }
      float* const value = variable + (IndexOf(*code) - first);
      *value = Updated(*value, update, *code, run.step);
    }
  }
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_KERNELS_THRESHOLD_CPU_H_
