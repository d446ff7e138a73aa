// Finds the item of a list that an index falls into.

#ifndef TF_ONEBIT_LIB_INDEXING_H_
#define TF_ONEBIT_LIB_INDEXING_H_

#include <cstdint>
#include <vector>

#include "lib/host_device.h"

namespace tf_onebit {

TF_ONEBIT_HOST_DEVICE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `count` items are in ascending order of `first`. Returns the index of the last one that begins at
// or before `index`.
template <typename Item>
TF_ONEBIT_HOST_DEVICE int64_t LastBy(int64_t index, const Item* items, int64_t count,
                                     int64_t Item::*first) {
  int64_t found = 0;
  while (count > 1) {
    const int64_t half = count / 2;
    if (items[found + half].*first <= index) found += half;
    count -= half;
  }
  return found;
}

// Joins lists of items that consist of int64 only, for one copy of them on a device.
template <typename Item>
void AppendItems(const std::vector<Item>& items, std::vector<int64_t>* table) {
  static_assert(sizeof(Item) % sizeof(int64_t) == 0);
  const int64_t* const words = reinterpret_cast<const int64_t*>(items.data());
  table->insert(table->end(), words, words + items.size() * (sizeof(Item) / sizeof(int64_t)));
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_INDEXING_H_
