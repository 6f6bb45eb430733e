"""What `pyflow cluster check` tells, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.cluster.planning.layouts import Judged
    from pyflow.cluster.planning.predict import Drafts, Prediction
    from pyflow.cluster.planning.survey import Survey
    from pyflow.cluster.wire.surveys import Link

_GIGA, _MEGA = 1e9, 1e6
# Numbers of rows whose times the table shows; the JSON has all.
_SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Told:
    """A survey, the drafts that predictions assume, and the predictions of all layouts, the fastest
    first."""

    found: Survey
    drafts: Drafts
    judged: Sequence[Judged]

    @property
    def alone(self) -> Judged | None:
        """Each rank a stage of its own; None: it does not fit."""
        return next((each for each in self.judged if each.layout.n_members == 1), None)

    @property
    def best(self) -> Judged:
        return self.judged[0]

    @property
    def shown(self) -> Judged:
        """The layout whose strategies are told one by one: what runs without --layout."""
        return self.alone or self.best

    def tables(self, drafter: str) -> list[str]:
        """drafter: who drafts."""
        from pyflow.cluster.planning.plan import describe

        parts = [self._ranks(), *self._links(), self._strategies()]
        if len(self.judged) > 1:
            parts.append(self._layouts())
        chosen = self.shown.best
        table, lines = describe(chosen.split)
        parts.append(markdown_table([*table[0]], [[*row] for row in table[1:]], left={"HOST"}))
        own = self.found.hellos[0]
        said = [
            f"all have pyflow {own.version} and the same model, {own.model[:12]}",
            f"drafts by {drafter}: {self.drafts.ms:.2f} ms each, "
            f"{self.drafts.acceptance:.0%} of them accepted",
            f"best: {chosen.kind}, {chosen.tokens_per_s:.2f} tokens per second",
            *lines,
        ]
        if self.best is not self.shown:
            said.append(
                f"faster with --layout auto, which takes {self.best.layout}: "
                f"{self.best.best.kind}, {self.best.tokens_per_s:.2f} tokens per second"
            )
        parts.append("\n".join(said))
        return parts

    def _ranks(self) -> str:
        found = self.found
        head = ["rank", "host", "kernels", *(f"ms/layer, {n}" for n in _SHOWN)]
        head += ["head ms", "read", "may use"]
        ranks = [
            [
                str(profile.rank),
                profile.host,
                hello.device or hello.isa,
                *(f"{profile.layer_ms[n - 1]:.3f}" for n in _SHOWN),
                f"{profile.head_ms:.2f}",
                f"{read / _GIGA:.1f} GB/s",
                f"{profile.max_nbytes / 2**20:,.0f} MiB" if profile.max_nbytes else "drafts",
            ]
            for profile, read, hello in zip(
                found.pipeline.ranks, found.read_bytes_per_s, found.hellos, strict=True
            )
        ]
        return markdown_table(head, ranks, left={"host", "kernels"})

    def _links(self) -> list[str]:
        links, gathers = self.found.pipeline.links, self.found.gathers
        pairs = {} if gathers is None else gathers.pairs
        rows = []
        for pair in sorted({*links, *pairs}):
            cells = _link_cells(links.get(pair))
            cells += [] if gathers is None else _link_cells(pairs.get(pair))
            rows.append([f"{pair[0]} and {pair[1]}", *cells])
        if not rows:
            return []
        head = ["ranks", "latency", "bandwidth"]
        head += [] if gathers is None else ["gather", "gathers' bandwidth"]
        return [markdown_table(head, rows, left={"ranks"})]

    def _strategies(self) -> str:
        rows = [
            [
                each.kind + (", redrafting" if each.strategy.redrafts else ""),
                str(each.strategy.n_draft),
                str(each.strategy.n_flight),
                ",".join(str(len(layers)) for layers in each.split.ranges),
                f"{each.tokens_per_s:.2f}",
            ]
            for each in self.shown.found
        ]
        head = ["strategy", "drafts", "runs", "layers", "t/s"]
        return markdown_table(head, rows, left={"strategy", "layers"})

    def _layouts(self) -> str:
        rows = []
        for each in self.judged:
            by_kind = {p.kind: f"{p.tokens_per_s:.2f}" for p in each.found}
            rows.append(
                [
                    str(each.layout),
                    " ".join("-".join(map(str, g.ranks)) for g in each.layout.groups),
                    *(by_kind.get(kind, "") for kind in ("iterative", "speculative", "pipeinfer")),
                    f"{each.runs_per_s:.1f}",
                ]
            )
        head = ["layout", "ranks", "iterative", "speculative", "pipeinfer", "runs/s"]
        return markdown_table(head, rows, left={"layout", "ranks"})

    def as_dict(self, who: dict[str, Any]) -> dict[str, Any]:
        """who: drafts, by what and where."""
        found, gathers = self.found, self.found.gathers
        reads = found.read_bytes_per_s
        chosen = self.shown.best
        return {
            "ranks": [
                {
                    **structs.asdict(profile),
                    "read_bytes_per_s": read,
                    "version": hello.version,
                    "model": hello.model,
                    "isa": hello.isa,
                    "device": hello.device,
                }
                for profile, read, hello in zip(
                    found.pipeline.ranks, reads, found.hellos, strict=True
                )
            ],
            "links": [
                {"from": i, "to": j, **structs.asdict(link)}
                for (i, j), link in found.pipeline.links.items()
            ],
            "gathers": None
            if gathers is None
            else {
                "pairs": [
                    {"from": i, "to": j, **structs.asdict(link)}
                    for (i, j), link in gathers.pairs.items()
                ],
                "more_s": gathers.more_s,
            },
            "drafts": asdict(self.drafts) | who,
            "strategies": [_strategy(each, chosen) for each in self.shown.found],
            "layouts": [
                {
                    "layout": str(each.layout),
                    "groups": [structs.asdict(group) for group in each.layout.groups],
                    "token_ms": each.best.split.token_ms,
                    "runs_per_s": each.runs_per_s,
                    "tokens_per_s": each.tokens_per_s,
                    "chosen": each is self.best,
                    "strategies": [_strategy(p, each.best) for p in each.found],
                }
                for each in self.judged
            ],
        }


def _link_cells(link: Link | None) -> list[str]:
    if link is None:
        return ["", ""]
    return [f"{1e6 * link.latency_s:,.1f} us", f"{link.bytes_per_s / _MEGA:,.0f} MB/s"]


def _strategy(each: Prediction, chosen: Prediction) -> dict[str, Any]:
    return {
        "kind": each.kind,
        "n_draft": each.strategy.n_draft,
        "n_rows": each.strategy.n_rows,
        "n_flight": each.strategy.n_flight,
        "redrafts": each.strategy.redrafts,
        "layers": [len(layers) for layers in each.split.ranges],
        "tokens_per_s": each.tokens_per_s,
        "chosen": each is chosen,
    }
