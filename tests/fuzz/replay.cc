// Runs a fuzz target over the files of folders, for compilers without libFuzzer.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

int main(int num_arguments, char** arguments) {
  int num_inputs = 0;
  for (int i = 1; i < num_arguments; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) {
      // The last printed file is the one that fails.
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<uint8_t> input(std::istreambuf_iterator<char>(file), {});
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++num_inputs;
    }
  }
  std::printf("%d inputs\n", num_inputs);
  return num_inputs > 0 ? 0 : 1;
}
