"""What was measured of a cluster: its ranks, the links between them, the rounds of members."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyflow.cluster.planning.members import Gathers, Sharing
from pyflow.cluster.planning.plan import ClusterProfile
from pyflow.cluster.planning.predict import Drafts
from pyflow.cluster.wire.messages import Hello


@dataclass(frozen=True, slots=True)
class Survey:
    """The measurement. read_bytes_per_s, hellos: by rank.

    draft_ms: per drafted token, if another rank than 0 drafts. sharing, gathers: of members that
    share a stage; None if this was not measured, or cannot be.
    """

    pipeline: ClusterProfile
    read_bytes_per_s: tuple[float, ...]
    hellos: tuple[Hello, ...] = ()
    draft_ms: float | None = None
    sharing: Sharing | None = None
    gathers: Gathers | None = None

    def drafts(self, drafts: Drafts | None) -> Drafts | None:
        """The same drafts with their measured time."""
        if drafts is None or self.draft_ms is None:
            return drafts
        return replace(drafts, ms=self.draft_ms)
