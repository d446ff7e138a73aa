// Fuzzes the Golomb-Rice code. The decoder never reads or writes out of bounds, and what it accepts
// are codes. Any codes come back from their message, which is as short as promised. No word of it
// can be left out.

#include "lib/golomb_rice.h"

#undef NDEBUG  // properties are checked in every build
#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <vector>

namespace tf_onebit {
namespace {

uint32_t IndexOf(uint32_t code) { return code & 0x7FFFFFFF; }

// Memory of the exact size and without contents, so that sanitizers see every access beside it.
std::unique_ptr<uint32_t[]> Allocate(int64_t num_words) {
  return std::unique_ptr<uint32_t[]>(new uint32_t[num_words]);
}

void CheckRoundTrip(const uint32_t* codes, int64_t count) {
  const int64_t size = count == 0 ? 0 : int64_t{IndexOf(codes[count - 1])} + 1;
  const int64_t max_words = GolombRiceMaxWords(count, size);
  const auto words = Allocate(max_words);
  const int64_t num_words = GolombRiceEncode(codes, count, words.get());
  assert(num_words <= max_words);
  const auto decoded = Allocate(count);
  assert(GolombRiceDecode(words.get(), num_words, count, size, decoded.get()));
  assert(std::equal(codes, codes + count, decoded.get()));
  if (count == 0) return;
  assert(!GolombRiceDecode(words.get(), num_words - 1, count, size, decoded.get()));
  assert(count == size ||
         !GolombRiceDecode(words.get(), num_words, count, size - 1, decoded.get()));
}

// Input: size - 1 (4 bytes), count (2 bytes), words.
void CheckDecode(const uint8_t* data, size_t num_bytes) {
  uint32_t last_index;
  uint16_t max_count;
  const size_t header_bytes = sizeof(last_index) + sizeof(max_count);
  if (num_bytes < header_bytes) return;
  std::memcpy(&last_index, data, sizeof(last_index));
  std::memcpy(&max_count, data + sizeof(last_index), sizeof(max_count));
  const int64_t size = int64_t{IndexOf(last_index)} + 1;
  const int64_t count = std::min<int64_t>(max_count, size);

  const int64_t num_words = (num_bytes - header_bytes) / sizeof(uint32_t);
  const auto words = Allocate(num_words);
  std::memcpy(words.get(), data + header_bytes, num_words * sizeof(uint32_t));
  const auto codes = Allocate(count);
  if (!GolombRiceDecode(words.get(), num_words, count, size, codes.get())) return;
  int64_t previous = -1;
  for (int64_t i = 0; i < count; ++i) {
    assert(IndexOf(codes[i]) > previous);
    previous = IndexOf(codes[i]);
  }
  assert(previous < size);
  CheckRoundTrip(codes.get(), count);
}

// Input: codes of two bytes, a sign (1 bit) and a gap (10 bits, shifted by a number of 5 bits).
void CheckEncode(const uint8_t* data, size_t num_bytes) {
  std::vector<uint32_t> codes;
  int64_t next_index = 0;
  for (size_t at = 0; at + 2 <= num_bytes; at += 2) {
    uint16_t bits;
    std::memcpy(&bits, data + at, sizeof(bits));
    const int64_t index = next_index + (int64_t{bits & 0x3FF} << (bits >> 10 & 0x1F));
    if (index > INT32_MAX) break;
    codes.push_back((bits & 0x8000u) << 16 | static_cast<uint32_t>(index));
    next_index = index + 1;
  }
  CheckRoundTrip(codes.data(), codes.size());
}

}  // namespace
}  // namespace tf_onebit

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  tf_onebit::CheckDecode(data, num_bytes);
  tf_onebit::CheckEncode(data, num_bytes);
  return 0;
}
