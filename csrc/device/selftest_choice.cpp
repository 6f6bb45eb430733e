// The choice of experts, on devices that have f64.
#include <array>
#include <string>
#include <vector>

#include "device/selftest.h"
#include "device/selftest_values.h"
#include "kernels/choice.h"

namespace pyflow::device {
namespace {

constexpr int64_t kRows = 70, kExperts = 40, kChosen = 6;
constexpr int64_t kSlots = kRows * kChosen;

// Of all sizes, with equal ones, and rows of wild ones.
Floats scores(Random& random) {
  Floats x = random.numbers(kRows * kExperts, 30.0f);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = static_cast<float>(static_cast<int>(x[i]));
  const Floats wild = random.patterns(4 * kExperts);
  std::copy(wild.begin(), wild.end(), x.begin());
  return x;
}

}  // namespace

std::string choice_fault(Ops& ops) {
  if (!ops.device().info().has_f64) return "";
  Random random;
  const Floats x = scores(random), shared = random.patterns(kRows);
  const auto queue = ops.device().make_queue();
  const auto memory = [&](size_t n) {
    return ops.device().allocate(n * sizeof(float), "self-test");
  };
  const auto logits = memory(x.size()), own = memory(shared.size()),
             out = memory(2 * kSlots + kRows);
  for (const bool normalize : {true, false}) {
    const Choice how = {kExperts, kChosen, normalize, 2.5f};
    std::vector<int32_t> chosen(kSlots), found_chosen(kSlots);
    Floats weights(kSlots + kRows), found(kSlots + kRows);
    for (int64_t r = 0; r < kRows; ++r) {
      choose(how, x.data() + r * kExperts, nullptr, weights.data() + r * kChosen,
             chosen.data() + r * kChosen);
      weights[static_cast<size_t>(kSlots + r)] = sigmoid(shared[static_cast<size_t>(r)]);
    }
    const Drain drain(*queue);
    queue->upload(x.data(), *logits, 0, logits->nbytes());
    queue->upload(shared.data(), *own, 0, own->nbytes());
    ops.choose(*queue, how, {logits.get(), 0, kExperts}, {own.get(), 0, 1},
               {{out.get(), 0, 0}, {out.get(), kSlots, 0}, {out.get(), 2 * kSlots, 0}}, kRows);
    queue->download(*out, 0, found_chosen.data(), kSlots * sizeof(int32_t));
    queue->download(*out, kSlots * sizeof(float), found.data(), found.size() * sizeof(float));
    queue->finish();
    for (size_t i = 0; i < chosen.size(); ++i)
      if (chosen[i] != found_chosen[i])
        return "choice " + std::to_string(i) + " of experts: expected " +
               std::to_string(chosen[i]) + ", found " + std::to_string(found_chosen[i]);
    for (size_t i = 0; i < weights.size(); ++i)
      if (!same(weights[i], found[i]))
        return "weight " + std::to_string(i) + " of experts: expected " + shown(weights[i]) +
               ", found " + shown(found[i]);
  }
  return "";
}

}  // namespace pyflow::device
