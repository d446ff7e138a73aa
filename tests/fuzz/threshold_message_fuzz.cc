// Fuzzes the check of threshold messages, and their decoding. Neither reads or writes out of
// bounds. Accepted messages have the right format, and decode to the results of a scalar loop.

#include "lib/threshold.h"

#undef NDEBUG  // properties are checked in every build
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/threshold_blocks.h"

namespace tf_onebit {
namespace {

using Words = std::vector<uint32_t>;

// Memory of the exact size, so that sanitizers see every access beside it.
template <typename T>
std::unique_ptr<T[]> Allocate(int64_t count) {
  return std::unique_ptr<T[]>(new T[count]);
}

// Follows the definition of the format literally.
bool IsMessage(const Words& words, int64_t size) {
  if (words.size() < 6) return false;
  const uint32_t flag = words[0], length = words[1], count = words[2], exceeding = words[3];
  const float step = FloatOf(words[4]), squares = FloatOf(words[5]);
  if (length > words.size() || count > size || length != 6 + uint64_t{count}) return false;
  if (flag >> 31 || count > exceeding || exceeding > size) return false;
  if (std::isnan(step) || std::isinf(step) || step < 0) return false;
  if (flag == 0 && (std::isnan(squares) || squares < 0)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t index = words[6 + i] & 0x7FFFFFFF;
    if (index >= size || (i > 0 && index <= (words[5 + i] & 0x7FFFFFFF))) return false;
  }
  return true;
}

// Returns the words of those rows that are messages.
std::vector<std::unique_ptr<int32_t[]>> Accepted(const std::vector<Words>& rows, int64_t size) {
  std::vector<std::unique_ptr<int32_t[]>> messages;
  for (const Words& row : rows) {
    auto words = Allocate<int32_t>(row.size());
    std::copy(row.begin(), row.end(), words.get());
    const bool accepted = ThresholdMessageFault(words.get(), row.size(), size) == nullptr;
    assert(accepted == IsMessage(row, size));
    if (accepted) messages.push_back(std::move(words));
  }
  return messages;
}

template <typename T>
void CheckDecode(const std::vector<std::unique_ptr<int32_t[]>>& messages, int64_t size,
                 float scale, bool stream) {
  std::vector<CodeRun> all;
  std::vector<float> sums(size, 0.0f);
  for (const auto& message : messages) {
    const auto* const codes = reinterpret_cast<const uint32_t*>(message.get() + kHeaderWords);
    const float step = FloatOf(static_cast<uint32_t>(message[kStepWord]));
    all.push_back({codes, codes + message[kCountWord], step});
    for (const uint32_t* code = codes; code != all.back().end; ++code) {
      sums[*code & 0x7FFFFFFF] += *code >> 31 ? -step : step;
    }
  }
  for (auto* blocks = SupportedThresholdBlocks(); *blocks != nullptr; ++blocks) {
    std::vector<CodeRun> runs = all;
    for (int64_t begin = 0; begin < size; begin += kBlockSize) {
      const int64_t count = std::min(kBlockSize, size - begin);
      const auto out = Allocate<T>(count);
      (*blocks)->decode(out.get())(runs.data(), runs.size(), static_cast<uint32_t>(begin), count,
                                   scale, stream, out.get());
      (*blocks)->finish_streaming();
      for (int64_t i = 0; i < count; ++i) {
        const T expected = FromFloat<T>(scale * sums[begin + i]);
        const bool is_nan = std::isnan(ToFloat(expected));  // huge steps cancel
        assert(is_nan ? std::isnan(ToFloat(out[i])) : !std::memcmp(&out[i], &expected, sizeof(T)));
      }
    }
    for (const CodeRun& run : runs) assert(run.next == run.end);
  }
}

}  // namespace
}  // namespace tf_onebit

// Input: size (2 bytes), number of rows - 1 (2 bits), type (2 bits), stream (1 bit), rows of words.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace tf_onebit;
  constexpr size_t kBeforeRows = 3;
  if (num_bytes < kBeforeRows) return 0;
  const int64_t size = data[0] | data[1] << 8;
  const int64_t num_rows = 1 + (data[2] & 3), type = data[2] >> 2 & 3;
  const bool stream = data[2] >> 4 & 1;
  const int64_t words_per_row = (num_bytes - kBeforeRows) / sizeof(uint32_t) / num_rows;
  std::vector<Words> rows;
  for (int64_t r = 0; r < num_rows; ++r) {
    rows.emplace_back(words_per_row);
    if (words_per_row == 0) continue;
    const size_t row_bytes = words_per_row * sizeof(uint32_t);
    std::memcpy(rows.back().data(), data + kBeforeRows + r * row_bytes, row_bytes);
  }
  const auto messages = Accepted(rows, size);
  if (type == 0) CheckDecode<float>(messages, size, 0.5f, stream);
  if (type == 1) CheckDecode<float16>(messages, size, 1.0f / 3, stream);
  if (type == 2) CheckDecode<bfloat16>(messages, size, 1.0f / 3, stream);
  return 0;
}
