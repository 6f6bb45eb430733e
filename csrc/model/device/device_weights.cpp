#include "model/device/device_weights.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "kernels/table.h"

namespace pyflow {
namespace {

// Allocations of this size or less leave little memory unused.
constexpr size_t kMostBytes = size_t{1} << 30;

// A run of a matrix's tiles at an offset of an allocation.
struct Place {
  const PackedTensor* matrix;
  int64_t first_tile, n_tiles;
  size_t allocation, offset;
};
struct Allocation {
  size_t nbytes = 0;
  const std::string* first = nullptr;  // the tensor that it begins with
  size_t n_matrices = 0;

  std::string what() const {
    return "weights: tensor " + *first +
           (n_matrices > 1 ? " and " + std::to_string(n_matrices - 1) + " more" : "");
  }
};
struct Layout {
  std::vector<Allocation> allocations;
  std::vector<Place> places;
};

size_t tile_bytes(const PackedTensor& matrix) {
  return matrix.nbytes() / static_cast<size_t>(matrix.tiles());
}

// Matrices one after the other, cut between tiles where an allocation ends. A tile of two members
// lies on both.
Layout laid_out(const device::DeviceInfo& info, Membership own,
                std::span<const NamedMatrix> matrices, const DeviceNeeds& needs) {
  const size_t most = std::min<uint64_t>(info.largest_buffer, kMostBytes);
  Layout layout;
  for (const auto& [name, matrix] : matrices) {
    const size_t tile = tile_bytes(*matrix);
    if (tile > most)
      throw ResourceError(info.name + ": tensor " + *name + ": sixteen rows take " + grouped(tile) +
                          " bytes, an allocation has " + grouped(most));
    const Share rows = needs.cut_of(*matrix).rows_of(own.number, own.of);
    const int64_t end_tile = PackedTensor::tile_count(rows.end);
    for (int64_t first = rows.begin / kTileRows, n = 0; first < end_tile; first += n) {
      const auto aligned = [&](size_t at) {
        return (at + info.alignment - 1) / info.alignment * info.alignment;
      };
      if (layout.allocations.empty() || aligned(layout.allocations.back().nbytes) + tile > most)
        layout.allocations.push_back({0, name, 0});
      Allocation& last = layout.allocations.back();
      last.nbytes = aligned(last.nbytes);
      ++last.n_matrices;
      n = std::min<int64_t>(end_tile - first, static_cast<int64_t>((most - last.nbytes) / tile));
      layout.places.push_back({matrix, first, n, layout.allocations.size() - 1, last.nbytes});
      last.nbytes += static_cast<size_t>(n) * tile;
    }
  }
  return layout;
}

// Where matrices begin in one allocation, and their distance; nothing if it is not one.
std::optional<std::pair<const Place*, size_t>> series_in(const Layout& layout,
                                                         std::span<const PackedTensor* const> all) {
  std::map<const PackedTensor*, std::vector<const Place*>> found;
  for (const Place& place : layout.places) found[place.matrix].push_back(&place);
  std::vector<const Place*> places;
  for (const PackedTensor* matrix : all) {
    const auto& own = found[matrix];
    if (own.size() != 1 || own[0]->allocation != found[all[0]][0]->allocation) return {};
    places.push_back(own[0]);
  }
  const size_t step = places.size() > 1 ? places[1]->offset - places[0]->offset : 0;
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i]->offset != places[0]->offset + i * step || all[i]->dtype() != all[0]->dtype())
      return {};
  return std::pair(places[0], step);
}

}  // namespace

size_t DeviceWeights::nbytes(const device::DeviceInfo& info, Membership own,
                             std::span<const NamedMatrix> matrices, const DeviceNeeds& needs) {
  size_t total = 0;
  for (const Allocation& each : laid_out(info, own, matrices, needs).allocations)
    total += each.nbytes;
  return total;
}

void DeviceWeights::place(std::span<const NamedMatrix> matrices, const DeviceNeeds& needs) {
  const Layout layout = laid_out(device_->info(), own_, matrices, needs);
  for (const Allocation& each : layout.allocations) {
    memory_.push_back(device_->allocate(each.nbytes, each.what().c_str()));
    try {  // some drivers have memory, or have it refused, when it is first used
      queue_->fill(*memory_.back(), 0, std::min<size_t>(each.nbytes, kTileRows), 0);
      queue_->finish();
    } catch (const ResourceError& error) {
      throw ResourceError(std::string(error.what()) + "; found when " + grouped(each.nbytes) +
                          " bytes for " + each.what() + " were used");
    }
  }
  for (const auto& [name, matrix] : matrices) matrices_[matrix];  // a member may have none of it
  for (const Place& at : layout.places) {
    const PackedTensor& w = *at.matrix;
    const int64_t first_row = at.first_tile * kTileRows,
                  n_rows = std::min(at.n_tiles * kTileRows, w.rows() - first_row);
    const size_t nbytes = static_cast<size_t>(at.n_tiles) * tile_bytes(w);
    slices_.push_back(memory_[at.allocation]->slice(at.offset, nbytes));
    matrices_[&w].push_back({first_row, {slices_.back().get(), w.dtype(), n_rows, w.cols()}});
  }
  for (const auto& all : needs.all_series()) {
    const auto found = series_in(layout, all);
    if (!found) continue;
    const auto& [first, step] = *found;
    DevicePiece piece = matrices_[all[0]][0];
    // Over the slices of each matrix: both are only read once a step runs.
    slices_.push_back(memory_[first->allocation]->slice(
        first->offset, (all.size() - 1) * step + piece.matrix.tiles->nbytes()));
    piece.matrix.tiles = slices_.back().get();
    series_.insert_or_assign(all[0], DeviceSeries{piece, static_cast<int64_t>(step)});
  }
}

void DeviceWeights::upload(const PackedTensor& matrix, const uint8_t* tiles) {
  const device::Drain drain(*queue_);
  for (const DevicePiece& piece : pieces(matrix)) {
    // Only this writes to weights.
    auto& to = const_cast<device::DeviceBuffer&>(*piece.matrix.tiles);
    const auto tile = static_cast<size_t>(piece.first_row / kTileRows);
    queue_->upload(tiles + tile * tile_bytes(matrix), to, 0, to.nbytes());
  }
  queue_->finish();
}

void DeviceWeights::upload(const DeviceNeeds& needs) {
  const device::Drain drain(*queue_);
  for (const auto& [v, n] : needs.vectors()) {
    const size_t nbytes = static_cast<size_t>(n) * sizeof(float);
    auto& to = vectors_[{v, n}];
    to = device_->allocate(nbytes, "norms and biases");
    queue_->upload(v, *to, 0, nbytes);
  }
  queue_->finish();
}

}  // namespace pyflow
