#include "model/group/deciding.h"

#include <algorithm>
#include <cstring>

#include "model/group/group.h"

namespace pyflow {
namespace {

constexpr int32_t kAllNeeded = -1;

// What a member sends of a row: how many tokens it has, then these.
struct Record {
  uint8_t* at;

  static size_t nbytes(int64_t most) {
    return sizeof(int64_t) + static_cast<size_t>(most) * sizeof(Candidate);
  }
  int64_t n() const {
    int64_t count;
    std::memcpy(&count, at, sizeof count);
    return count;
  }
  void write(const std::vector<Candidate>& tokens, int64_t count) {
    std::memcpy(at, &count, sizeof count);
    if (count > 0)
      std::memcpy(at + sizeof count, tokens.data(), static_cast<size_t>(count) * sizeof(Candidate));
  }
  Candidate token(int64_t i) const {
    Candidate c;
    std::memcpy(&c, at + sizeof(int64_t) + static_cast<size_t>(i) * sizeof c, sizeof c);
    return c;
  }
};
static_assert(sizeof(Candidate) == 8);

}  // namespace

bool Deciding::pays(int64_t n_vocab, int64_t n_members) const {
  return most != kAllTokens && static_cast<int64_t>(Record::nbytes(most)) * n_members <
                                   n_vocab * static_cast<int64_t>(sizeof(float));
}

bool gather_deciding(const Step& s, Team& team, const LogitRows& rows, const Shares& vocab,
                     const Deciding& deciding) {
  Group& group = *s.group;
  const size_t nbytes = Record::nbytes(deciding.most);
  const auto record = [&](size_t member, int64_t row) {
    return Record{group.piece(member) + static_cast<size_t>(row) * nbytes};
  };
  const auto row_of = [&rows](int64_t r) {
    return std::span(rows.rows + r * rows.stride, static_cast<size_t>(rows.n_vocab));
  };
  if (team.rank() == 0) group.lay_out_pieces(static_cast<size_t>(rows.n) * nbytes);
  team.barrier();
  team.for_each(rows.n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::vector<Candidate> tokens;
      bool enough = false;
      try {
        enough = deciding.of(rows.first + r, row_of(r), vocab.own, tokens) &&
                 std::ssize(tokens) <= deciding.most;
      } catch (...) {  // what comes of all logits says it
      }
      record(group.number(), r).write(tokens, enough ? std::ssize(tokens) : kAllNeeded);
    }
  });
  if (team.rank() == 0) {
    bool enough = group.exchange_pieces();
    for (size_t m = 0; m < vocab.all.size() && enough; ++m)
      for (int64_t r = 0; r < rows.n; ++r)
        enough = enough && record(m, r).n() >= 0 && record(m, r).n() <= deciding.most;
    group.set_enough(enough);
  }
  team.barrier();
  if (!group.enough()) return false;
  team.for_each(rows.n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const std::span<float> row = row_of(r);
      std::ranges::fill(row, kNever);
      for (size_t m = 0; m < vocab.all.size(); ++m)
        for (int64_t i = 0; i < record(m, r).n(); ++i)
          if (const Candidate c = record(m, r).token(i); c.token >= 0 && c.token < rows.n_vocab)
            row[static_cast<size_t>(c.token)] = c.logit;
    }
  });
  return true;
}

}  // namespace pyflow
