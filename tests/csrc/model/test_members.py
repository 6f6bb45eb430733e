"""Members that share a stage compute what one process does, to the last bit of logits and cells."""

from __future__ import annotations

import platform
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.cluster.planning.members import shared_heads
from pyflow.errors import CancelledError, LinkError, ShapeError, UnsupportedError
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.blocks.shortconv import Shortconv
from pyflow.specs.model_spec import ModelSpec

from ..link.test_link import sockets
from . import tiny_parts, tiny_whole
from .test_blocks import POOL, TOKENS, built
from .tiny_models import HOST_ONLY, N_EMBD, TINY, Draft, around, attention, ffn, write


def context(stage: _core.Stage, cache_type: str, link: _core.Link | None = None) -> _core.Context:
    return _core.Context(stage, n_ctx=70, n_seq_max=4, n_batch=32, cache_type=cache_type, link=link)


class Sharing:
    """The same calls on one process and on members, each of which has a thread of its own."""

    def __init__(
        self,
        file: _core.Checkpoint,
        spec: ModelSpec,
        n: int,
        cache_type: str = "f16",
        *,
        speeds: Sequence[int] = (),
        isas: Sequence[str] = (),
        links: Sequence[_core.Link] = (),
        **more: Any,
    ) -> None:
        """isas: the tables of one process, and of each member. links: others than of threads."""
        self.spec, self.n = spec, n
        self.links = list(links) or _core.Link.threads(n)
        self.threads = ThreadPoolExecutor(n)

        def stage(isa: str | None, pool: _core.ThreadPool, **member: Any) -> _core.Stage:
            with pytest.MonkeyPatch.context() as patch:
                if isa is not None:
                    patch.setenv("PYFLOW_ISA", isa)
                return _core.Stage(file, spec.stage(), pool, **member, **more)

        first, *others = isas or [None] * (n + 1)
        self.one = context(stage(first, POOL), cache_type)
        # Each has a pool of its own, for members wait for each other within a step.
        pools = [_core.ThreadPool(1 + m % 2, False) for m in range(n)]
        self.stages = [
            stage(isa, pool, member=(m, n), speeds=speeds)
            for m, (isa, pool) in enumerate(zip(others, pools, strict=True))
        ]
        self.members = [
            context(stage, cache_type, link)
            for stage, link in zip(self.stages, self.links, strict=True)
        ]

    def each(self, call: Callable[[_core.Context], Any]) -> list[Any]:
        return list(self.threads.map(call, self.members))

    def same(self, call: Callable[[_core.Context], NDArray[np.float32]]) -> None:
        expected = call(self.one).tobytes()
        assert [found.tobytes() == expected for found in self.each(call)] == [True] * self.n

    def forward(
        self, tokens: Sequence[int], positions: Sequence[int], seqs: object, regime: str = "decode"
    ) -> None:
        rows = np.arange(len(tokens), dtype=np.int32)
        ids, at = np.array(tokens, np.int32), np.array(positions, np.int32)
        self.same(lambda c: c.forward(ids, at, seqs, rows, regime))
        self.same(lambda c: c.hidden())

    def tree(self, tokens: Sequence[int], at: Sequence[int], parents: Sequence[int]) -> None:
        rows = np.arange(len(tokens), dtype=np.int32)
        above = np.array(parents, np.int32)
        self.same(lambda c: c.forward(tokens, at, 0, rows, "decode", above))

    def all(self, name: str, *args: object) -> None:
        for each in (self.one, *self.members):
            getattr(each, name)(*args)

    def check_cells(self, seq: int, end: int) -> None:
        """Each member has the cells of its kv heads."""
        for layer, block in enumerate(caching(self.spec)):
            if isinstance(block, Shortconv):  # each has its own dims
                continue
            if isinstance(block, Mla):  # all members have all
                whole = self.one.read_cells(layer, seq, 0, end).tobytes()
                assert {m.read_cells(layer, seq, 0, end).tobytes() for m in self.members} == {whole}
                continue
            if block.value_dim not in (None, block.head_dim):
                continue
            n = block.n_kv_heads
            start = max(0, end - block.window + 1) if block.window else 0
            whole = self.one.read_cells(layer, seq, start, end).reshape(end - start, 2, n, -1)
            after = 0
            for m, each in enumerate(self.members):
                found = each.read_cells(layer, seq, start, end)
                n_own = found.size // (whole.size // n)
                first = after if self.n <= n else _kv_head(m, self.n, n)
                after += n_own
                assert n_own
                own = whole[:, :, first : first + n_own]
                assert found.reshape(own.shape).tobytes() == own.tobytes(), (layer, m)


def caching(spec: ModelSpec) -> list[Attention | Mla | Shortconv]:
    kinds = Attention | Mla | Shortconv
    return [b for layer in spec.layers for b in layer if isinstance(b, kinds)]


def _kv_head(member: int, n_members: int, n_kv: int) -> int:
    return next(h for h in range(n_kv) if member < n_members * (h + 1) // n_kv)


def scenario(of: Sharing) -> None:
    """Prompts, single rows, rows of several sequences, a tree."""
    tokens = [int(t) for t in TOKENS]
    of.forward(tokens[:15], range(15), 0, "prefill")
    of.all("seq_cp", 0, 1, 0, 15)
    of.forward(tokens[15:18], [15, 16, 15], [0, 0, 1])
    of.forward(tokens[18:19], [17], 0)
    of.tree(tokens[:5], [18, 19, 19, 20, 21], [-1, 0, 0, 2, 3])
    for each in (of.one, *of.members):
        _core.commit(each, [(0, 0), (2, 0), (3, 0)])
    of.check_cells(0, 21)
    of.forward(tokens[5:17], [*range(21, 27), *range(16, 22)], [0] * 6 + [1] * 6)
    of.check_cells(1, 22)


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", [*TINY, *HOST_ONLY])
def test_members_have_the_bits_of_one_process(name: str, n: int, tmp_path: Path) -> None:
    spec, _, file = built(name, tmp_path)
    if n > min(b.n_heads for b in caching(spec) if not isinstance(b, Shortconv)):
        with pytest.raises(ShapeError, match="use fewer members"):
            Sharing(file, spec, n)
    else:
        scenario(Sharing(file, spec, n, "q8_0" if n == 3 else "f16"))


@pytest.mark.parametrize(
    ("n_heads", "n_kv", "n"), [(5, 1, 5), (8, 2, 4), (8, 2, 3), (6, 3, 4), (6, 3, 5), (7, 7, 5)]
)
def test_heads_are_shared_where_kv_heads_are_few(
    n_heads: int, n_kv: int, n: int, tmp_path: Path
) -> None:
    t = Draft()
    spec = t.spec(
        around(t, "0/", attention(t, "0/", n_heads, n_kv, window=9)),
        around(t, "1/", ffn(t, "1/")),
    )
    scenario(Sharing(write(tmp_path / "tiny.safetensors", t), spec, n))


@pytest.mark.parametrize("seed", range(6))
def test_unequal_members_have_the_bits_of_one_process(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    name = ["everything", "shared_expert", "interleaved_heads"][seed % 3]
    spec, _, file = built(name, tmp_path)
    n = rng.randint(2, min(4, *(b.n_heads for b in caching(spec) if isinstance(b, Attention))))
    speeds = [rng.choice([1, 30, 250, 1000]) for _ in range(n)]
    scenario(Sharing(file, spec, n, speeds=speeds))


def test_members_have_rows_in_proportion_to_their_speeds(tmp_path: Path) -> None:
    t = Draft()
    spec = t.spec(around(t, "0/", attention(t, "0/", 8, 8)), around(t, "1/", ffn(t, "1/")))
    of = Sharing(write(tmp_path / "tiny.safetensors", t), spec, 2, speeds=[3000, 1000])
    assert of.stages[0].weight_bytes > 1.8 * of.stages[1].weight_bytes
    scenario(of)


def count_rounds(of: Sharing, regime: str = "decode") -> list[int]:
    """Makes a step, and checks that its rounds and bytes are those that the planner counts."""
    of.all("clear")
    before = [link.gathers for link in of.links]
    n_rows, n_logits = 5, 2
    at = np.arange(n_rows, dtype=np.int32)
    of.each(lambda c: c.forward(TOKENS[:n_rows], at, 0, at[:n_logits], regime))
    rounds = of.stages[0].rounds(regime)
    n_embd, n_vocab = of.spec.n_embd, of.spec.n_vocab
    total = n_rows * (sum(rounds) + 4 * n_embd) + n_logits * 4 * n_vocab
    n, nbytes = zip(*(link.gathers for link in of.links), strict=True)
    assert {after - b[0] for after, b in zip(n, before, strict=True)} == {len(rounds) + 2}
    got = sum(nbytes) - sum(b[1] for b in before)
    assert got == total * (of.n - 1)  # each piece goes to all other members
    return rounds


@pytest.mark.parametrize("name", [*TINY, *HOST_ONLY])
def test_rounds_and_bytes_are_those_that_the_planner_counts(name: str, tmp_path: Path) -> None:
    spec, _, file = built(name, tmp_path)
    count_rounds(Sharing(file, spec, 2))


def test_cells_that_several_members_hold_are_told() -> None:
    t = Draft()
    spec = t.spec(around(t, "0/", attention(t, "0/", 8, 2)))
    assert shared_heads(spec, 2) == ""
    assert shared_heads(spec, 3).startswith("3 members share 2 kv heads: ")
    assert shared_heads(spec, 3).endswith(" 2 at most")


@pytest.mark.parametrize("pack_as", ["Q8_0", "Q4_0"])
def test_formats_are_cut_by_rows(pack_as: str, tmp_path: Path) -> None:
    t = Draft()
    spec = t.spec(around(t, "0/", attention(t, "0/", 4, 2)))
    scenario(Sharing(write(tmp_path / "tiny.safetensors", t), spec, 2, pack_as=pack_as))


TILES = ["amx_emulated"] if platform.machine() in {"x86_64", "AMD64"} else []


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("isa", ["", *TILES])
def test_inputs_of_quantized_matrices_travel_rounded(isa: str, n: int, tmp_path: Path) -> None:
    t = Draft()
    spec, tables = (
        tiny_whole.quantizable(t),
        [name for name in _core.runnable_isas() if name != "amx"],
    )
    # Members have different tables, but for the arithmetic of prompts.
    isas = [isa or tables[i % len(tables)] for i in range(n + 1)]
    of = Sharing(write(tmp_path / "tiny.safetensors", t), spec, n, pack_as="Q8_0", isas=isas)
    scenario(of)
    inner, prompts = (4, 5, 4, 7, 9), (4, 5, 4, 0, 9)  # blocks of 32; experts know no prompts
    expected = [nbytes for n_blocks in inner for nbytes in (36 * n_blocks, 4 * N_EMBD)]
    assert count_rounds(of) == expected
    if isa:
        expected[::2] = [64 * n or nbytes for n, nbytes in zip(prompts, expected[::2], strict=True)]
        assert count_rounds(of, "prefill") == expected


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("isa", [*TILES, "scalar"])
def test_halves_of_columns_may_go_before_the_rest(
    isa: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tiny_parts, tiny_whole):
        monkeypatch.setattr(module, "N_EMBD", 256)
    t, links = Draft(), sockets(n)
    spec, file = tiny_whole.quantizable(t), write(tmp_path / "tiny.safetensors", t)
    for link in links:
        link.sends_early = True
    of = Sharing(file, spec, n, links=links, pack_as="Q8_0", isas=[isa] * (n + 1))
    scenario(of)
    count_rounds(of)  # as many bytes


def test_a_member_has_its_share_of_weights_and_cells(tmp_path: Path) -> None:
    spec, _, file = built("interleaved_heads", tmp_path)
    of = Sharing(file, spec, 2)
    sizes = {"n_ctx": 1024, "n_seq_max": 1, "n_batch": 8, "cache_type": "f16"}
    whole = _core.Stage(file, spec.stage(), POOL, load=False)
    kv = [_core.Context.memory(stage, **sizes)[0] for stage in of.stages]
    assert sum(kv) == _core.Context.memory(whole, **sizes)[0]
    assert max(stage.weight_bytes for stage in of.stages) < 0.7 * whole.weight_bytes


def test_all_members_stop_before_the_same_layer(tmp_path: Path) -> None:
    spec, _, file = built("everything", tmp_path)
    of = Sharing(file, spec, 2)
    ids, rows = TOKENS[:9], np.arange(9, dtype=np.int32)

    def run(c: _core.Context) -> str:
        try:
            c.forward(ids, rows, 0, rows[-1:])
        except CancelledError:
            return "stopped"
        return "done"

    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.0005):
            of.members[0].interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    found = []
    while ["stopped", "stopped"] not in found and len(found) < 1000:
        found.append(of.each(run))
        of.all("clear")
    over.set()
    thread.join()
    assert all(len(set(each)) == 1 for each in found)
    assert found[-1] == ["stopped", "stopped"]
    scenario(of)  # and nothing is left of what has been stopped


@contextmanager
def both(of: Sharing) -> Iterator[None]:
    with pytest.raises(LinkError):
        yield
    with pytest.raises(LinkError):  # from then on
        of.members[0].forward(TOKENS[:1], [0], 0, [0])


def test_a_member_that_is_late_or_ends_or_errs_is_an_error(tmp_path: Path) -> None:
    spec, _, file = built("slopes", tmp_path)
    late = Sharing(file, spec, 2)
    late.links[0].set_deadline(20)
    with both(late):
        late.members[0].forward(TOKENS[:1], [0], 0, [0])

    wrong = Sharing(file, spec, 2)

    def rows(c: _core.Context) -> None:
        n = 1 + wrong.members.index(c)
        with pytest.raises(LinkError, match=r"expected round|has ended"):
            c.forward(TOKENS[:n], range(n), 0, [0])

    wrong.each(rows)
    ended = Sharing(file, spec, 2)
    ended.members.pop()
    ended.links.pop()
    with both(ended):
        ended.members[0].forward(TOKENS[:1], [0], 0, [0])


def test_what_members_cannot_share_is_refused(tmp_path: Path) -> None:
    spec, _, file = built("slopes", tmp_path)
    with pytest.raises(ShapeError, match="use fewer members"):
        _core.Stage(file, spec.stage(), POOL, member=(0, 9))
    with pytest.raises(ShapeError, match="expected a member below 2"):
        _core.Stage(file, spec.stage(), POOL, member=(2, 2))
    for speeds in ([1], [0, 1], [1, 2_000_000]):
        with pytest.raises(ShapeError, match="speeds: expected one from 1"):
            _core.Stage(file, spec.stage(), POOL, member=(0, 2), speeds=speeds)
    member = _core.Stage(file, spec.stage(), POOL, member=(0, 2))
    with pytest.raises(ShapeError, match="expected a link of member 0 of 2"):
        context(member, "f16")
    links = _core.Link.threads(2)
    with pytest.raises(UnsupportedError):
        context(member, "f16", links[0]).observe(_core.InputMoments(member))
