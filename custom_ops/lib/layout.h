// The division of gradients into columns, and of columns into shards, and the format of messages.
//
// A tensor is `size` values in rows of `row_size` (the last may be shorter). A row is cut into
// columns of `column_size` (the last of a row may be shorter). A tensor with column_size 0 is
// *plain*: it travels in full precision. Columns are numbered through all tensors. Shard k is the
// run of columns [shard_starts[k], shard_starts[k + 1]).
//
// The message of a shard consists of 32-bit words, and has the same length for all shards:
//   [ flag | levels: 2 floats per column | codes: each column starts on a word | plain values ]
// The message of the second stage ends before the plain values.

#ifndef TF_ONEBIT_LIB_LAYOUT_H_
#define TF_ONEBIT_LIB_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lib/indexing.h"
#include "lib/lanes.h"

namespace tf_onebit {

struct Column {
  int tensor;      // index in the list of gradients
  int64_t offset;  // place of its first value in the tensor
  int64_t value;   // place of its first value among the values of all columns (residual, aggregate)
  int64_t word;    // place of its first code word among the words of all columns
  int64_t count;   // number of values
};

// A tensor that is cut into columns, and the numbers of columns, words and values before it.
struct Cut {
  int64_t tensor;
  int64_t size, row_size, column_size;
  int64_t columns_per_row, words_per_row;
  int64_t first_column, first_word, first_value;
};

// The first column of a shard, and the first word and value of that column.
struct ShardStart {
  int64_t column, word, value;
};

// A plain tensor, and the number of plain values before it.
struct PlainRun {
  int64_t tensor, size, first;
};

// The parts of a layout that kernels read, as plain data. A device has a copy of the lists.
struct LayoutView {
  const Cut* cuts;
  const ShardStart* shards;  // and one more, for the end of the last shard
  const PlainRun* plain_runs;
  int64_t num_cuts, num_shards, num_plain_runs;
  int64_t levels_at, codes_at, plain_at, plain_size;

  TF_ONEBIT_HOST_DEVICE_MEMBER int64_t worker_message_words() const {
    return plain_at + plain_size;
  }
  TF_ONEBIT_HOST_DEVICE_MEMBER int64_t shard_message_words() const { return plain_at; }

  // Returns column `index` in [0, number of columns).
  TF_ONEBIT_HOST_DEVICE_MEMBER Column column(int64_t index) const {
    const Cut& cut = cuts[LastBy(index, cuts, num_cuts, &Cut::first_column)];
    const int64_t row = (index - cut.first_column) / cut.columns_per_row;
    const int64_t piece = index - cut.first_column - row * cut.columns_per_row;
    const int64_t begin = piece * cut.column_size, first = row * cut.row_size;
    const int64_t row_left = cut.row_size - begin, left = cut.size - first - begin;
    const int64_t in_row = cut.column_size < row_left ? cut.column_size : row_left;
    return {static_cast<int>(cut.tensor), first + begin, cut.first_value + first + begin,
            cut.first_word + row * cut.words_per_row + piece * CeilDiv(cut.column_size, kWordBits),
            in_row < left ? in_row : left};
  }

  TF_ONEBIT_HOST_DEVICE_MEMBER int64_t shard_of(int64_t column) const {
    return LastBy(column, shards, num_shards, &ShardStart::column);
  }

  // The places of a column's levels and codes in the message of a shard.
  TF_ONEBIT_HOST_DEVICE_MEMBER int64_t levels_of(int64_t column, int64_t shard) const {
    return levels_at + 2 * (column - shards[shard].column);
  }
  TF_ONEBIT_HOST_DEVICE_MEMBER int64_t codes_of(const Column& column, int64_t shard) const {
    return codes_at + column.word - shards[shard].word;
  }
};

class Layout {
 public:
  Layout() = default;

  // The four lists must be consistent; see Valid().
  Layout(const std::vector<int64_t>& sizes, const std::vector<int64_t>& row_sizes,
         const std::vector<int64_t>& column_sizes, const std::vector<int64_t>& shard_starts)
      : sizes_(sizes) {
    for (size_t t = 0; t < sizes.size(); ++t) {
      if (column_sizes[t] == 0) {
        plain_runs_.push_back({static_cast<int64_t>(t), sizes[t], plain_size_});
        plain_size_ += sizes[t];
        continue;
      }
      Cut cut{};
      cut.tensor = static_cast<int64_t>(t);
      cut.size = sizes[t];
      cut.row_size = row_sizes[t];
      cut.column_size = column_sizes[t];
      cut.columns_per_row = CeilDiv(cut.row_size, cut.column_size);
      cut.words_per_row = WordsInRun(cut.row_size, cut.column_size);
      cut.first_column = end_.column;
      cut.first_word = end_.word;
      cut.first_value = end_.value;
      cuts_.push_back(cut);
      const int64_t rest = cut.size % cut.row_size;
      end_.column += cut.size / cut.row_size * cut.columns_per_row + CeilDiv(rest, cut.column_size);
      end_.word += cut.size / cut.row_size * cut.words_per_row + WordsInRun(rest, cut.column_size);
      end_.value += cut.size;
    }
    for (int64_t column : shard_starts) shards_.push_back(StartAt(column));
    for (int64_t k = 0; k < num_shards(); ++k) {
      levels_per_shard_ = std::max(levels_per_shard_, 2 * shard_columns(k));
      words_per_shard_ = std::max(words_per_shard_, shard(k + 1).word - shard(k).word);
    }
  }

  // Returns whether the lists describe a layout.
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
  int64_t num_columns() const { return end_.column; }
  int64_t num_shards() const {
    return shards_.empty() ? 0 : static_cast<int64_t>(shards_.size()) - 1;
  }
  int64_t tensor_size(int64_t tensor) const { return sizes_[tensor]; }
  const std::vector<PlainRun>& plain_runs() const { return plain_runs_; }
  int64_t plain_size() const { return plain_size_; }
  // Number of values in columns: the size of the worker's residual.
  int64_t size() const { return end_.value; }

  // Returns shard `k` in [0, num_shards()), or for num_shards() the end of the last one.
  const ShardStart& shard(int64_t k) const { return shards_[k]; }
  int64_t shard_columns(int64_t k) const { return shard(k + 1).column - shard(k).column; }
  int64_t shard_size(int64_t k) const { return shard(k + 1).value - shard(k).value; }

  int64_t worker_message_words() const { return view().worker_message_words(); }
  int64_t shard_message_words() const { return view().shard_message_words(); }

  // Returns a view with the lists of this layout, which must outlive it.
  LayoutView view() const { return ViewOf(cuts_.data(), shards_.data(), plain_runs_.data()); }

  // `table` has all lists one after another, for a copy on a device. The view has the lists of that
  // copy.
  std::vector<int64_t> table() const {
    std::vector<int64_t> table;
    AppendItems(cuts_, &table);
    AppendItems(shards_, &table);
    AppendItems(plain_runs_, &table);
    return table;
  }
  LayoutView view(const int64_t* table) const {
    const Cut* const cuts = reinterpret_cast<const Cut*>(table);
    const ShardStart* const shards = reinterpret_cast<const ShardStart*>(cuts + cuts_.size());
    return ViewOf(cuts, shards, reinterpret_cast<const PlainRun*>(shards + shards_.size()));
  }

 private:
  static int64_t WordsInRun(int64_t size, int64_t column_size) {
    return size / column_size * CeilDiv(column_size, kWordBits) +
           CeilDiv(size % column_size, kWordBits);
  }

  LayoutView ViewOf(const Cut* cuts, const ShardStart* shards, const PlainRun* plain_runs) const {
    constexpr int64_t kLevelsAt = 1;
    const int64_t codes_at = kLevelsAt + levels_per_shard_;
    return {cuts, shards, plain_runs, static_cast<int64_t>(cuts_.size()), num_shards(),
            static_cast<int64_t>(plain_runs_.size()), kLevelsAt, codes_at,
            codes_at + words_per_shard_, plain_size_};
  }

  ShardStart StartAt(int64_t index) const {
    if (index == num_columns()) return end_;
    const Column column = view().column(index);
    return {index, column.word, column.value};
  }

  std::vector<int64_t> sizes_;
  std::vector<Cut> cuts_;
  std::vector<ShardStart> shards_;
  std::vector<PlainRun> plain_runs_;
  ShardStart end_{};
  int64_t plain_size_ = 0, levels_per_shard_ = 0, words_per_shard_ = 0;
};

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_LAYOUT_H_
