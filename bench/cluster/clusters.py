"""Models and machines by sizes and rates: those of Butler et al., PipeInfer (2024), section V.

What everything takes follows by the formulas below, which were written down before any strategy was
tried on them:

    weights of a layer   = parameters * bits per weight / 8 / layers
    time of n rows       = max(weights / memory rate, n * parameters of the layer / multiply rate)
    memory rate          = channels * transfers/s * 8 bytes * 0.7
    multiply rate        = cores * clock * multiply-adds per cycle
    hidden state         = 4 bytes * n_embd * rows
    cells of a layer     = 2 * 2 bytes * n_kv_embd * positions

Bits per weight are those of llama.cpp's formats for models of this size: Q2_K 3.35, Q3_K_M 3.91,
Q4_K_M 4.85. A core makes 16 multiply-adds of quantized weights per cycle with AVX2, 8 with AVX:
half of what its vector unit could, the rest goes into unpacking.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts, Objective, split
from pyflow.cluster.planning.virtual import ClusterTimes
from pyflow.cluster.wire.surveys import Link, RankProfile

BITS = {"Q2_K": 3.35, "Q3_K_M": 3.91, "Q4_K_M": 4.85}


@dataclass(frozen=True, slots=True)
class Weights:
    """A model by its size. n_kv_embd: numbers that a layer keeps of a position, keys alone."""

    parameters: float
    n_layers: int
    n_embd: int
    n_kv_embd: int
    format: str

    @property
    def layer_nbytes(self) -> float:
        return self.parameters * BITS[self.format] / 8 / self.n_layers

    def nbytes(self, n_layers: int, n_cells: int) -> float:
        """Of so many layers, with their cells."""
        return n_layers * (self.layer_nbytes + 2 * 2 * self.n_kv_embd * n_cells)


@dataclass(frozen=True, slots=True)
class Node:
    """What one machine does per second, and the bytes that a model may take there."""

    bytes_per_s: float
    macs_per_s: float
    max_nbytes: float

    def layers_s(self, weights: Weights, n_layers: float, n_rows: int) -> float:
        """Seconds of so many layers for so many rows."""
        reading = weights.layer_nbytes / self.bytes_per_s
        computing = n_rows * weights.parameters / weights.n_layers / self.macs_per_s
        return n_layers * max(reading, computing)

    def slower(self, factor: float) -> Node:
        """The same machine, for which everything takes so many times as long."""
        return Node(self.bytes_per_s / factor, self.macs_per_s / factor, self.max_nbytes)


def node(channels: int, transfers: float, cores: int, clock: float, macs: int, gb: int) -> Node:
    """A machine by its data sheet; 5 % of its memory is the system's."""
    return Node(channels * transfers * 8 * 0.7, cores * clock * macs, 0.95e9 * gb)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, another one that drafts for it, and how often that is right."""

    name: str
    target: Weights
    draft: Weights
    alpha: float


LLAMA_70B = Weights(69e9, 80, 8192, 1024, "Q3_K_M")
GOLIATH = Weights(118e9, 137, 8192, 1024, "Q2_K")
FALCON_180B = Weights(179e9, 80, 14848, 512, "Q3_K_M")
TINY = Weights(1.1e9, 22, 2048, 256, "Q4_K_M")
LLAMA_7B = Weights(6.7e9, 32, 4096, 4096, "Q4_K_M")
LLAMA_13B = Weights(13e9, 40, 5120, 5120, "Q4_K_M")
FALCON_7B = Weights(7.2e9, 32, 4544, 64, "Q3_K_M")
FALCON_40B = Weights(41e9, 60, 8192, 512, "Q3_K_M")
PAIRS = [
    Pair("Dolphin-70B + TinyLlama-1.1B", LLAMA_70B, TINY, 0.79),
    Pair("Dolphin-70B + Orca2-7B", LLAMA_70B, LLAMA_7B, 0.66),
    Pair("Goliath-120B + XWin-7B", GOLIATH, LLAMA_7B, 0.52),
    Pair("Goliath-120B + XWin-13B", GOLIATH, LLAMA_13B, 0.61),
    Pair("Falcon-180B + Falcon-7B", FALCON_180B, FALCON_7B, 0.687),
    Pair("Falcon-180B + Falcon-40B", FALCON_180B, FALCON_40B, 0.695),
]
EDR = Link(2e-6, 12e9)
GIGABIT = Link(1e-4, 118e6)
# Two sockets of six channels DDR4-2666 and 18 cores at 2.3 GHz; of four DDR3-1600 and 8 at 2.0.
XEON_GOLD = node(2 * 6, 2666e6, 2 * 18, 2.3e9, 16, gb=384)
XEON_E5 = node(2 * 4, 1600e6, 2 * 8, 2.0e9, 8, gb=128)
# The paper has five of "2nd and 4th Gen i5 and i7" with two channels DDR3 and 8 GB: taken to be
# two i5-2400, an i7-2600, an i5-4590 and an i7-4790.
I5_2400 = node(2, 1333e6, 4, 3.1e9, 8, gb=8)
I7_2600 = node(2, 1333e6, 4, 3.4e9, 8, gb=8)
I5_4590 = node(2, 1600e6, 4, 3.3e9, 16, gb=8)
I7_4790 = node(2, 1600e6, 4, 3.6e9, 16, gb=8)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines in the order in which they are taken; of how many the paper shows figures."""

    nodes: tuple[Node, ...]
    link: Link
    counts: tuple[int, ...]

    @property
    def is_uneven(self) -> bool:
        return len(set(self.nodes)) > 1


CLUSTERS = {
    "A": Cluster((XEON_E5,) * 8, GIGABIT, (4, 8)),
    "B": Cluster((*(XEON_E5,) * 8, I7_4790, I5_4590, I7_2600, I5_2400, I5_2400), GIGABIT, (13,)),
    "C": Cluster((XEON_GOLD,) * 64, EDR, (4, 8, 15, 32)),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Which machine computes which layers; one of its own may draft, or else the first one does."""

    stages: tuple[tuple[Node, int], ...]
    link: Link
    apart: Node | None
    split: str = "even"

    def times(self, pair: Pair) -> ClusterTimes:
        """How long everything takes."""
        return ClusterTimes(
            stage_s=[partial(node.layers_s, pair.target, n) for node, n in self.stages],
            n_layers=[n for _, n in self.stages],
            link=self.link,
            row_nbytes=4 * pair.target.n_embd,
            draft_s=(self.apart or self.stages[0][0]).layers_s(pair.draft, pair.draft.n_layers, 1),
        )

    def nbytes(self, pair: Pair, n_cells: int, *, drafts: bool = True) -> list[float]:
        """What each machine holds; without the draft model where it is not used."""
        held = [pair.target.nbytes(n, n_cells) for _, n in self.stages]
        draft = pair.draft.nbytes(pair.draft.n_layers, n_cells)
        if self.apart:
            return [*held, draft]
        return [held[0] + draft * drafts, *held[1:]]


def even(nodes: tuple[Node, ...], pair: Pair, link: Link, apart: Node | None = None) -> Layout:
    """As many layers for each machine, or one more."""
    n, n_layers = len(nodes), pair.target.n_layers
    counts = [n_layers * (i + 1) // n - n_layers * i // n for i in range(n)]
    return Layout(tuple(zip(nodes, counts, strict=True)), link, apart)


def exact(
    nodes: tuple[Node, ...],
    pair: Pair,
    link: Link,
    apart: Node | None = None,
    *,
    objective: Objective,
    n_cells: int,
) -> Layout:
    """As `pyflow.cluster.planning.plan` splits the layers, for runs of one row."""
    target = pair.target
    profiles = tuple(
        RankProfile(
            i,
            f"node {i}",
            (1e3 * node.layers_s(target, 1, 1),),
            int(node.max_nbytes),
        )
        for i, node in enumerate(nodes)
    )
    costs = LayerCosts((int(target.nbytes(1, n_cells)),) * target.n_layers, 0, 0, 4 * target.n_embd)
    links = {(i, i + 1): link for i in range(len(nodes) - 1)}
    found = split(ClusterProfile(profiles, links, costs), objective=objective)
    stages = [(nodes[p.profile.rank], len(p.layers)) for p in found.parts if p.layers]
    return Layout(tuple(stages), link, apart, f"for {objective}")
