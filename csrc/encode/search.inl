// Runs a format's search (its header names it, encode/search/ defines it) over a range of blocks,
// as many at once as fill sixteen lanes with sub-blocks. For example, Q4_K has 8 sub-blocks of 32
// weights: kSubs = 8 and kBlocks = 2, so lane 11 is sub-block 3 of the second block, whose weights
// begin at 256 + 3 * 32. If the range ends inside a group, spare lanes repeat its last block.

template <class Format>
static void search_blocks(const SearchArgs& args, int64_t begin, int64_t end, quant::Fields* out) {
  using Search = typename Format::Search;
  constexpr int kSubs = quant::kLanes / Search::kBlocks, kWeights = Format::kBlock / kSubs;
  const int64_t per_row = args.n_cols / Format::kBlock;
  for (int64_t b = begin; b < end; b += Search::kBlocks) {
    quant::SearchInput in;
    in.on_grid = args.on_grid;
    for (int l = 0; l < quant::kLanes; ++l) {
      const int64_t own = b + l / kSubs, block = own < end ? own : end - 1;  // a spare lane
      const int64_t at = l % kSubs * kWeights;
      in.x[l] = args.x + block * Format::kBlock + at;
      in.importance[l] =
          args.importance ? args.importance + block % per_row * Format::kBlock + at : nullptr;
    }
    quant::Fields found[Search::kBlocks];
    Search::template run<Simd>(in, found);
    for (int i = 0; i < Search::kBlocks && b + i < end; ++i) out[b + i - begin] = found[i];
  }
}

template <class Format>
static constexpr auto search_of() {
  if constexpr (Format::kBlock > 1 && quant::Encodable<Format>) {
    return &search_blocks<Format>;
  } else {
    return nullptr;
  }
}

static inline void fill_search(EncodeTable& t) {
#define PYFLOW_FORMAT(name, id, block, bytes) \
  t.search[static_cast<size_t>(DType::name)] = search_of<quant::name>();
#include "quant/formats.def"
#undef PYFLOW_FORMAT
}
