"""Which ranks of a cluster should share stages: every table of layouts in docs/cluster.md.

usage: python bench/cluster/layouts.py [--out FOLDER]

Models and machines by sizes and rates; what everything takes follows by these formulas, and the
planner and the scheduler of pyflow do the rest:

    layer of n rows      = weights / memory rate * ROWS[n], of the member with the most weights
    weights of a member  = its part of q, o and the FFN, and k and v of at least one kv head
    round of g members   = latency + (g - 2) more + bytes (g - 1) / g / rate
    bytes of a layer     = 36/32 (q_dim + n_ff) + 4 * 2 n_embd a row, in four rounds
    bytes of a draw      = 8 + 8 top_k of each member

--out FOLDER also draws the chart of one request over all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyflow.cluster.planning.layouts import Layout, Shareable
from pyflow.cluster.planning.members import Gathers, Sharing, draw_nbytes
from pyflow.cluster.planning.plan import ClusterProfile, LayerCosts, evaluate_split
from pyflow.cluster.wire.surveys import Link, RankProfile
from pyflow.text import markdown_table

# ms of 1, 2, ... 8 rows over that of one, measured of qwen2.5-1.5B.
ROWS = (1.0, 1.05, 1.16, 1.27, 1.33, 1.39, 1.45, 1.51)
_HUGE = 1 << 60


@dataclass(frozen=True, slots=True)
class Shape:
    """A model by its sizes; bits of a weight."""

    name: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    n_vocab: int
    bits: float
    gated: bool = True

    @property
    def kv_nbytes(self) -> float:
        """Of k and v of a layer."""
        return 2 * self.n_embd * self.n_embd * self.n_kv_heads / self.n_heads * self.bits / 8

    @property
    def layer_nbytes(self) -> float:
        ffn = (3 if self.gated else 2) * self.n_embd * self.n_ff
        return (2 * self.n_embd**2 + ffn) * self.bits / 8 + self.kv_nbytes

    @property
    def head_nbytes(self) -> float:
        return self.n_embd * self.n_vocab * self.bits / 8

    @property
    def sharing(self) -> Sharing:
        def parts(speeds: tuple[int, ...]) -> tuple[float, ...]:
            kv = self.kv_nbytes / self.layer_nbytes
            own = [speed / sum(speeds) for speed in speeds]
            return tuple((1 - kv) * s + kv * max(s, 1 / self.n_kv_heads) for s in own)

        nbytes = 36 / 32 * (self.n_embd + self.n_ff) + 4.0 * 2 * self.n_embd
        return Sharing(parts, self.n_heads, 4, nbytes, 4 * self.n_embd, draw_nbytes())


@dataclass(frozen=True, slots=True)
class Network:
    """A round of two takes latency_s, and more_s for each further member."""

    name: str
    latency_s: float
    more_s: float
    bytes_per_s: float

    @property
    def link(self) -> Link:
        return Link(self.latency_s, self.bytes_per_s)


LLAMA_7B = Shape("7B", 32, 4096, 11_008, 32, 32, 32_000, 4.85)
LLAMA_13B = Shape("13B", 40, 5120, 13_824, 40, 40, 32_000, 4.85)
LLAMA_70B = Shape("70B", 80, 8192, 28_672, 64, 8, 32_000, 4.85)
QWEN_1_5B = Shape("1.5B", 28, 1536, 8960, 12, 2, 151_936, 4.85)
GIGABIT = Network("gigabit", 80e-6, 5e-6, 117e6)
TEN = Network("10 gigabit", 20e-6, 3e-6, 1.17e9)
LOOPBACK = Network("loopback", 5e-6, 2e-6, 4e9)
NETWORKS = (GIGABIT, TEN, LOOPBACK)


def cluster(shape: Shape, network: Network, rates: Sequence[float]) -> Shareable:
    """A node for each rate, in GB/s."""

    def node(i: int, rate: float) -> RankProfile:
        one = shape.layer_nbytes / rate / 1e6
        head = shape.head_nbytes / rate / 1e6
        return RankProfile(i, f"node {i}", tuple(one * n for n in ROWS), _HUGE, head_ms=head)

    n = len(rates)
    pairs = {(i, i + 1): network.link for i in range(n - 1)}
    costs = LayerCosts((int(shape.layer_nbytes),) * shape.n_layers, 0, 0, 4 * shape.n_embd)
    ranks = tuple(node(i, rate) for i, rate in enumerate(rates))
    gathers = Gathers(pairs, network.more_s) if n > 1 else None
    return Shareable(ClusterProfile(ranks, pairs, costs), shape.sharing, gathers)


def even(layout: Layout, n_layers: int) -> list[range]:
    """As many layers for each group."""
    n = len(layout.pipeline.ranks)
    return [range(n_layers * i // n, n_layers * (i + 1) // n) for i in range(n)]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens/s of a layout with as many layers for each group."""

    one: float
    """Of one request without drafts."""
    many: dict[int, float]
    """Of so many requests together, by the most rows of a run: 1 runs them one by one."""


def speeds(layout: Layout, n_layers: int, n_requests: Sequence[int]) -> Speeds:
    """Runs of many requests have as many rows as fill the stages, eight at most."""
    held, n_stages = even(layout, n_layers), len(layout.pipeline.ranks)
    many = {}
    for n in n_requests:
        n_rows = max(1, min(len(ROWS), n // n_stages))
        many[n] = n_rows * 1e3 / evaluate_split(layout.pipeline, held, n_rows=n_rows).run_ms
    return Speeds(1e3 / evaluate_split(layout.pipeline, held).token_ms, many)


def table_5(networks: Sequence[Network] = NETWORKS) -> str:
    """Layers, both and tensor on four nodes, as table 5 of Inferflow has it for GPUs."""
    rows = []
    for shape, rate in ((LLAMA_7B, 10.0), (LLAMA_7B, 40.0), (LLAMA_70B, 40.0)):
        for network in networks:
            measured = cluster(shape, network, [rate] * 4)
            cells = []
            for n_stages, n_members in ((4, 1), (2, 2), (1, 4)):
                found = speeds(measured.fixed(n_stages, n_members), shape.n_layers, (1, 8, 32))
                cells.append(" / ".join(f"{s:.3g}" for s in (found.one, *found.many.values())))
            rows.append([f"{shape.name}, {rate:.0f} GB/s", network.name, *cells])
    head = ["model, node", "network", "4x1 (layers)", "2x2 (both)", "1x4 (tensor)"]
    return markdown_table(head, rows, left=set(head))


def one_request() -> str:
    """ms of a token on 1 to 16 members of one group."""
    rows = []
    counts = (1, 2, 4, 8, 16)
    for shape, rate in _sizes():
        for network in NETWORKS:
            cells = []
            for n in counts:
                one = cluster(shape, network, [rate] * n)
                if n > one.sharing.most if one.sharing else True:
                    cells.append("")
                    continue
                cells.append(f"{1e3 / speeds(one.fixed(1, n), shape.n_layers, ()).one:.0f}")
            rows.append([f"{shape.name}, {rate:.0f} GB/s", network.name, *cells])
    head = ["model, node", "network", *(f"1x{n}" for n in counts)]
    return markdown_table(head, rows, left={"model, node", "network"})


def _sizes() -> Iterator[tuple[Shape, float]]:
    for shape in (QWEN_1_5B, LLAMA_7B, LLAMA_70B):
        for rate in (10.0, 40.0):
            yield shape, rate


def replicas_ms(shape: Shape, network: Network, rate: float) -> tuple[float, float]:
    """ms between the runs of one request's tokens through one stage of two nodes, which holds the
    model: as two replicas, which compute every other run, and as two members.

    A replica needs the cells of the other one's run before each layer: these travel while it
    computes, unless that takes longer; the chain of tokens gets no shorter.
    """
    alone = speeds(cluster(shape, network, [rate]).alone(), shape.n_layers, ()).one
    cells = 4.0 * shape.n_embd * shape.n_kv_heads / shape.n_heads
    late_ms = 1e3 * (network.latency_s + cells / network.bytes_per_s)
    layer_ms = 1e3 / alone / shape.n_layers
    members = speeds(cluster(shape, network, [rate] * 2).fixed(1, 2), shape.n_layers, (1,))
    return shape.n_layers * max(layer_ms / 2, late_ms), 1e3 / members.many[1]


def lookahead_ms(
    shape: Shape, network: Network, rate: float, n_nodes: int, *, rows: int = 120, per: float = 2.8
) -> tuple[float, float]:
    """ms of a token by Lookahead parallelism, each node with the whole model and its part of the
    window of so many rows, which brings `per` tokens a step; and of one group of these nodes."""
    whole = cluster(shape, network, [rate]).alone()
    part = max(1, rows // n_nodes)
    slope = (ROWS[-1] - 1) / (len(ROWS) - 1)
    growth = 1 + slope * (part - 1)
    step = 1e3 / speeds(whole, shape.n_layers, ()).one * growth
    step += 2e3 * (network.latency_s + (n_nodes - 2) * network.more_s)  # tokens there and back
    members = speeds(
        cluster(shape, network, [rate] * n_nodes).fixed(1, n_nodes), shape.n_layers, ()
    )
    return step / per, 1e3 / members.one


def alternatives() -> str:
    """Replicas of a stage and Lookahead parallelism beside members, from memory to the Internet."""
    networks = (
        *NETWORKS[::-1],
        Network("Wi-Fi", 2e-3, 1e-3, 20e6),
        Network("Internet", 20e-3, 1e-3, 10e6),
    )
    rows = []
    for network in networks:
        replicas, two = replicas_ms(LLAMA_7B, network, 10)
        lookahead, eight = lookahead_ms(LLAMA_7B, network, 10, 8)
        cells = (f"{1e3 / ms:.1f}" for ms in (replicas, two, lookahead, eight))
        rows.append([network.name, *cells])
    head = ["network", "2 replicas, runs/s", "1x2, runs/s", "Lookahead on 8, t/s", "1x8, t/s"]
    return markdown_table(head, rows, left={"network"})


# Of a further call into the kernel for each other member, measured over TCP.
_CALL_S = 3e-6


def hidden_ms(shape: Shape, network: Network, rate: float, n: int) -> float:
    """What a token of n members saves if they send the first half of columns while they compute the
    second: of o, gate and up, and down."""
    wide, d = shape.n_ff, shape.n_embd
    gates = 2 if shape.gated else 1
    saved = 0.0
    for weights, nbytes in ((d * d, 4 * d), (gates * d * wide, 36 / 32 * wide), (d * wide, 4 * d)):
        half_s = weights * shape.bits / 8 / n / rate / 1e9 / 2
        on_way_s = nbytes * (n - 1) / n / network.bytes_per_s / 2
        saved += min(half_s, on_way_s) - (n - 1) * _CALL_S
    return 1e3 * saved * shape.n_layers


def early() -> str:
    """ms of a token with and without that."""
    rows = []
    for shape, rate in ((QWEN_1_5B, 10.0), (LLAMA_7B, 10.0), (LLAMA_7B, 40.0), (LLAMA_70B, 40.0)):
        cells = []
        for network in (GIGABIT, TEN):
            for n in (2, 4, 8):
                layout = cluster(shape, network, [rate] * n).fixed(1, n)
                late = 1e3 / speeds(layout, shape.n_layers, ()).one
                cells.append(f"{late:.3g} / {late - hidden_ms(shape, network, rate, n):.3g}")
        rows.append([f"{shape.name}, {rate:g} GB/s", *cells])
    head = [f"{name}, 1x{n}" for name in ("gigabit", "10 gigabit") for n in (2, 4, 8)]
    return markdown_table(["model, node", *head], rows, left={"model, node", *head})


def chart(path: Path) -> None:
    """Tokens/s of one request and of many, by layout."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(NETWORKS), figsize=(10, 3.2), sharey=True)
    shapes = ((4, 1), (2, 2), (1, 4))
    for network, axis in zip(NETWORKS, axes, strict=True):
        measured = cluster(LLAMA_7B, network, [40.0] * 4)
        found = [speeds(measured.fixed(*s), LLAMA_7B.n_layers, (1,)) for s in shapes]
        places = range(len(shapes))
        axis.bar([p - 0.2 for p in places], [f.one for f in found], 0.4, label="one request")
        axis.bar([p + 0.2 for p in places], [f.many[1] for f in found], 0.4, label="many")
        axis.set_xticks(places, [f"{s}x{m}" for s, m in shapes])
        axis.set_title(network.name)
    axes[0].set_ylabel("tokens/s")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="a folder for the chart")
    args = parser.parse_args()
    print("\n\n".join([table_5(), one_request(), early(), alternatives()]))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        chart(args.out / "layouts.png")


def slower(measured: Shareable, factors: Sequence[float]) -> Shareable:
    """The same cluster with ranks that take so many times as long."""
    ranks = tuple(
        RankProfile(
            p.rank,
            p.host,
            tuple(ms * factor for ms in p.layer_ms),
            p.max_nbytes,
            head_ms=p.head_ms * factor,
        )
        for p, factor in zip(measured.pipeline.ranks, factors, strict=True)
    )
    return replace(measured, pipeline=replace(measured.pipeline, ranks=ranks))


if __name__ == "__main__":
    main()
