// Members of a stage in one process, of which the context of member 0 is used like that of a stage
// of one.
#include <exception>
#include <string>
#include <tuple>

#include "core/errors.h"
#include "model/context.h"

namespace pyflow {

void Context::lead(std::vector<std::shared_ptr<Context>> others) {
  const auto number = [](const Context& c) { return c.stage_->spec().member.number; };
  const auto sizes = [](const ContextConfig& c) {
    return std::tie(c.n_ctx, c.n_seq_max, c.n_batch, c.cache_type, c.layers);
  };
  const int64_t of = stage_->spec().member.of;
  bool fit = number(*this) == 0 && std::ssize(others) == of - 1;
  for (int64_t i = 1; fit && i < of; ++i) {
    const Context& other = *others[static_cast<size_t>(i - 1)];
    fit = number(other) == i && sizes(other.config_) == sizes(config_);
  }
  if (!fit)
    throw ShapeError("context: expected member 0 of " + std::to_string(of) +
                     ", and the others in their order, with the same sizes");
  crew_ = std::make_unique<ThreadPool>(static_cast<int>(of), false);
  others_ = std::move(others);
}

void Context::compute_together(const Input& input, const Consume& consume,
                               const std::function<bool()>& poll) {
  // Member 0 alone is asked to stop and tells the others so; it alone looks at logits, which all
  // have.
  const std::function<bool()> never;
  const Consume nothing = [](int64_t, std::span<const float>) {};
  std::vector<std::exception_ptr> causes(others_.size() + 1), effects(causes.size());
  crew_->run([&](Team& team) {
    const auto i = static_cast<size_t>(team.rank());
    Context& member = i == 0 ? *this : *others_[i - 1];
    try {
      member.compute(input, i == 0 ? consume : nothing, i == 0 ? poll : never);
    } catch (const LinkError&) {  // mostly, since another one has failed
      effects[i] = std::current_exception();
    } catch (...) {
      causes[i] = std::current_exception();
    }
  });
  for (const auto& all : {causes, effects})
    for (const std::exception_ptr& error : all)
      if (error) std::rethrow_exception(error);
}

}  // namespace pyflow
