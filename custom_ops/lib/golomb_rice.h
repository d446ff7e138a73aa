// Golomb-Rice coding of sparse updates: of sorted indices, each with a sign.
//
// A *code* is a word: bit 31 is the sign (1 = negative), bits 0..30 are the index. Its *gap* is the
// number of indices between it and the one before: index - previous - 1. For the first code the
// previous index is -1. Codes are cut into blocks of kBlock. Each block has the parameter b in 0..30
// that makes it shortest. Its codes consist of the quotient gap >> b, in unary, and 1 + b fixed
// bits. Three streams follow one another. Each starts on a word, and ends with zero bits up to a
// whole word.
//
//   parameters  one byte per block: b
//   fixed       1 + b bits per code: the sign, then the low b bits of the gap
//   unary       for each code a number of zeros equal to the quotient, then a one
//
// Bit i of a stream is bit i % 32 of its word i / 32. Hosts are little-endian. The number of codes
// is not in the streams. Fixed and unary bits are apart, so that both are fast to read. The places
// of fixed bits are known, and in the unary stream only the ones matter.

#ifndef TF_ONEBIT_LIB_GOLOMB_RICE_H_
#define TF_ONEBIT_LIB_GOLOMB_RICE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tf_onebit {

// Nothing here has external linkage. Each source file is compiled for its own instruction set, and
// must not share the code of an inline function with the others.

namespace golomb_rice {

constexpr int64_t kBlock = 256;  // a parameter adds 1/32 bit to each of its codes
constexpr int kMaxParameter = 30;
constexpr uint32_t kIndexBits = 0x7FFFFFFF;

static inline int64_t WordsOfBits(int64_t bits) { return (bits + 31) / 32; }
static inline int64_t NumBlocks(int64_t count) { return (count + kBlock - 1) / kBlock; }
static inline int64_t ParameterWords(int64_t count) { return (NumBlocks(count) + 3) / 4; }

// Gaps of the codes [begin, begin + count).
static inline void GapsOf(const uint32_t* codes, int64_t begin, int64_t count, uint32_t* gaps) {
  codes += begin;
  gaps[0] = (codes[0] & kIndexBits) - (begin == 0 ? 0 : (codes[-1] & kIndexBits) + 1);
  for (int64_t i = 1; i < count; ++i) {
    gaps[i] = (codes[i] & kIndexBits) - (codes[i - 1] & kIndexBits) - 1;
  }
}

// Returns the parameter that makes a block shortest, or the smallest of several. A larger parameter
// by one costs a bit per code, and halves the quotients, which saves ceil(quotient / 2) bits. The
// saving decreases with the parameter, so there is only one descent. Therefore the start of the
// search does not matter: it is the parameter of the block before, which is mostly right. The
// search ends by 30, where no quotient exceeds 1.
static inline int CheapestParameter(const uint32_t* gaps, int64_t count, int parameter) {
  const auto saves_more_than_it_costs = [=](int from) {
    uint32_t saved = 0;
    for (int64_t i = 0; i < count; ++i) saved += ((gaps[i] >> from) + 1) >> 1;
    return saved > count;
  };
  while (saves_more_than_it_costs(parameter)) ++parameter;
  while (parameter > 0 && !saves_more_than_it_costs(parameter - 1)) --parameter;
  return parameter;
}

namespace {

// Writes words only when they are full, so it never writes a word behind the stream.
class BitWriter {
 public:
  explicit BitWriter(uint32_t* words) : next_(words) {}

  // Appends the low `width` bits, 1 to 32. The bits above must be zero.
  void Append(uint32_t bits, int width) {
    pending_ |= uint64_t{bits} << num_pending_;
    num_pending_ += width;
    if (num_pending_ >= 64) {
      std::memcpy(next_, &pending_, sizeof(pending_));
      next_ += 2;
      num_pending_ -= 64;
      pending_ = uint64_t{bits} >> (width - num_pending_);
    }
  }

  // Returns the end of the stream.
  uint32_t* Finish() {
    for (; num_pending_ > 0; num_pending_ -= 32) {
      *next_++ = static_cast<uint32_t>(pending_);
      pending_ >>= 32;
    }
    return next_;
  }

 private:
  uint32_t* next_;
  uint64_t pending_ = 0;
  int num_pending_ = 0;  // < 64
};

}  // namespace

}  // namespace golomb_rice

// Returns the largest number of words that `count` codes with indices below `size` can take. It
// does not decrease with `count`.
//
// If all blocks had the parameter b, fixed bits and ones would take count * (b + 2) bits. Zeros
// would take at most (size - count) >> b, because all gaps together are at most size - count. With
// its own parameter, no block is longer than with the best common one. Another code adds b + 2 bits
// and removes at most one. So the sum increases for every b, and so does the least sum.
static inline int64_t GolombRiceMaxWords(int64_t count, int64_t size) {
  if (count == 0) return 0;
  int64_t bits = std::numeric_limits<int64_t>::max();
  for (int b = 0; b <= golomb_rice::kMaxParameter; ++b) {
    bits = std::min(bits, count * (b + 2) + ((size - count) >> b));
  }
  // Two streams end with up to 31 bits of padding each.
  return golomb_rice::ParameterWords(count) + (bits + 2 * 31) / 32;
}

// Encodes codes with strictly increasing indices. Writes at most GolombRiceMaxWords(count, size)
// words to `out`, and returns how many. `size` is any number above all indices.
static inline int64_t GolombRiceEncode(const uint32_t* codes, int64_t count, uint32_t* out) {
  using namespace golomb_rice;
  if (count == 0) return 0;
  uint8_t* const parameters = reinterpret_cast<uint8_t*>(out);
  uint32_t* const fixed_begin = out + ParameterWords(count);
  fixed_begin[-1] = 0;  // padding
  uint32_t gaps[kBlock];
  int64_t fixed_bits = 0;
  int parameter = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block_count = std::min(kBlock, count - begin);
    GapsOf(codes, begin, block_count, gaps);
    parameter = CheapestParameter(gaps, block_count, parameter);
    parameters[begin / kBlock] = static_cast<uint8_t>(parameter);
    fixed_bits += block_count * (1 + parameter);
  }

  BitWriter fixed(fixed_begin);
  BitWriter unary(fixed_begin + WordsOfBits(fixed_bits));
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block_count = std::min(kBlock, count - begin);
    GapsOf(codes, begin, block_count, gaps);
    const int b = parameters[begin / kBlock];
    const uint32_t low_mask = (1u << b) - 1;
    for (int64_t i = 0; i < block_count; ++i) {
      fixed.Append((gaps[i] & low_mask) << 1 | codes[begin + i] >> 31, 1 + b);
      uint32_t zeros = gaps[i] >> b;
      for (; zeros >= 32; zeros -= 32) unary.Append(0, 32);
      unary.Append(1u << zeros, static_cast<int>(zeros) + 1);
    }
  }
  fixed.Finish();
  return unary.Finish() - out;
}

// Decodes `count` codes, 0 <= count <= size <= 2^31. The words may have any content. Returns true
// only if they are exactly `count` codes with strictly increasing indices below `size` in the
// format above, with any parameters in range. Otherwise it returns false, and the contents of
// `codes` are undefined. It never reads or writes out of bounds. Its work before a rejection is
// bounded by num_words, not by `count`.
static inline bool GolombRiceDecode(const uint32_t* words, int64_t num_words, int64_t count,
                                    int64_t size, uint32_t* codes) {
  using namespace golomb_rice;
  if (count == 0) return num_words == 0;
  const int64_t fixed_at = ParameterWords(count);
  if (num_words < fixed_at) return false;
  const uint8_t* const parameters = reinterpret_cast<const uint8_t*>(words);
  int64_t fixed_bits = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int b = parameters[begin / kBlock];
    if (b > kMaxParameter) return false;
    fixed_bits += std::min(kBlock, count - begin) * (1 + b);
  }
  for (int64_t i = NumBlocks(count); i < 4 * fixed_at; ++i) {
    if (parameters[i] != 0) return false;
  }
  const int64_t unary_at = fixed_at + WordsOfBits(fixed_bits);
  // There is a one for each code. There are no more bits than indices, of which each zero skips
  // 2^b. So there is a word after the fixed bits, and no sum of quotients below exceeds 64 bits.
  const int64_t unary_words = num_words - unary_at;
  if (unary_words < WordsOfBits(count) || unary_words > WordsOfBits(size)) return false;
  if (fixed_bits % 32 != 0 && words[unary_at - 1] >> (fixed_bits % 32) != 0) return false;
  if (words[num_words - 1] == 0) return false;  // the last one bit is missing

  const uint32_t* next = words + unary_at;
  const uint32_t* const end = words + num_words;
  uint64_t ones = 0;      // among the 64 unary bits read last, the ones that are not decoded yet
  int64_t ones_at = -64;  // the place of those 64 bits in the stream
  int64_t one_at = -1;    // the place of the last decoded one
  uint64_t index = ~uint64_t{0};
  uint64_t fixed_bit = 32 * fixed_at;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t block_count = std::min(kBlock, count - begin);
    const int b = parameters[begin / kBlock];
    const uint32_t low_mask = (1u << b) - 1;
    // The place of a one counts the zeros of all quotients before it, so they need not be added up.
    // index = rest + one_at * 2^b, where a code changes `rest` by its low bits + 1 - 2^b.
    uint64_t rest = index - (static_cast<uint64_t>(one_at) << b);
    for (int64_t i = begin; i < begin + block_count; ++i) {
      while (ones == 0) {
        if (next == end) return false;
        ones = *next++;
        if (next != end) ones |= uint64_t{*next++} << 32;
        ones_at += 64;
      }
      one_at = ones_at + __builtin_ctzll(ones);
      ones &= ones - 1;
      // Two words can always be read, because a word of unary bits follows the last fixed bits.
      uint64_t two_words;
      std::memcpy(&two_words, words + fixed_bit / 32, sizeof(two_words));
      const uint32_t fixed = static_cast<uint32_t>(two_words >> (fixed_bit % 32));
      fixed_bit += 1 + b;
      rest += (fixed >> 1 & low_mask) - uint64_t{low_mask};
      index = rest + (static_cast<uint64_t>(one_at) << b);
      codes[i] = fixed << 31 | static_cast<uint32_t>(index);
    }
    if (index >= static_cast<uint64_t>(size)) return false;
  }
  return next == end && ones == 0;
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_GOLOMB_RICE_H_
