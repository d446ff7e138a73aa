// Tests of the Golomb-Rice code against a reference that reads it bit by bit, and of decoding
// corrupt words. Messages are decoded from memory of their exact size, so that -fsanitize=address
// catches a read past their end.

#include "lib/golomb_rice.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "testing.h"

namespace tf_onebit {
namespace {

using Words = std::vector<uint32_t>;

constexpr int64_t kMaxSize = int64_t{1} << 31;
constexpr int64_t kBlock = 256;

uint32_t IndexOf(uint32_t code) { return code & 0x7FFFFFFF; }

// ------------------------------------------------------------------------------- reference

// Follows the definition of the format literally.
class ReferenceDecoder {
 public:
  explicit ReferenceDecoder(const Words& words) : words_(words) {}

  std::optional<Words> Decode(int64_t count, int64_t size) {
    std::vector<int> parameters;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      parameters.push_back(static_cast<int>(Take(8)));
      valid_ &= parameters.back() <= 30;
      if (!valid_) return std::nullopt;
    }
    TakePadding();
    Words signs, low_bits, codes;
    for (int64_t i = 0; i < count && valid_; ++i) {
      signs.push_back(Take(1));
      low_bits.push_back(Take(parameters[i / kBlock]));
    }
    TakePadding();
    int64_t index = -1;
    for (int64_t i = 0; i < count && valid_; ++i) {
      int64_t quotient = 0;
      while (valid_ && Take(1) == 0) ++quotient;
      index += (quotient << parameters[i / kBlock]) + low_bits[i] + 1;
      valid_ &= index < size;
      codes.push_back(signs[i] << 31 | static_cast<uint32_t>(index));
    }
    TakePadding();
    if (!valid_ || at_ != NumBits()) return std::nullopt;
    return codes;
  }

 private:
  int64_t NumBits() const { return 32 * static_cast<int64_t>(words_.size()); }

  uint32_t Take(int width) {
    uint32_t bits = 0;
    for (int i = 0; i < width; ++i, ++at_) {
      valid_ &= at_ < NumBits();
      if (valid_) bits |= (words_[at_ / 32] >> at_ % 32 & 1) << i;
    }
    return bits;
  }
  void TakePadding() {
    while (at_ % 32 != 0) valid_ &= Take(1) == 0;
  }

  const Words& words_;
  int64_t at_ = 0;
  bool valid_ = true;
};

// Returns the smallest of the parameters that make a block shortest.
int ShortestParameter(const Words& codes, int64_t begin) {
  int shortest = 0;
  int64_t shortest_bits = INT64_MAX;
  for (int b = 0; b <= 30; ++b) {
    int64_t bits = 0;
    for (int64_t i = begin; i < std::min<int64_t>(begin + kBlock, codes.size()); ++i) {
      const int64_t previous = i == 0 ? int64_t{-1} : IndexOf(codes[i - 1]);
      bits += b + ((IndexOf(codes[i]) - previous - 1) >> b);
    }
    if (bits < shortest_bits) {
      shortest_bits = bits;
      shortest = b;
    }
  }
  return shortest;
}

// --------------------------------------------------------------------------- code under test

Words Encode(const Words& codes, int64_t size) {
  const int64_t count = codes.size();
  Buffer<uint32_t> out(Buffer<uint32_t>::kOutput, GolombRiceMaxWords(count, size), 3);
  const int64_t num_words = GolombRiceEncode(codes.data(), count, out.data());
  CHECK(num_words <= GolombRiceMaxWords(count, size), "%ld words, at most %ld", (long)num_words,
        (long)GolombRiceMaxWords(count, size));
  CHECK(out.SentinelsIntact(), "wrote beside the message");
  return Words(out.data(), out.data() + num_words);
}

std::optional<Words> Decode(const Words& words, int64_t count, int64_t size) {
  Buffer<uint32_t> message(Buffer<uint32_t>::kInput, words.size(), 5);
  std::copy(words.begin(), words.end(), message.data());
  Buffer<uint32_t> codes(Buffer<uint32_t>::kOutput, count, 1);
  const bool valid = GolombRiceDecode(message.data(), words.size(), count, size, codes.data());
  CHECK(codes.SentinelsIntact(), "wrote beside the codes");
  if (!valid) return std::nullopt;
  return Words(codes.data(), codes.data() + count);
}

// ------------------------------------------------------------------------------------ codes

enum Pattern { kAtStart, kAtEnd, kAtBoth, kUniform, kClustered, kSkewed, kNumPatterns };

// Returns codes with random signs. An index is the number of codes and of skipped indices before
// it. A code skips a random fraction of all that are to be skipped.
Words MakeCodes(Pattern pattern, int64_t count, int64_t size, uint64_t seed) {
  Random random(seed);
  std::vector<double> skipped;
  for (int64_t i = 0; i < count; ++i) {
    const double uniform = random.Bits() * 0x1p-32;
    skipped.push_back(pattern == kAtStart     ? 0
                      : pattern == kAtEnd     ? 1
                      : pattern == kAtBoth    ? 2 * i >= count
                      : pattern == kClustered ? std::floor(7 * uniform) / 6
                      : pattern == kSkewed    ? std::pow(uniform, 20)
                                              : uniform);
  }
  std::sort(skipped.begin(), skipped.end());
  Words codes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = i + std::llround(skipped[i] * (size - count));
    codes.push_back((random.Bits() & 0x80000000u) | static_cast<uint32_t>(index));
  }
  return codes;
}

// ------------------------------------------------------------------------------------ tests

void TestFormat() {
  SetCase("a message by hand");
  const Words codes = {0x80000000u, 5, 0x80000025u};  // gaps 0, 4, 31
  // b = 3; sign and low bits 1 000, 0 100, 1 111; quotients 0, 0, 3.
  const Words expected = {3, 0xF81, 0x23};
  const Words words = Encode(codes, 38);
  CHECK(words == expected, "%zu words", words.size());
  CHECK(Decode(words, 3, 38) == codes, "not what was encoded");
  CHECK(!Decode(words, 3, 37), "an index is not below the size");
  for (int bit = 0; bit < 96; ++bit) {
    Words altered = words;
    altered[bit / 32] ^= 1u << bit % 32;
    const bool is_padding = (bit >= 8 && bit < 32) || (bit >= 32 + 12 && bit < 64) || bit >= 64 + 6;
    CHECK(!is_padding || !Decode(altered, 3, kMaxSize), "bit %d is padding", bit);
  }
  for (uint32_t b = 0; b < 256; ++b) {
    CHECK(Decode({b, 0, 1}, 1, 1).has_value() == (b <= 30), "b=%u", b);
  }
}

void TestRoundTrip() {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{32},
                             int64_t{33}, int64_t{256}, int64_t{257}, int64_t{1000},
                             int64_t{4097}, int64_t{1000000}, kMaxSize - 1, kMaxSize}) {
    for (const int64_t count : {0, 1, 2, 3, 31, 32, 33, 255, 256, 257, 512, 1000, 1023, 1024, 1025,
                                4097, 20000}) {
      if (count > size) continue;
      for (int pattern = 0; pattern < kNumPatterns; ++pattern) {
        SetCase("size=%ld count=%ld pattern=%d", (long)size, (long)count, pattern);
        const Words codes = MakeCodes(static_cast<Pattern>(pattern), count, size, size + count);
        const Words words = Encode(codes, size);
        CHECK(Decode(words, count, size) == codes, "not what was encoded");
        CHECK(ReferenceDecoder(words).Decode(count, size) == codes, "not in the format");
        for (int64_t begin = 0; begin < count; begin += kBlock) {
          const int64_t block = begin / kBlock;
          const int b = words[block / 4] >> 8 * (block % 4) & 0xFF;
          CHECK(b == ShortestParameter(codes, begin), "block %ld: b=%d", (long)block, b);
        }
      }
    }
  }
}

void TestMaxWords() {
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{20000}, int64_t{1000003},
                             kMaxSize}) {
    SetCase("size=%ld", (long)size);
    int64_t fewer = 0;
    for (int64_t count = 0; count <= size; count += count < 30000 ? 1 : size / 5000) {
      const int64_t words = GolombRiceMaxWords(count, size);
      CHECK(words >= fewer && (count > 0 || words == 0), "%ld words for %ld codes", (long)words,
            (long)count);
      fewer = words;
    }
  }
}

// Independent positions have geometric gaps. A sign has one bit.
void TestSizeIsNearEntropy() {
  for (const double density : {0.5, 1e-2, 1e-3, 1e-4}) {
    SetCase("density=%g", density);
    const int64_t count = 45000;
    const int64_t size = std::llround(count / density);
    const double entropy =
        1 - std::log2(density) - (1 - density) / density * std::log2(1 - density);
    const double bits = 32.0 * Encode(MakeCodes(kUniform, count, size, 1), size).size() / count;
    CHECK(bits < 1.03 * entropy, "%.3f bits per code, entropy %.3f", bits, entropy);
    const double max_bits = 32.0 * GolombRiceMaxWords(count, size) / count;
    CHECK(max_bits < 1.06 * entropy, "%.3f bits per code at most, entropy %.3f", max_bits, entropy);
  }
}

// The decoder accepts exactly the words that the reference accepts. Accepted words are a message
// like others.
void CheckLikeReference(const Words& words, int64_t count, int64_t size) {
  const std::optional<Words> codes = Decode(words, count, size);
  CHECK(codes == ReferenceDecoder(words).Decode(count, size), "accepted: %d", codes.has_value());
  if (codes) CHECK(Decode(Encode(*codes, size), count, size) == codes, "not what was encoded");
}

void TestAlteredMessages() {
  for (const int64_t size : {int64_t{40}, int64_t{300}, int64_t{100000}, kMaxSize}) {
    for (const int64_t count : {1, 2, 3, 40, 256, 257, 300}) {
      if (count > size) continue;
      for (const Pattern pattern : {kUniform, kSkewed, kAtEnd}) {
        SetCase("size=%ld count=%ld pattern=%d", (long)size, (long)count, pattern);
        const Words words = Encode(MakeCodes(pattern, count, size, size + count), size);
        const int64_t num_words = words.size();
        for (int64_t length = 0; length < num_words; ++length) {
          CHECK(!Decode({words.begin(), words.begin() + length}, count, size), "%ld words of %ld",
                (long)length, (long)num_words);
        }
        for (const uint32_t extra : {0u, 1u, ~0u}) {
          Words longer = words;
          longer.push_back(extra);
          CHECK(!Decode(longer, count, size), "word %08x at the end", extra);
        }
        for (const int64_t other : {count - 1, count + 1, 2 * count, size}) {
          if (other <= std::min<int64_t>(size, 1000)) CheckLikeReference(words, other, size);
        }
        const int64_t step = 1 + num_words / 20;  // some of the words of a long message
        for (int64_t word = 0; word < num_words; word += word < 3 ? 1 : step) {
          for (int bit = 0; bit < 32; ++bit) {
            Words altered = words;
            altered[word] ^= 1u << bit;
            CheckLikeReference(altered, count, size);
          }
        }
      }
    }
  }
}

void TestIndicesBeyondSize() {
  // One code, b = 30, low bits 1: its index is quotient * 2^30 + 1, which soon exceeds 32 bits.
  for (int quotient = 0; quotient < 200; ++quotient) {
    SetCase("quotient=%d", quotient);
    Words words = {30, 2};
    words.resize(3 + quotient / 32);
    words.back() = 1u << quotient % 32;
    CHECK(Decode(words, 1, kMaxSize).has_value() == (quotient < 2), "decoded");
    CheckLikeReference(words, 1, (1 << 30) + 1);
    CheckLikeReference(words, 1, (1 << 30) + 2);
  }
}

// If it began to decode, it would write to no memory.
bool RejectedAtOnce(const Words& words, int64_t count, int64_t size) {
  return !GolombRiceDecode(words.data(), words.size(), count, size, nullptr);
}

void TestHostileCounts() {
  SetCase("a count without codes");
  CHECK(Decode({}, 0, 0).has_value() && Decode({}, 0, kMaxSize).has_value(), "no codes");
  CHECK(!Decode({0}, 0, 0) && !Decode({0}, 0, kMaxSize), "a word of no codes");
  for (const uint32_t fill : {0x00000000u, 0x01010101u, 0x1E1E1E1Eu, 0xFFFFFFFFu}) {
    for (const int64_t count : {int64_t{45056}, int64_t{1} << 20, int64_t{1} << 25, kMaxSize}) {
      SetCase("words %08x, count=%ld", fill, (long)count);
      CHECK(RejectedAtOnce(Words(3000, fill), count, kMaxSize), "decoded");
    }
  }
  SetCase("more zeros than indices");
  Words words(1000, 0);
  words.back() = 1;
  CHECK(RejectedAtOnce(words, 1, 1), "decoded");
}

}  // namespace
}  // namespace tf_onebit

int main() {
  using namespace tf_onebit;
  TestFormat();
  TestRoundTrip();
  TestMaxWords();
  TestSizeIsNearEntropy();
  TestAlteredMessages();
  TestIndicesBeyondSize();
  TestHostileCounts();
  return Outcome();
}
