// How a list of gradients is cut into columns, columns into shards, and a shard into a message.
//
// A tensor is `size` values in rows of `row_size` (the last may be shorter); a row is cut into
// columns of `column_size` (the last of a row may be shorter). A tensor with column_size 0 is
// *plain*: it travels in full precision. Columns are numbered through all tensors; shard k is the
// run of columns [shard_starts[k], shard_starts[k + 1]).
//
// Message of a shard, in 32-bit words, the same length for all shards:
//   [ flag | levels: 2 floats per column | codes: each column starts on a word | plain values ]
// The message of the second stage ends before the plain values.

#ifndef TF_ONEBIT_LIB_LAYOUT_H_
#define TF_ONEBIT_LIB_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tf_onebit {

constexpr int64_t kCodesPerWord = 32;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Column {
  int tensor;      // index in the list of gradients
  int64_t offset;  // of its first value in the tensor
  int64_t value;   // of its first value among the values of all columns (residual, aggregate)
  int64_t word;    // of its first code word among the words of all columns
  int64_t count;   // number of values
};

class Layout {
 public:
  Layout() = default;

  // The four lists must be consistent; see Valid().
  Layout(const std::vector<int64_t>& sizes, const std::vector<int64_t>& row_sizes,
         const std::vector<int64_t>& column_sizes, const std::vector<int64_t>& shard_starts)
      : sizes_(sizes), shard_starts_(shard_starts) {
    Cut end{};
    for (size_t t = 0; t < sizes.size(); ++t) {
      if (column_sizes[t] == 0) {
        plain_tensors_.push_back(static_cast<int>(t));
        plain_size_ += sizes[t];
        continue;
      }
      Cut cut = end;
      cut.tensor = static_cast<int>(t);
      cut.size = sizes[t];
      cut.row_size = row_sizes[t];
      cut.column_size = column_sizes[t];
      cut.columns_per_row = CeilDiv(cut.row_size, cut.column_size);
      cut.words_per_row = WordsInRun(cut.row_size, cut.column_size);
      cuts_.push_back(cut);
      const int64_t rest = cut.size % cut.row_size;
      end.first_column +=
          cut.size / cut.row_size * cut.columns_per_row + CeilDiv(rest, cut.column_size);
      end.first_word +=
          cut.size / cut.row_size * cut.words_per_row + WordsInRun(rest, cut.column_size);
      end.first_value += cut.size;
    }
    end_ = end;
    for (int64_t k = 0; k < num_shards(); ++k) {
      levels_per_shard_ = std::max(levels_per_shard_, 2 * shard_columns(k));
      words_per_shard_ = std::max(words_per_shard_, ShardEnd(k).word - ShardBegin(k).word);
    }
  }

  // Whether the lists describe a layout at all.
  static bool Valid(const std::vector<int64_t>& sizes, const std::vector<int64_t>& row_sizes,
                    const std::vector<int64_t>& column_sizes,
                    const std::vector<int64_t>& shard_starts) {
    if (sizes.size() != row_sizes.size() || sizes.size() != column_sizes.size()) return false;
    int64_t columns = 0;
    for (size_t t = 0; t < sizes.size(); ++t) {
      if (sizes[t] < 0 || column_sizes[t] < 0) return false;
      if (column_sizes[t] == 0) continue;
      if (row_sizes[t] < column_sizes[t]) return false;
      columns += sizes[t] / row_sizes[t] * CeilDiv(row_sizes[t], column_sizes[t]) +
                 CeilDiv(sizes[t] % row_sizes[t], column_sizes[t]);
    }
    return shard_starts.size() >= 2 && shard_starts.front() == 0 &&
           shard_starts.back() == columns &&
           std::is_sorted(shard_starts.begin(), shard_starts.end());
  }

  int64_t num_tensors() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t num_columns() const { return end_.first_column; }
  int64_t num_shards() const {
    return shard_starts_.empty() ? 0 : static_cast<int64_t>(shard_starts_.size()) - 1;
  }
  int64_t tensor_size(int tensor) const { return sizes_[tensor]; }
  const std::vector<int>& plain_tensors() const { return plain_tensors_; }
  int64_t plain_size() const { return plain_size_; }
  // Number of values in columns: the size of the worker's residual.
  int64_t size() const { return end_.first_value; }

  int64_t shard_start(int64_t shard) const { return shard_starts_[shard]; }
  int64_t shard_columns(int64_t shard) const {
    return shard_starts_[shard + 1] - shard_starts_[shard];
  }
  int64_t shard_size(int64_t shard) const { return ShardEnd(shard).value - ShardBegin(shard).value; }
  int64_t shard_of(int64_t column) const {
    return std::upper_bound(shard_starts_.begin(), shard_starts_.end(), column) -
           shard_starts_.begin() - 1;
  }

  int64_t levels_at() const { return 1; }
  int64_t codes_at() const { return levels_at() + levels_per_shard_; }
  int64_t plain_at() const { return codes_at() + words_per_shard_; }
  int64_t worker_message_words() const { return plain_at() + plain_size_; }
  int64_t shard_message_words() const { return plain_at(); }

  // Column `index` in [0, num_columns()); for num_columns(), an empty column at the end.
  Column column(int64_t index) const {
    if (index == num_columns()) return {-1, 0, end_.first_value, end_.first_word, 0};
    const Cut& cut = *(std::upper_bound(cuts_.begin(), cuts_.end(), index,
                                        [](int64_t i, const Cut& c) { return i < c.first_column; }) -
                       1);
    const int64_t row = (index - cut.first_column) / cut.columns_per_row;
    const int64_t piece = (index - cut.first_column) % cut.columns_per_row;
    const int64_t row_end = std::min((row + 1) * cut.row_size, cut.size);
    const int64_t offset = row * cut.row_size + piece * cut.column_size;
    return {cut.tensor, offset, cut.first_value + offset,
            cut.first_word + row * cut.words_per_row +
                piece * CeilDiv(cut.column_size, kCodesPerWord),
            std::min(cut.column_size, row_end - offset)};
  }
  Column ShardBegin(int64_t shard) const { return column(shard_starts_[shard]); }
  Column ShardEnd(int64_t shard) const { return column(shard_starts_[shard + 1]); }

 private:
  struct Cut {  // a tensor that is cut into columns, and what precedes it
    int tensor;
    int64_t size, row_size, column_size;
    int64_t columns_per_row, words_per_row;
    int64_t first_column, first_word, first_value;
  };

  static int64_t WordsInRun(int64_t size, int64_t column_size) {
    return size / column_size * CeilDiv(column_size, kCodesPerWord) +
           CeilDiv(size % column_size, kCodesPerWord);
  }

  std::vector<int64_t> sizes_, shard_starts_;
  std::vector<int> plain_tensors_;
  std::vector<Cut> cuts_;
  Cut end_{};
  int64_t plain_size_ = 0, levels_per_shard_ = 0, words_per_shard_ = 0;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_LAYOUT_H_
