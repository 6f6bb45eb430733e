"""Blocks on a device: the bits of the CPU, wherever layers run and whatever is done with cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import CancelledError, ShapeError, UnsupportedError
from pyflow.specs.model_spec import ModelSpec

from .everything import everything
from .tiny_models import N_VOCAB, TINY, Draft, write

N = 34
TOKENS = np.random.default_rng(3).integers(0, N_VOCAB, N).astype(np.int32)
POOL = _core.ThreadPool(2, False)


@pytest.fixture(scope="module")
def there(device: int, tmp_path_factory: pytest.TempPathFactory) -> _core.Offload:
    """Nothing on a device, whose programs are kept for all tests."""
    return {
        "groups": [{"devices": [device], "layers": [], "head": False}],
        "experts": [],
        "allow_inexact": False,
        "programs": str(tmp_path_factory.mktemp("programs")),
    }


def stage(
    file: _core.Checkpoint,
    spec: ModelSpec,
    there: _core.Offload,
    layers: Sequence[int],
    head: bool = True,
) -> _core.Stage:
    of: _core.OffloadGroup = {**there["groups"][0], "layers": [*layers], "head": head}
    offload: _core.Offload = {**there, "groups": [of], "experts": [*layers][1:]}
    return _core.Stage(file, spec.stage(), POOL, offload=offload)


def context(of: _core.Stage, cache_type: str = "f16") -> _core.Context:
    return _core.Context(of, n_ctx=80, n_seq_max=3, n_batch=40, cache_type=cache_type)  # type: ignore[arg-type]


def run(of: _core.Context, sizes: Sequence[int]) -> NDArray[np.uint32]:
    """The bits of all logits and hidden states of the tokens, in chunks."""
    parts, at = [], 0
    for n in sizes:
        rows = np.arange(n, dtype=np.int32)
        parts.append(of.forward(TOKENS[at : at + n], at + rows, 0, rows).ravel())
        parts.append(of.hidden().ravel())
        at += n
    return np.concatenate(parts).view(np.uint32)


def built(name: str, tmp_path: Path) -> tuple[ModelSpec, _core.Checkpoint]:
    draft = Draft()
    spec = (everything if name == "everything" else TINY[name])(draft)
    return spec, write(tmp_path / "tiny.safetensors", draft)


@pytest.mark.parametrize("name", [*TINY, "everything"])
def test_any_split_of_layers_has_the_bits_of_the_cpu(
    name: str, tmp_path: Path, there: _core.Offload
) -> None:
    spec, file = built(name, tmp_path)
    n = spec.n_layers
    plain = context(_core.Stage(file, spec.stage(), POOL))
    sizes = [7, 1, 1, 25]
    expected = run(plain, sizes)
    for layers, head in ([n - 1], False), (range(0, n, 2), True), (range(n), True):
        split = stage(file, spec, there, layers, head)
        assert split.device_weight_bytes[0] > 0
        assert np.array_equal(run(context(split), sizes), expected)


class Twins:
    """The same calls on a context of the CPU and on one whose layers are on a device."""

    def __init__(self, *contexts: _core.Context) -> None:
        self.contexts = contexts

    def forward(self, tokens: Sequence[int], positions: Sequence[int], seqs: object) -> None:
        rows = np.arange(len(tokens), dtype=np.int32)
        here, there = (
            c.forward(np.array(tokens, np.int32), np.array(positions, np.int32), seqs, rows)
            for c in self.contexts
        )
        assert here.tobytes() == there.tobytes()

    def tree(self, tokens: Sequence[int], at: int, parents: Sequence[int]) -> None:
        depths = [at + d for d in _depths(parents)]
        rows = np.arange(len(tokens), dtype=np.int32)
        here, there = (
            c.forward(tokens, depths, 0, rows, "decode", np.array(parents, np.int32))
            for c in self.contexts
        )
        assert here.tobytes() == there.tobytes()

    def both(self, name: str, *args: object) -> None:
        for each in self.contexts:
            getattr(each, name)(*args)

    def check_cells(self, n_layers: int, seq: int, end: int) -> None:
        for layer in range(n_layers):
            here, there = (c.read_cells(layer, seq, 0, end) for c in self.contexts)
            assert here.tobytes() == there.tobytes(), layer


def _depths(parents: Sequence[int]) -> Iterator[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return iter(depths)


@pytest.mark.parametrize(
    ("name", "n_devices", "cache_type"),
    [
        ("parallel_branches", 1, "f16"),
        ("parallel_branches", 1, "q8_0"),
        ("interleaved_heads", 2, "f16"),
        ("interleaved_heads", 2, "q8_0"),
    ],
)
def test_cells_on_devices_are_those_of_the_cpu(
    name: str,
    n_devices: int,
    cache_type: str,
    tmp_path: Path,
    there: _core.Offload,
    devices: list[int],
) -> None:
    spec, file = built(name, tmp_path)
    n = spec.n_layers
    group: _core.OffloadGroup = {
        "devices": devices[:n_devices],
        "layers": [*range(n)],
        "head": True,
    }
    shared: _core.Offload = {**there, "groups": [group]}
    twins = Twins(
        context(_core.Stage(file, spec.stage(), POOL), cache_type),
        context(_core.Stage(file, spec.stage(), POOL, offload=shared), cache_type),
    )
    tokens = [int(t) for t in TOKENS]
    twins.forward(tokens[:20], range(20), 0)
    twins.both("seq_cp", 0, 1, 0, 15)
    twins.forward(tokens[20:23], [20, 15, 21], [0, 1, 0])
    twins.tree(tokens[:5], 22, [-1, 0, 0, 2, 3])
    for each in twins.contexts:
        _core.commit(each, [(0, 0), (2, 0), (3, 0)])
    twins.check_cells(n, 0, 25)
    twins.forward(tokens[5:6], [25], 0)
    twins.both("seq_rm", 0, 3, 9)
    twins.both("seq_add", 0, 9, -1, -6)
    twins.check_cells(n, 0, 20)
    twins.forward(tokens[6:8], [20, 21], 0)
    saved = [twins.contexts[1].read_cells(layer, 0, 0, 20) for layer in range(n)]
    twins.both("restore_cells", 1, 16, 4, [cells[16:] for cells in saved])
    twins.check_cells(n, 1, 20)
    twins.both("seq_keep", 0)
    twins.forward(tokens[8:10], [0, 1], 2)
    twins.check_cells(n, 2, 2)


def test_a_step_on_a_device_can_be_stopped(tmp_path: Path, there: _core.Offload) -> None:
    spec, file = built(next(iter(TINY)), tmp_path)
    of = context(stage(file, spec, there, range(spec.n_layers)))
    expected = run(of, [N])
    of.seq_rm(0, 0, -1)
    done = threading.Event()

    def interrupt() -> None:
        while not done.is_set():
            of.interrupt()
            time.sleep(0)

    def read_on() -> None:
        for _ in range(1000):
            run(of, [N])
            of.seq_rm(0, 0, -1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(CancelledError):
            read_on()
    finally:
        done.set()
        thread.join()
    assert np.array_equal(run(of, [N]), expected)


def test_contexts_of_two_threads_share_a_stage_of_both_kinds(
    tmp_path: Path, there: _core.Offload
) -> None:
    spec, file = built("everything", tmp_path)
    mixed = stage(file, spec, there, range(0, spec.n_layers, 2))
    sizes = [7, 1, 1, 25]
    expected = run(context(_core.Stage(file, spec.stage(), POOL)), sizes)
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda of: run(of, sizes), [context(mixed), context(mixed)]))
    assert all(np.array_equal(each, expected) for each in found)


def test_what_sees_inputs_of_weights_wants_all_layers_on_the_cpu(
    tmp_path: Path, there: _core.Offload
) -> None:
    spec, file = built(next(iter(TINY)), tmp_path)
    native = stage(file, spec, there, [0])
    with pytest.raises(UnsupportedError, match="--gpu-layers 0"):
        context(native).observe(_core.InputMoments(native))


def test_positions_may_have_gaps(tmp_path: Path, there: _core.Offload) -> None:
    """A row sees a range of positions that is longer than all cells."""
    spec, file = built("parallel_branches", tmp_path)
    twins = Twins(
        context(_core.Stage(file, spec.stage(), POOL)),
        context(stage(file, spec, there, range(spec.n_layers))),
    )
    tokens = [int(t) for t in TOKENS]
    twins.forward(tokens[:4], [0, 1, 2, 3], 0)
    for i, at in enumerate([5_000, 20_000, 99_999]):
        twins.forward(tokens[i : i + 2], [at, at + 1], 0)
    with pytest.raises(ShapeError, match="positions: a row sees"):
        twins.contexts[1].forward(TOKENS[:1], [9_000_000], 0, [])
    twins.forward(tokens[:1], [100_001], 0)


# Of each group, how many devices.
GROUPS = [(1, 1), (2,), (2, 2)]


@pytest.mark.parametrize("name", [*TINY, "everything"])
def test_devices_that_share_layers_have_the_bits_of_one(
    name: str, tmp_path: Path, there: _core.Offload, devices: list[int]
) -> None:
    spec, file = built(name, tmp_path)
    n = spec.n_layers
    sizes = [7, 1, 1, 25]
    expected = run(context(_core.Stage(file, spec.stage(), POOL)), sizes)
    n_kv = [
        block.n_kv_heads
        for blocks in spec.layers
        for block in blocks
        if hasattr(block, "n_kv_heads")
    ]
    for shape in GROUPS:
        rest, groups = iter(devices), []
        for i, size in enumerate(shape):
            layers = [*range(n * i // len(shape), n * (i + 1) // len(shape))]
            numbers = [next(rest) for _ in range(size)]
            groups.append({"devices": numbers, "layers": layers, "head": i + 1 == len(shape)})
        offload: _core.Offload = {**there, "groups": groups, "experts": [*range(n)]}  # type: ignore[typeddict-item]
        if min(n_kv, default=2) < max(shape):
            with pytest.raises(ShapeError, match="as many devices as a layer has kv heads, 1,"):
                _core.Stage(file, spec.stage(), POOL, offload=offload)
            continue
        split = _core.Stage(file, spec.stage(), POOL, offload=offload)
        assert len(split.device_weight_bytes) == sum(shape)
        assert np.array_equal(run(context(split), sizes), expected), shape


@pytest.mark.parametrize("name", ["everything", *list(TINY)[::3]])
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_with_a_device_each_have_the_bits_of_one(
    name: str, n: int, tmp_path: Path, there: _core.Offload
) -> None:
    spec, file = built(name, tmp_path)
    sizes = [7, 1, 1, 25]
    expected = run(context(_core.Stage(file, spec.stage(), POOL)), sizes)
    layers = [*range(spec.n_layers)]
    group: _core.OffloadGroup = {**there["groups"][0], "layers": layers, "head": True}
    offload: _core.Offload = {**there, "groups": [group], "experts": layers}

    def rank(link: _core.Link) -> bool:
        own, pool = (link.number, n), _core.ThreadPool(1, False)
        of = _core.Stage(file, spec.stage(), pool, offload=offload, member=own)
        at = _core.Context(of, n_ctx=80, n_seq_max=3, n_batch=40, cache_type="f16", link=link)
        return np.array_equal(run(at, sizes), expected)

    blocks = (block for layer in spec.layers for block in layer)
    n_kv = min((block.n_kv_heads for block in blocks if hasattr(block, "n_kv_heads")), default=n)
    with ThreadPoolExecutor(n) as ranks:
        for found in [ranks.submit(rank, link) for link in _core.Link.threads(n)]:
            if n_kv < n:
                with pytest.raises(ShapeError, match="as many devices as a layer has kv heads"):
                    found.result(60)
            else:
                assert found.result(60)


def test_ranks_with_devices_stop_together(tmp_path: Path, there: _core.Offload) -> None:
    spec, file = built("experts", tmp_path)
    layers = [*range(spec.n_layers)]
    group: _core.OffloadGroup = {**there["groups"][0], "layers": layers, "head": True}
    offload: _core.Offload = {**there, "groups": [group], "experts": layers}
    ranks = [
        _core.Context(
            _core.Stage(
                file,
                spec.stage(),
                _core.ThreadPool(1, False),
                offload=offload,
                member=(link.number, 2),
            ),
            n_ctx=80,
            n_seq_max=3,
            n_batch=40,
            cache_type="f16",
            link=link,
        )
        for link in _core.Link.threads(2)
    ]
    rows, over = np.arange(9, dtype=np.int32), threading.Event()

    def forward(of: _core.Context) -> str:
        try:
            of.forward(TOKENS[:9], rows, 0, rows[-1:])
        except CancelledError:
            return "stopped"
        return "done"

    def interrupt() -> None:
        while not over.wait(0.0005):
            ranks[0].interrupt()

    with ThreadPoolExecutor(3) as threads:
        interrupts = threads.submit(interrupt)
        found: list[list[str]] = []
        while ["stopped", "stopped"] not in found and len(found) < 200:
            found.append([*threads.map(forward, ranks)])
            for each in ranks:
                each.clear()
        over.set()
        interrupts.result()
        assert all(len(set(each)) == 1 for each in found)
        assert found[-1] == ["stopped", "stopped"]
        expected = run(context(_core.Stage(file, spec.stage(), POOL)), [7, 1])
        again = threads.map(lambda each: np.array_equal(run(each, [7, 1]), expected), ranks)
        assert [*again] == [True, True]
