// Looking up which item of a list an index falls into.

#ifndef TF_ONEBIT_LIB_INDEXING_H_
#define TF_ONEBIT_LIB_INDEXING_H_

#include <cstdint>
#include <vector>

#include "lib/host_device.h"

namespace tf_onebit {

TF_ONEBIT_HOST_DEVICE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of `count` items in ascending order of `first`, the index of the last that begins by `index`.
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

// Lists of items that are int64 only, one after another: for one copy of them on a device.
template <typename Item>
void AppendItems(const std::vector<Item>& items, std::vector<int64_t>* table) {
  static_assert(sizeof(Item) % sizeof(int64_t) == 0);
  const int64_t* const words = reinterpret_cast<const int64_t*>(items.data());
  table->insert(table->end(), words, words + items.size() * (sizeof(Item) / sizeof(int64_t)));
}

}  // namespace tf_onebit

#endif  // TF_ONEBIT_LIB_INDEXING_H_
