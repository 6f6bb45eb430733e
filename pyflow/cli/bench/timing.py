"""The tests of `pyflow bench`, and the machine's limits beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.engine.members.pools import total
from pyflow.engine.offload import described
from pyflow.quant import FORMATS, read_as
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.parts import name_of
from pyflow.text import counted

if TYPE_CHECKING:
    from pyflow.engine.context import CacheType, Context
    from pyflow.engine.model_files import ModelFiles
    from pyflow.engine.topology import NumaMode
    from pyflow.model import Model

N_BATCH = 512
# Runs of a bound per sample; the best counts, as the first one wakes threads.
_PROBES = 3
_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Test:
    """After n_depth tokens: reading n_prompt, or generating n_gen, or n_rows in one batch."""

    n_depth: int
    n_prompt: int = 0
    n_gen: int = 0
    n_rows: int = 0

    @property
    def name(self) -> str:
        parts = {"pp": self.n_prompt, "tg": self.n_gen, "rows": self.n_rows}
        (kind,) = (f"{key}{n}" for key, n in parts.items() if n)
        return f"{kind} @ d{self.n_depth}" if self.n_depth else kind

    @property
    def n_tokens(self) -> int:
        return self.n_prompt + self.n_gen + self.n_rows

    @property
    def n_ctx(self) -> int:
        return self.n_depth + self.n_tokens

    @property
    def n_passes(self) -> int:
        """How often all weights are read while tokens are decoded."""
        return self.n_gen or 1


def measure(
    model: Model, tests: list[Test], repetitions: int, cache_type: CacheType
) -> Iterator[dict[str, Any]]:
    """A result for each test, all of one depth.

    Tests take turns, in mirrored order from one repetition to the next, so that a machine that
    slows down does so for all tests. Bounds are measured right after each sample. An interruption
    is raised after the results.
    """
    started = datetime.now(UTC)
    n_ctx = max(test.n_ctx for test in tests)
    # Fixed tokens: the work does not depend on them.
    tokens = np.random.default_rng(1).integers(0, model.spec.n_vocab, n_ctx, dtype=np.int32)
    samples: dict[Test, list[int]] = {test: [] for test in tests}
    bounds: dict[Test, list[float]] = {test: [] for test in tests}
    interruption = None
    with model.context(max(2, n_ctx), n_batch=N_BATCH, cache_type=cache_type) as context:
        turns = ((run, t) for run in range(-1, repetitions) for t in tests[:: 1 if run % 2 else -1])
        try:
            for run, test in turns:
                _go_to(context, tokens[: test.n_depth])
                spent = _timed(context, test, tokens)
                probe = _core.Stage.dot_rate if test.n_prompt else _core.Stage.read_rate
                bound = total(model.stages, lambda stage, probe=probe: probe(stage, _PROBES))  # type: ignore[misc]
                if run >= 0:  # the first turn warms up
                    samples[test].append(spent)
                    bounds[test].append(bound)
        except KeyboardInterrupt as error:
            interruption = error
    for test in tests:
        ns = samples[test]
        if not ns:
            continue
        yield {
            **setting(
                model,
                model.isa,
                n_threads=model.n_threads,
                numa=model.placement.mode,
                n_batch=N_BATCH,
                cache_type=cache_type,
            ),
            "backends": backends(model),
            **speeds(test, started, ns),
            **_bounds(model, test, statistics.median(ns), statistics.median(bounds[test])),
            "of_one_row": _of_one_row(test, samples),
        }
    if interruption is not None:
        raise interruption


def speeds(test: Test, started: datetime, ns: list[int]) -> dict[str, Any]:
    """A test and its samples, in nanoseconds and in tokens per second."""
    ts = [1e9 * test.n_tokens / spent for spent in ns]
    return {
        **asdict(test),
        "test_time": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(ns)),
        "stddev_ns": round(spread(ns)),
        "median_ns": round(statistics.median(ns)),
        "avg_ts": statistics.fmean(ts),
        "stddev_ts": spread(ts),
        "samples_ns": ns,
        "samples_ts": ts,
    }


def _go_to(context: Context, past: NDArray[np.int32]) -> None:
    """Leaves just these tokens in the context, without computing them again if they are there."""
    if past.size and context.seq_reusable(0, past.size) == past.size:
        context.seq_rm(0, past.size)
        return
    context.clear()
    if past.size:
        context.forward(past, logits="none", regime="prefill")


def _timed(context: Context, test: Test, tokens: NDArray[np.int32]) -> int:
    """Nanoseconds of the test."""
    first, end = test.n_depth, test.n_ctx
    if test.n_prompt:
        start = time.monotonic_ns()
        context.forward(tokens[first:end], logits="last", regime="prefill")
        return time.monotonic_ns() - start
    n_rows = test.n_rows or 1
    sampler = _core.Sampler(temperature=0.0)
    after = [*range(-1, n_rows - 2)]
    start = time.monotonic_ns()
    for at in range(first, end, n_rows):
        root, *nodes = tokens[at : at + n_rows].tolist()
        context.step([_core.Entry(0, [root], sampler, draft=_core.Draft(nodes, after))])
    return time.monotonic_ns() - start


def backends(model: Model) -> str:
    """As in "CPU avx2", or "CPU avx2, 12 layers on gpu 0 (A card)"."""
    cpu = f"CPU {model.isa}"
    if (placed := model.placed) is None:
        return cpu
    return f"{cpu}, {counted(placed.n_layers, 'layer')} on {described(placed.groups)}"


def setting(
    model: ModelFiles,
    isa: str,
    *,
    n_threads: int,
    numa: NumaMode,
    n_batch: int,
    cache_type: CacheType,
) -> dict[str, Any]:
    """The model, the machine and the settings."""
    tensors = model.checkpoint.tensors
    return {
        "build_commit": metadata.version("pyflow-llm"),
        "cpu_info": _core.cpu_info()["model"],
        "backends": f"CPU {isa}",
        "prefetches": _core.cpu_info()["prefetches"],
        "model_filename": str(model.path),
        "model_type": model.name,
        "model_size": sum(_packed(model, t)[1] for t in tensors),
        "quantize": model.checkpoint.pack_as,
        "model_n_params": sum(prod(t.shape) for t in tensors),
        "n_batch": n_batch,
        "n_ubatch": n_batch,
        "n_threads": n_threads,
        "numa": numa,
        "type_k": cache_type,
        "type_v": cache_type,
    }


def _bounds(model: Model, test: Test, ns: float, bound: float) -> dict[str, float | None]:
    """Rates in 10^9 per second, and their share of what the same threads reach at best.

    Decoding reads the weights; a prompt multiplies by them. Attention is left out of both.
    """
    keys = ["gb_per_s", "read_limit_gb_per_s", "of_read_limit"]
    keys += ["gmac_per_s", "dot_peak_gmac_per_s", "of_dot_peak"]
    found: dict[str, float | None] = dict.fromkeys(keys)
    if test.n_prompt:
        multiplies = _multiplies(model, test.n_prompt)
        if multiplies is None:
            return found
        rate, of = multiplies / ns, 3
    else:
        nbytes = sum(stage.token_bytes for stage in model.stages)
        rate, of = test.n_passes * nbytes / ns, 0
    found |= zip(keys[of:], (rate, bound / _GIGA, rate * _GIGA / bound), strict=False)
    return found


def _multiplies(model: Model, n_tokens: int) -> int | None:
    """Multiply-adds by weights for a prompt.

    None: some do not take int8 activations, or the prompt chooses the experts.
    """
    spec, used = model.spec, model.spec.tensors()
    if any(isinstance(block, Moe) for block in spec.blocks()):
        return None
    total = 0
    for tensor in model.checkpoint.tensors:
        if len(tensor.shape) != 2 or tensor.name not in used:
            continue
        packed = FORMATS.get(_packed(model, tensor)[0])
        if packed is None or packed.block == 1:
            return None
        if tensor.name == name_of(spec.head.weight):  # only for the last token
            total += prod(tensor.shape)
        elif tensor.name != name_of(spec.embedding.weight):
            total += prod(tensor.shape) * n_tokens
    return total


def _packed(model: ModelFiles, tensor: _core.TensorRow) -> tuple[str, int]:
    """The type and the bytes of a tensor once it is loaded."""
    stored, wanted = read_as(tensor.dtype), FORMATS.get(model.checkpoint.pack_as or "")
    if stored is None:
        return tensor.dtype, tensor.nbytes
    if wanted is None or stored.block > 1 or len(tensor.shape) < 2:
        wanted = stored
    return wanted.name, prod(tensor.shape) // wanted.block * wanted.block_bytes


def _of_one_row(test: Test, samples: dict[Test, list[int]]) -> float | None:
    """The time over that of a batch of one row; None: that was not measured."""
    one = samples.get(Test(test.n_depth, n_rows=1))
    if not test.n_rows or not one:
        return None
    return statistics.median(samples[test]) / statistics.median(one)


def spread(samples: list[Any]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0
