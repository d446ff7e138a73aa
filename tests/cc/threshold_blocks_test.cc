// Tests of the threshold kernels against scalar loops written from their definition, and of the
// faults of corrupt messages.
//
// Every table that the processor supports is tested. Build them with -fsanitize=address,undefined
// as well: inputs are allocated at their exact size, so that a read past an end is caught.

#include "kernels/threshold_blocks.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lib/threshold.h"
#include "testing.h"

namespace tf_onebit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<int64_t> Counts() {
  std::vector<int64_t> counts;
  for (int64_t count = 0; count <= 100; ++count) counts.push_back(count);
  counts.insert(counts.end(), {kBlockSize - 1, kBlockSize});
  return counts;
}

const ThresholdBlocks& PlainBlocks() {
  auto* blocks = SupportedThresholdBlocks();
  while (blocks[1] != nullptr) ++blocks;
  return **blocks;
}

template <typename T>
constexpr const char* kTypeName = "float32";
template <>
constexpr const char* kTypeName<float16> = "float16";
template <>
constexpr const char* kTypeName<bfloat16> = "bfloat16";

// ------------------------------------------------------------------------------------ encode

struct Encoded {
  EncodedBlock block;
  Buffer<uint32_t> codes;
  Buffer<float> residual;
};

template <typename T>
Encoded RunEncode(const ThresholdBlocks& blocks, const Buffer<T>& gradient,
                  const Buffer<float>& residual, int64_t count, const ThresholdRule& rule,
                  uint32_t first_index, int offset) {
  Encoded encoded{{},
                  {Buffer<uint32_t>::kOutput, count, offset},
                  {Buffer<float>::kOutput, count, (5 * offset + 3) % 16}};
  encoded.residual.CopyFrom(residual);
  encoded.block = blocks.encode(gradient.data())(gradient.data(), encoded.residual.data(), count,
                                                 rule, first_index, encoded.codes.data());
  CHECK(encoded.codes.SentinelsIntact(), "wrote beside the codes");
  CHECK(encoded.residual.SentinelsIntact(), "wrote beside the residual");
  return encoded;
}

// The largest relative error of a sum: a square, 128 values per lane and 5 steps of the tree.
constexpr double kTolerance = (1 + 128 + 5) * 0x1p-24;

template <typename T>
void CheckEncoded(const Encoded& encoded, const Buffer<T>& gradient, const Buffer<float>& residual,
                  int64_t count, const ThresholdRule& rule, uint32_t first_index) {
  int64_t num_codes = 0;
  bool finite = true;
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float corrected = ToFloat(gradient[i]) + rule.decay * residual[i];
    float rest = corrected;
    uint32_t code = first_index + static_cast<uint32_t>(i);
    bool sent = true;
    if (std::isnan(corrected) || std::isinf(corrected)) {
      rest = residual[i];
      sent = finite = false;
    } else if (corrected > rule.threshold) {
      rest = corrected - rule.magnitude;
    } else if (corrected < -rule.threshold) {
      rest = corrected + rule.magnitude;
      code |= 0x80000000u;
    } else {
      sent = false;
    }
    CHECK(BitsOf(encoded.residual[i]) == BitsOf(rest), "i=%ld corrected=%.9g: %.9g, expected %.9g",
          (long)i, corrected, encoded.residual[i], rest);
    if (sent && num_codes++ < encoded.block.num_codes) {
      const uint32_t got = encoded.codes[num_codes - 1];
      CHECK(got == code, "code %ld is %08x, expected %08x", (long)num_codes - 1, got, code);
    }
    squares += double{rest} * rest;
  }
  CHECK(encoded.block.num_codes == num_codes, "%ld codes, expected %ld",
        (long)encoded.block.num_codes, (long)num_codes);
  CHECK(encoded.block.finite == finite, "finite=%d", encoded.block.finite);
  const double error = std::fabs(encoded.block.sum_of_squares - squares);
  // If values are not finite or overflow, there is no expected sum. All tables agree on it.
  CHECK(!(squares < FLT_MAX) || error <= kTolerance * squares + count * 0x1p-149,
        "squares=%.9g, expected %.9g", encoded.block.sum_of_squares, squares);
}

void CheckSameBits(const Encoded& a, const Encoded& b) {
  CHECK(a.residual.SameBits(b.residual), "residuals differ from plain");
  CHECK(BitsOf(a.block.sum_of_squares) == BitsOf(b.block.sum_of_squares),
        "squares %.9g, plain %.9g", a.block.sum_of_squares, b.block.sum_of_squares);
  CHECK(a.block.finite == b.block.finite, "finite differs from plain");
  CHECK(a.block.num_codes == b.block.num_codes &&
            std::memcmp(a.codes.data(), b.codes.data(), 4 * a.block.num_codes) == 0,
        "codes differ from plain");
}

template <typename T>
void CheckEncode(const Buffer<T>& gradient, const Buffer<float>& residual, int64_t count,
                 const ThresholdRule& rule, uint32_t first_index, int offset, const char* what) {
  const auto run = [&](const ThresholdBlocks& blocks) {
    SetCase("encode %s %s count=%ld offset=%d threshold=%g magnitude=%g decay=%g first_index=%u %s",
            blocks.name, kTypeName<T>, (long)count, offset, rule.threshold, rule.magnitude,
            rule.decay, first_index, what);
    return RunEncode(blocks, gradient, residual, count, rule, first_index, offset);
  };
  const Encoded plain = run(PlainBlocks());
  CheckEncoded(plain, gradient, residual, count, rule, first_index);
  for (auto* blocks = SupportedThresholdBlocks(); *blocks != nullptr; ++blocks) {
    CheckSameBits(run(**blocks), plain);
  }
}

struct Data {
  const char* name;
  float threshold;
  float (*draw)(Random&);
};

// Values are the gradients, and the residuals are half of them.
const Data kData[] = {
    {"some exceed", 1.2f, [](Random& r) { return r.Bell(); }},
    {"most exceed", 1e-3f, [](Random& r) { return r.Bell(); }},
    {"far above", 1e-20f, [](Random& r) { return 1e20f * r.Bell(); }},
    {"nothing exceeds infinity", kInfinity, [](Random& r) { return FLT_MAX / 4 * r.Bell(); }},
    {"all exceed", 0.25f, [](Random& r) { return r.Bits() & 1 ? -1.0f : 1.0f; }},
    {"zeros", FLT_TRUE_MIN, [](Random& r) { return r.Bits() & 1 ? -0.0f : 0.0f; }},
    // They are denormal in float32 and in bfloat16, and so is the threshold.
    {"denormals", 0x1p-136f, [](Random& r) { return r.Bell() * 0x1p-135f; }},
    {"wide", 0.1f,
     [](Random& r) { return std::ldexp(r.Bell(), static_cast<int>(r.Bits() % 30) - 24); }},
};

template <typename T>
void TestEncode() {
  for (const int64_t count : Counts()) {
    for (int offset = 0; offset < 16; ++offset) {
      for (const Data& data : kData) {
        Random random(100 * count + offset);
        Buffer<T> gradient(Buffer<T>::kInput, count, offset);
        Buffer<float> residual(Buffer<float>::kInput, count, (3 * offset + 1) % 16);
        for (int64_t i = 0; i < count; ++i) {
          gradient[i] = FromFloat<T>(data.draw(random));
          residual[i] = 0.5f * data.draw(random);
        }
        const uint32_t highest = 0x80000000u - static_cast<uint32_t>(count);
        for (const uint32_t first_index : {0u, 4096u * 77, highest}) {
          if (offset != 0 && first_index != highest) continue;
          const float tau = data.threshold;
          for (const ThresholdRule& rule : {ThresholdRule{tau, tau, 1}, {tau, 1.25f * tau, 0.7f}}) {
            CheckEncode(gradient, residual, count, rule, first_index, offset, data.name);
          }
        }
      }
    }
  }
}

// One value exceeds the threshold, in each place of a block.
template <typename T>
void TestValueInEveryPlace() {
  const float tau = 0.5f, above = std::nextafterf(tau, 1.0f), below = std::nextafterf(tau, 0.0f);
  struct {
    const char* name;
    float gradient, residual;
    int64_t num_codes;
    bool finite;
  } const kCases[] = {
      {"tau", tau, 0, 0, true},
      {"-tau", -tau, 0, 0, true},
      {"tau as a sum", 0.25f, 0.25f, 0, true},
      {"next above tau", 0, above, 1, true},
      {"next below -tau", -0.0f, -above, 1, true},
      {"next below tau", 0, below, 0, true},
      {"-0.0", -0.0f, -0.0f, 0, true},
      {"NaN", kNaN, 0.75f, 0, false},
      {"-NaN", -kNaN, -0.75f, 0, false},
      {"infinity", kInfinity, -0.75f, 0, false},
      {"-infinity", -kInfinity, 0.75f, 0, false},
      {"infinite residual", 1, kInfinity, 0, false},
      {"infinite residual, below", 1, -kInfinity, 0, false},
      {"infinities of both signs", kInfinity, -kInfinity, 0, false},
      {"residual that is NaN", 1, kNaN, 0, false},
  };
  for (const int64_t count : {1, 2, 31, 32, 33, 64, 100}) {
    Buffer<T> gradient(Buffer<T>::kInput, count, 3);
    Buffer<float> residual(Buffer<float>::kInput, count, 0);
    for (int64_t i = 0; i < count; ++i) {
      gradient[i] = FromFloat<T>(0.125f);
      residual[i] = -0.25f;
    }
    for (int64_t i = 0; i < count; ++i) {
      const T gradient_before = gradient[i];
      const float residual_before = residual[i];
      for (const auto& special : kCases) {
        gradient[i] = FromFloat<T>(special.gradient);
        residual[i] = special.residual;
        CheckEncode(gradient, residual, count, {tau, tau, 1}, 9, 1, special.name);
        // The assumptions of the loops above, stated without them.
        const Encoded encoded =
            RunEncode(**SupportedThresholdBlocks(), gradient, residual, count, {tau, tau, 1}, 9, 1);
        CHECK(encoded.block.num_codes == special.num_codes, "%ld codes",
              (long)encoded.block.num_codes);
        CHECK(encoded.block.finite == special.finite, "finite=%d", encoded.block.finite);
        CHECK(special.finite || BitsOf(encoded.residual[i]) == BitsOf(special.residual),
              "the residual is %g", encoded.residual[i]);
      }
      gradient[i] = gradient_before;
      residual[i] = residual_before;
    }
  }
}

void TestOverflow() {
  for (const int64_t count : {1, 40}) {
    Buffer<float> gradient(Buffer<float>::kInput, count, 0);
    Buffer<float> residual(Buffer<float>::kInput, count, 0);
    for (int64_t i = 0; i < count; ++i) gradient[i] = residual[i] = 1;
    gradient[count - 1] = residual[count - 1] = FLT_MAX;
    CheckEncode(gradient, residual, count, {0.5f, 0.5f, 1}, 0, 0, "gradient + residual overflows");
    residual[count - 1] = 0;
    CheckEncode(gradient, residual, count, {0.5f, 0.5f, 1}, 0, 0, "a square overflows");
  }
}

// ------------------------------------------------------------------------------------ decode

struct Message {
  std::vector<uint32_t> codes;
  float step;
};

// Returns codes of indices in [begin, end), each included with probability `density`.
std::vector<uint32_t> MakeCodes(uint32_t begin, uint32_t end, float density, Random& random) {
  std::vector<uint32_t> codes;
  for (uint32_t index = begin; index < end; ++index) {
    if (random.Uniform() < density) codes.push_back(index | (random.Bits() & 0x80000000u));
  }
  return codes;
}

std::vector<Message> MakeMessages(uint32_t begin, uint32_t end, Random& random) {
  return {
      {MakeCodes(begin, end, 0.1f, random), 0.7f},
      {MakeCodes(begin, end, 1.0f, random), 1e-3f},
      {{}, 5.0f},
      {MakeCodes(begin, end, 0.01f, random), 3e4f},
      {MakeCodes((begin + end) / 2, end, 0.5f, random), 0x1p-149f},
      {MakeCodes(begin, (begin + end) / 2, 0.5f, random), 0x1p-130f},
  };
}

// Decodes blocks of `count` values, one after another, until all are decoded.
template <typename T>
void CheckDecode(const std::vector<Message>& messages, uint32_t begin, uint32_t end, int64_t count,
                 float scale) {
  std::vector<float> sums(end - begin, 0.0f);
  for (const auto& [codes, step] : messages) {
    for (const uint32_t code : codes) {
      sums[(code & 0x7FFFFFFF) - begin] += code >> 31 ? -step : step;
    }
  }
  for (const bool stream : {false, true}) {
    for (auto* blocks = SupportedThresholdBlocks(); *blocks != nullptr; ++blocks) {
      std::vector<Buffer<uint32_t>> memory;
      std::vector<CodeRun> runs;
      for (const auto& [codes, step] : messages) {
        memory.emplace_back(Buffer<uint32_t>::kInput, codes.size(), 1);
        std::copy(codes.begin(), codes.end(), memory.back().data());
        runs.push_back({memory.back().data(), memory.back().data() + codes.size(), step});
      }
      for (uint32_t at = begin; at < end; at += static_cast<uint32_t>(count)) {
        SetCase("decode %s %s messages=%zu at=%u count=%ld scale=%g stream=%d", (*blocks)->name,
                kTypeName<T>, messages.size(), at, (long)count, scale, stream);
        Buffer<T> out(Buffer<T>::kOutput, count, at % 31);
        (*blocks)->decode(out.data())(runs.data(), runs.size(), at, count, scale, stream,
                                      out.data());
        (*blocks)->finish_streaming();
        for (int64_t i = 0; i < count; ++i) {
          const T expected = FromFloat<T>(scale * sums[at - begin + i]);
          CHECK(std::memcmp(&out[i], &expected, sizeof(T)) == 0, "i=%ld: %.9g, expected %.9g",
                (long)i, ToFloat(out[i]), ToFloat(expected));
        }
        CHECK(out.SentinelsIntact(), "wrote beside the output");
        for (const CodeRun& run : runs) {
          CHECK(run.next == run.end || (*run.next & 0x7FFFFFFF) >= at + count,
                "a run stays behind");
        }
      }
      for (const CodeRun& run : runs) {
        CHECK(run.next == run.end, "%ld codes are left", (long)(run.end - run.next));
      }
    }
  }
}

template <typename T>
void TestDecode() {
  for (const int64_t count : Counts()) {
    if (count == 0) continue;
    const uint32_t num_values = static_cast<uint32_t>(count) * (count > 100 ? 3 : 20);
    for (const uint32_t end : {num_values, 0x80000000u}) {
      const uint32_t begin = end - num_values;
      Random random(count + begin);
      const std::vector<Message> messages = MakeMessages(begin, end, random);
      CheckDecode<T>(messages, begin, end, count, 1.0f);
      CheckDecode<T>(messages, begin, end, count, 1.0f / 3);
      CheckDecode<T>({messages[0]}, begin, end, count, 0.25f);
      CheckDecode<T>({messages[2]}, begin, end, count, 1.0f);
      CheckDecode<T>({}, begin, end, count, 1.0f);
    }
  }
}

// No value, and a code beyond the block.
template <typename T>
void TestDecodeOfNothing() {
  for (auto* blocks = SupportedThresholdBlocks(); *blocks != nullptr; ++blocks) {
    for (const bool stream : {false, true}) {
      SetCase("decode %s %s count=0 stream=%d", (*blocks)->name, kTypeName<T>, stream);
      const uint32_t code = 7;
      CodeRun run = {&code, &code + 1, 1.0f};
      Buffer<T> out(Buffer<T>::kOutput, 0, 5);
      (*blocks)->decode(out.data())(&run, 1, 7, 0, 1.0f, stream, out.data());
      (*blocks)->finish_streaming();
      CHECK(run.next == &code && out.SentinelsIntact(), "decoded");
    }
  }
}

// ---------------------------------------------------------------------------------- messages

using FaultFunction = const char* (*)(const int32_t* words, int64_t num_words, int64_t size);

// Returns the fault of a message in memory of its exact size, or "".
std::string FaultOf(FaultFunction fault_of, const std::vector<int32_t>& words, int64_t size) {
  Buffer<int32_t> message(Buffer<int32_t>::kInput, words.size(), 1);
  std::copy(words.begin(), words.end(), message.data());
  const char* const fault = fault_of(message.data(), words.size(), size);
  return fault == nullptr ? "" : fault;
}

bool Says(const std::string& fault, const std::string& expected) {
  return expected.empty() ? fault.empty() : fault.find(expected) != std::string::npos;
}

int32_t Word(uint32_t bits) { return static_cast<int32_t>(bits); }

std::vector<int32_t> MakeMessage(const std::vector<uint32_t>& codes, int64_t padding = 0) {
  const auto count = static_cast<int32_t>(codes.size());
  std::vector<int32_t> words = {0, kHeaderWords + count, count, count, Word(BitsOf(0.5f)), 0};
  for (const uint32_t code : codes) words.push_back(Word(code));
  words.resize(words.size() + padding);
  return words;
}

template <typename Change>
std::vector<int32_t> With(std::vector<int32_t> words, Change change) {
  change(words);
  return words;
}

void CheckFaults(const char* what, const std::vector<int32_t>& words, int64_t size,
                 const char* of_header, const char* of_message) {
  SetCase("a message, %s", what);
  const std::string header_fault = FaultOf(HeaderFault, words, size);
  CHECK(Says(header_fault, of_header), "its header: '%s', expected '%s'", header_fault.c_str(),
        of_header);
  const std::string message_fault = FaultOf(ThresholdMessageFault, words, size);
  CHECK(Says(message_fault, of_message), "'%s', expected '%s'", message_fault.c_str(), of_message);
}

void TestFaults() {
  constexpr uint32_t kMinus = 0x80000000u;
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  const std::vector<int32_t> good = MakeMessage({0, kMinus | 3, 9});

  CheckFaults("as it must be", good, 10, "", "");
  CheckFaults("padded", MakeMessage({0, kMinus | 3, 9}, 5), 10, "", "");
  CheckFaults("of no values", MakeMessage({}), 0, "", "");
  CheckFaults("of no values, padded", MakeMessage({}, 1), 0, "", "");
  CheckFaults("of all values", MakeMessage({0, 1, 2}), 3, "", "");
  CheckFaults("of the highest index", MakeMessage({0x7FFFFFFF}), kMaxSize, "", "");
  CheckFaults("of the highest index, negative", MakeMessage({0xFFFFFFFF}), kMaxSize, "", "");

  for (int64_t length = 0; length < kHeaderWords; ++length) {
    const std::vector<int32_t> words(good.begin(), good.begin() + length);
    CheckFaults("cut within its header", words, 10, "within its header", "within its header");
  }
  for (const int32_t length : {0, kHeaderWords - 1, kHeaderWords + 4, INT32_MAX, -1, INT32_MIN}) {
    const auto words = With(good, [=](auto& w) { w[kWordsWord] = length; });
    CheckFaults("another length", words, 10, "its length", "its length");
  }
  for (const int32_t count : {11, INT32_MAX, -1, INT32_MIN}) {
    const auto words = With(good, [=](auto& w) { w[kCountWord] = count; });
    CheckFaults("too many values", words, 10, "more values than there are", "more values");
  }
  for (const float step : {-1.0f, -0x1p-149f, kNaN, -kNaN, kInfinity, -kInfinity}) {
    const auto words = With(good, [=](auto& w) { w[kStepWord] = Word(BitsOf(step)); });
    CheckFaults("another step", words, 10, "its step", "its step");
  }
  for (const int32_t exceeding : {0, 2}) {
    const auto words = With(good, [=](auto& w) { w[kExceedingWord] = exceeding; });
    CheckFaults("too few that exceed", words, 10, "than exceed", "than exceed");
  }
  for (const int32_t exceeding : {11, -1, INT32_MIN}) {
    const auto words = With(good, [=](auto& w) { w[kExceedingWord] = exceeding; });
    CheckFaults("too many that exceed", words, 10, "than there are", "than there are");
  }
  for (const float squares : {-1.0f, -0x1p-149f, kNaN, -kInfinity}) {
    auto words = With(good, [=](auto& w) { w[kSquaresWord] = Word(BitsOf(squares)); });
    CheckFaults("other squares", words, 10, "sum of squares", "sum of squares");
    words[kFlagWord] = 1;
    CheckFaults("flagged, other squares", words, 10, "", "");
  }
  const auto flagged = With(good, [](auto& w) { w[kFlagWord] = -1; });
  CheckFaults("a negative flag", flagged, 10, "its flag", "its flag");
  const auto huge = With(good, [=](auto& w) { w[kSquaresWord] = Word(BitsOf(kInfinity)); });
  CheckFaults("infinite squares", huge, 10, "", "");
  // The header cannot know how many words its values take, because they may be coded.
  for (const int32_t count : {0, 2, 4, 10}) {
    const auto words = With(good, [=](auto& w) { w[kCountWord] = count, w[kExceedingWord] = 10; });
    CheckFaults("another number of values", words, 10, "", "do not agree");
  }
  const auto shorter = With(good, [](auto& w) { w[kWordsWord] -= 1; });
  CheckFaults("a word less", shorter, 10, "", "do not agree");

  CheckFaults("an index as high as the size", good, 9, "", "do not ascend");
  CheckFaults("an index above a size of 1", MakeMessage({kMinus | 7}), 1, "", "do not ascend");
  CheckFaults("an index twice", MakeMessage({4, 4}), 10, "", "do not ascend");
  CheckFaults("an index with both signs", MakeMessage({4, kMinus | 4}), 10, "", "do not ascend");
  CheckFaults("descending", MakeMessage({1, 5, 4, 6}), 10, "", "do not ascend");
  CheckFaults("descending at the end", MakeMessage({1, 5, 4}), 10, "", "do not ascend");
  CheckFaults("a high index early", MakeMessage({11, 5}), 10, "", "do not ascend");
  CheckFaults("the highest index", MakeMessage({0x7FFFFFFF}), kMaxSize - 1, "", "do not ascend");
}

}  // namespace
}  // namespace tf_onebit

int main() {
  using namespace tf_onebit;
  TestEncode<float>();
  TestEncode<float16>();
  TestEncode<bfloat16>();
  TestValueInEveryPlace<float>();
  TestValueInEveryPlace<float16>();
  TestValueInEveryPlace<bfloat16>();
  TestOverflow();
  TestDecode<float>();
  TestDecode<float16>();
  TestDecode<bfloat16>();
  TestDecodeOfNothing<float>();
  TestDecodeOfNothing<float16>();
  TestDecodeOfNothing<bfloat16>();
  TestFaults();
  return Outcome();
}
