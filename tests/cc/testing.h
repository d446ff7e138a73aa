// Common parts of tests in C++: checks that name the failing case, random numbers, and memory with
// guarded surroundings.

#ifndef TF_ONEBIT_TESTS_CC_TESTING_H_
#define TF_ONEBIT_TESTS_CC_TESTING_H_

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace tf_onebit {

inline int num_failures = 0;
inline std::string current_case;  // printed with a failure

inline void SetCase(const char* format, ...) {
  char text[300];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  current_case = text;
}

#define CHECK(condition, ...)                                                     \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::printf("%s:%d: %s fails for %s: ", __FILE__, __LINE__, #condition,     \
                  current_case.c_str());                                          \
      std::printf(__VA_ARGS__);                                                   \
      std::printf("\n");                                                          \
      if (++num_failures == 20) std::exit(1);                                     \
    }                                                                             \
  } while (false)

// Prints the outcome and returns the exit status of the test.
inline int Outcome() {
  std::printf(num_failures == 0 ? "all passed\n" : "%d failures\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}

// splitmix64: deterministic on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint32_t Bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>(z >> 32);
  }
  float Uniform() { return static_cast<float>(Bits() >> 8) * 0x1p-24f; }         // [0, 1)
  float Bell() { return Uniform() + Uniform() + Uniform() + Uniform() - 2.0f; }  // (-2, 2)

 private:
  uint64_t state_;
};

// `count` elements that start `offset` elements after a 64-byte boundary and end with their
// allocation. Sentinels before them, and for outputs also after them, must survive.
template <typename T>
class Buffer {
 public:
  enum Kind { kInput, kOutput };

  Buffer(Kind kind, int64_t count, int64_t offset)
      : count_(count),
        offset_(kGuardBytes + offset * sizeof(T)),
        size_(offset_ + count * sizeof(T) + (kind == kOutput ? kGuardBytes : 0)),
        memory_(static_cast<unsigned char*>(AllocateAligned(size_)), std::free) {
    std::memset(memory_.get(), kSentinel, size_);
  }

  T* data() const { return reinterpret_cast<T*>(memory_.get() + offset_); }
  T& operator[](int64_t i) const { return data()[i]; }
  size_t size_bytes() const { return count_ * sizeof(T); }

  bool SentinelsIntact() const {
    const auto intact = [&](size_t begin, size_t end) {
      while (begin < end && memory_[begin] == kSentinel) ++begin;
      return begin == end;
    };
    return intact(0, offset_) && intact(offset_ + size_bytes(), size_);
  }
  bool SameBits(const Buffer& other) const {
    return std::memcmp(data(), other.data(), size_bytes()) == 0;
  }
  void CopyFrom(const Buffer& other) { std::memcpy(data(), other.data(), size_bytes()); }

 private:
  static constexpr size_t kGuardBytes = 128;
  static constexpr unsigned char kSentinel = 0xA5;

  static void* AllocateAligned(size_t size) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, size) != 0) std::abort();
    return memory;
  }

  int64_t count_;
  size_t offset_;
  size_t size_;
  std::unique_ptr<unsigned char[], void (*)(void*)> memory_;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_TESTS_CC_TESTING_H_
