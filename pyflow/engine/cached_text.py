"""Texts in a cache: a text that goes on is not computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyflow.adapters import NOTHING
from pyflow.engine.origins import Ranges, drawn_in, tokens_of

if TYPE_CHECKING:
    from pyflow.adapters import Choice
    from pyflow.engine.context import Context


class CachedText:
    """One sequence of a context, and the text of its cells."""

    def __init__(self, context: Context, seq: int = 0) -> None:
        self.context = context
        self.seq = seq
        self.tokens: list[int] = []
        """Begins with those of the cells, by name (engine/origins.py); further ones have no cells
        yet."""
        self.n_positions = context.n_ctx
        """That the text may take, as the context was told."""
        self.adapters = NOTHING if context.adapters is None else context.adapters.default
        """That apply to the text."""

    def declare(self, n_positions: int) -> None:
        """The text may take so many positions; forgets cells turned for another length."""
        if self.context.turns_alike(self.n_positions, n_positions):
            return
        self.tokens = []
        self.context.seq_rm(self.seq, 0)
        self.context.declare(self.seq, n_positions)
        self.n_positions = n_positions

    def adapt(self, adapters: Choice | None) -> None:
        """These adapters apply to the text, or the default; forgets cells made with others."""
        loaded = self.context.adapters
        if loaded is None:
            return
        adapters = loaded.default if adapters is None else adapters
        if adapters == self.adapters:
            return
        self.tokens = []
        self.context.seq_rm(self.seq, 0)
        loaded.apply(self.context.native, self.seq, adapters)
        self.adapters = adapters

    def reuse(self, target: Sequence[int], n_dropped: int = 0) -> int:
        """Cuts the cells to the longest usable prefix of the target; returns its length.

        At least the target's last token remains to be computed. n_dropped: so many tokens have
        left the text, all in one place; if the cells hold what follows them, it moves up.
        """
        try:
            return self._cut_and_move(target, n_dropped)
        except BaseException:
            # Ctrl-C can come anywhere; what the cells then hold is unknown.
            self.tokens = []
            self.context.seq_rm(self.seq, 0)
            raise

    def _cut_and_move(self, target: Sequence[int], n_dropped: int) -> int:
        context, seq = self.context, self.seq
        self.tokens = self.tokens[: context.seq_pos_max(seq) + 1]
        first, same = reusable(self.tokens, target, n_dropped if context.shifts else 0)
        if first is not None:
            context.seq_rm(seq, first, first + n_dropped)
            context.seq_add(seq, first + n_dropped, -1, -n_dropped)
            del self.tokens[first : first + n_dropped]
        keep = context.seq_reusable(seq, same)
        context.seq_rm(seq, keep)
        del self.tokens[keep:]
        return keep


def reusable(
    cached: Sequence[int], target: Sequence[int], n_dropped: int = 0
) -> tuple[int | None, int]:
    """Where n_dropped tokens should leave the cache so that more of the target is in it, or None;
    and how many tokens of the target need no computation then. The last token always does."""
    same = common_prefix(cached, target)
    if n_dropped > 0:
        moved = common_prefix(cached[same + n_dropped :], target[same:])
        if moved > 0:
            return same, min(same + moved, len(target) - 1)
    return None, min(same, len(target) - 1)


def still_drawn(names: Sequence[int], target: Sequence[int], n_dropped: int = 0) -> Ranges:
    """Which tokens of the target were drawn in a text before, given the names of its cells: they
    are what both begin with, and what follows n_dropped tokens that have left the text."""
    tokens = tokens_of(names)
    same = common_prefix(tokens, target)
    moved = 0
    if n_dropped > 0:
        moved = common_prefix(tokens[same + n_dropped :], target[same:])
    return drawn_in([*names[:same], *names[same + n_dropped :][:moved]])


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
