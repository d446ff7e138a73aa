// The ops that record times in a graph, on the CPU.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_onebit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

struct Event {
  int32_t number;
  int64_t nanoseconds;
};

// Recorded times that have not been taken yet. They may be used from any thread.
class Recorder {
 public:
  // There is one for each number, and it stays: graphs outlive the code that has traced them.
  static Recorder* Of(int64_t number) {
    static std::mutex mutex;
    static std::map<int64_t, Recorder>* recorders = new std::map<int64_t, Recorder>;
    const std::lock_guard<std::mutex> lock(mutex);
    return &(*recorders)[number];
  }

  void Record(int32_t event) {
    // The clock of Python's `time.monotonic_ns`, which cannot be set.
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const int64_t nanoseconds =
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (events_.size() < kMostEvents) events_.push_back({event, nanoseconds});
  }

  std::vector<Event> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  static constexpr size_t kMostEvents = 1 << 16;

  std::mutex mutex_;
  std::vector<Event> events_;
};

class TimingBase : public OpKernel {
 public:
  explicit TimingBase(OpKernelConstruction* context) : OpKernel(context) {
    int64_t number;
    OP_REQUIRES_OK(context, context->GetAttr("recorder", &number));
    recorder_ = Recorder::Of(number);
  }

 protected:
  Recorder* recorder_;
};

class RecordTimeOp : public TimingBase {
 public:
  explicit RecordTimeOp(OpKernelConstruction* context) : TimingBase(context) {
    OP_REQUIRES_OK(context, context->GetAttr("event", &event_));
  }

  // Otherwise the executor would queue it, and it would record the time at which its turn comes.
  bool IsExpensive() override { return false; }

  void Compute(OpKernelContext* context) override { recorder_->Record(event_); }

 private:
  int32_t event_;
};

class TakeTimesOp : public TimingBase {
 public:
  using TimingBase::TimingBase;

  void Compute(OpKernelContext* context) override {
    const std::vector<Event> taken = recorder_->Take();
    const int64_t size = taken.size();
    Tensor *events, *times;
    OP_REQUIRES_OK(context, context->allocate_output(0, {size}, &events));
    OP_REQUIRES_OK(context, context->allocate_output(1, {size}, &times));
    std::transform(taken.begin(), taken.end(), events->flat<int32_t>().data(),
                   [](const Event& event) { return event.number; });
    std::transform(taken.begin(), taken.end(), times->flat<int64_t>().data(),
                   [](const Event& event) { return event.nanoseconds; });
  }
};

REGISTER_KERNEL_BUILDER(Name("TfOnebit>RecordTime").Device(tensorflow::DEVICE_CPU), RecordTimeOp);
REGISTER_KERNEL_BUILDER(Name("TfOnebit>TakeTimes").Device(tensorflow::DEVICE_CPU), TakeTimesOp);

}  // namespace
}  // namespace tf_onebit
