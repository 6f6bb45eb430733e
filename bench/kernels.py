"""Matrix products alone: every weight format on every kernel table, by one thread.

    python bench/kernels.py
    python bench/kernels.py --decode

Weights come once from the second-level cache and once from memory. Medians of the samples count.
`--decode` holds products with one row against only reading the same bytes, and against the same
product from the first-level cache. bench/README.md says what the columns mean.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from pyflow import _core

# The kernels one by one; `make testing` builds them.
sys.path.append(os.environ.get("PYFLOW_TESTING", str(Path(__file__).parents[1] / "build/testing")))
import pyflow_testing

N_COLS = 2048
# Rows of the matrices that come from memory: long enough for a call to cost nothing beside them.
N_ROWS = 4096
N_SAMPLES = 5
FORMATS = {f["name"]: f for f in _core.weight_formats()}
KIB, MIB = 1 << 10, 1 << 20
# What decoding is to reach: of only reading, or of the same kernel with its weights in the cache.
OF_READING, OF_CACHED = 0.80, 0.95
DECODE_SAMPLES = 21
# Where the system does not tell its caches.
USUAL_CACHES = {2: MIB, 3: 32 * MIB}


def caches() -> dict[int, int]:
    """Bytes of the second- and the third-level cache of the first CPU."""
    found = dict(USUAL_CACHES)
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level = int((index / "level").read_text())
        if level in found:
            found[level] = int((index / "size").read_text().strip().removesuffix("K")) * KIB
    return found


def packed(name: str, nbytes: int, most_rows: int = N_ROWS) -> list[Any]:
    """Matrices of N_COLS columns whose tiles take about nbytes: one, or several of most_rows."""
    fmt = FORMATS[name]
    row_bytes = N_COLS // fmt["block"] * fmt["block_bytes"]
    n_rows = max(16, min(nbytes // row_bytes // 16 * 16, most_rows))
    rng = np.random.default_rng(1)
    if fmt["block"] == 1:  # random bytes would hold subnormal numbers, which are slow
        values = rng.standard_normal(n_rows * N_COLS).astype(np.float32)
        as_bytes = {
            "F32": lambda: values.view(np.uint8),
            "F16": lambda: values.astype(np.float16).view(np.uint8),
            "BF16": lambda: np.ascontiguousarray(values.view(np.uint16)[1::2]).view(np.uint8),
        }
        data = as_bytes[name]()
    else:  # any bytes are weights; scales that are not numbers cost no more than others
        data = rng.integers(0, 256, n_rows * row_bytes, dtype=np.uint8)
        if fmt["float_inputs"]:  # but scales of F32 make subnormal numbers, as above
            blocks = data.reshape(-1, fmt["block_bytes"])
            scales = rng.uniform(0.01, 0.02, len(blocks)).astype(np.float32)
            blocks[:, :4] = scales.view(np.uint8).reshape(-1, 4)
    data = data.reshape(n_rows, row_bytes)
    n = max(1, round(nbytes / (n_rows * row_bytes)))
    return [pyflow_testing.PackedTensor(name, data, n_rows, N_COLS) for _ in range(n)]


def seconds_each(
    isa: str, matrices: list[Any], x: NDArray[np.float32], seconds: float
) -> list[float]:
    """Seconds of a product with one matrix, by samples of about `seconds` in all."""
    acts = pyflow_testing.Activations(isa, x)
    tiles = matrices[0].tiles
    y = np.empty((len(x), 16 * tiles), np.float32)
    around = itertools.cycle(matrices)

    def run(n: int) -> float:
        start = time.monotonic()
        if len(matrices) == 1:
            pyflow_testing.matmul(isa, matrices[0], acts, y, 0, tiles, n)
        else:
            for matrix in itertools.islice(around, n):
                pyflow_testing.matmul(isa, matrix, acts, y, 0, tiles)
        return (time.monotonic() - start) / n

    run(1)
    n = max(1, round(seconds / N_SAMPLES / run(1)))
    return [run(n) for _ in range(N_SAMPLES)]


def cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One result for each format, size, table and number of rows."""
    rng = np.random.default_rng(2)
    for name in options.formats:
        for place, nbytes in options.sizes.items():
            matrices = packed(name, nbytes)
            n_weights = matrices[0].rows * matrices[0].cols
            for isa, n_rows in itertools.product(options.isas, options.rows):
                x = rng.standard_normal((n_rows, N_COLS)).astype(np.float32)
                samples = seconds_each(isa, matrices, x, options.seconds)
                middle = statistics.median(samples)
                yield {
                    "format": name,
                    "isa": isa,
                    "n_rows": n_rows,
                    "weights_in": place,
                    "nbytes": sum(matrix.nbytes for matrix in matrices),
                    "gmac_per_s": n_rows * n_weights / middle / 1e9,
                    "gb_per_s": matrices[0].nbytes / middle / 1e9,
                    "samples_s": samples,
                }


def smallest(name: str) -> Any:
    """What a kernel takes at once of a matrix: a tile, of plain floats up to four."""
    fmt = FORMATS[name]
    n_rows = 64 if fmt["float_inputs"] else 16
    return packed(name, n_rows * N_COLS // fmt["block"] * fmt["block_bytes"])[0]


def seconds_of(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def decode_cell(isa: str, n_rows: int, large: Any, small: Any) -> dict[str, Any]:
    """What one token takes, n_rows rows times the large matrix, times the small one as often, and
    only reading the large one.

    The three take turns, so that neighbours of a shared machine meet all of them, and the shares
    are medians of those of single turns.
    """
    x = np.random.default_rng(2).standard_normal((n_rows, N_COLS)).astype(np.float32)
    acts = pyflow_testing.Activations(isa, x)
    y = np.empty((n_rows, 16 * large.tiles), np.float32)
    reader = _core.cpu_info()["isa"]  # the widest table reads at the machine's limit
    repeats = large.tiles // small.tiles
    turns = (
        lambda: pyflow_testing.matmul(isa, large, acts, y, 0, large.tiles),
        lambda: pyflow_testing.matmul(isa, small, acts, y, 0, small.tiles, repeats),
        lambda: pyflow_testing.read(reader, large),
    )
    for work in turns:
        work()
    samples = [[seconds_of(work) for work in turns] for _ in range(DECODE_SAMPLES)]
    memory, cached, reading = (statistics.median(of) for of in zip(*samples, strict=True))
    of_reading = statistics.median(sample[2] / sample[0] for sample in samples)
    of_cached = statistics.median(sample[1] / sample[0] for sample in samples)
    gmac = large.tiles * 16 * N_COLS / 1e9
    return {
        "isa": isa,
        "nbytes": large.nbytes,
        "gmac_per_s": gmac / memory,
        "cached_gmac_per_s": gmac / cached,
        "gb_per_s": large.nbytes / memory / 1e9,
        "read_gb_per_s": large.nbytes / reading / 1e9,
        "of_reading": of_reading,
        "of_cached": of_cached,
        "met_by": [
            *(["reading"] if of_reading >= OF_READING else []),
            *(["cached"] if of_cached >= OF_CACHED else []),
        ],
        "samples_s": samples,
    }


def decode_cells(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One result for each format and table."""
    fine = {f["name"] for f in _core.weight_formats() if f["fine_inputs"]}
    for name in options.formats:
        large = packed(name, options.sizes["memory"], most_rows=1 << 30)[0]
        small = smallest(name)
        n_rows = 2 if name in fine else 1  # an activation in fifteen bits is a pair of rows
        for isa in options.isas:
            yield {"format": name} | decode_cell(isa, n_rows, large, small)


def dot_peak(isa: str) -> float:
    """10^9 multiply-adds of int8 a second: what a table reaches with nothing else to do."""
    weights = (np.arange(64) % 16).astype(np.uint8)
    group = np.arange(16, dtype=np.int8)
    acts = np.tile(np.concatenate([group, -group]), 32)  # sums stay near zero
    rates = []
    for _ in range(N_SAMPLES):
        start = time.monotonic()
        done, _ = pyflow_testing.dot_peak(isa, 1 << 27, weights, acts)
        rates.append(done / (time.monotonic() - start) / 1e9)
    return max(rates)


def limits(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The arithmetic's of each table, and the reading's from each place."""
    pool = _core.ThreadPool(1)
    return {
        "dot_peak_gmac_per_s": {isa: dot_peak(isa) for isa in options.isas},
        "read_gb_per_s": {
            place: _core.read_bandwidth(pool, nbytes, N_SAMPLES) / 1e9
            for place, nbytes in options.sizes.items()
        },
    }


def title(run: dict[str, Any]) -> list[str]:
    return [
        f"{run['cpu']}, one thread, load average before the run {run['load_average_before']:.1f}; "
        f"matrices of {N_COLS} columns; "
        + ", ".join(f"{place}: {n / MIB:.1f} MiB" for place, n in run["sizes"].items()),
        f"`{run['command']}`",
        "",
    ]


def decode_as_markdown(run: dict[str, Any]) -> str:
    """A line for each format and table."""
    head = ["format", "table", "GMAC/s", "cached", "GB/s", "reading, GB/s"]
    head += ["of reading", "of cached", f"met ({OF_READING} of reading or {OF_CACHED} of cached)"]
    lines = [*title(run), "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for c in run["cells"]:
        rates = [c["gmac_per_s"], c["cached_gmac_per_s"], c["gb_per_s"], c["read_gb_per_s"]]
        row = [c["format"], c["isa"], *(f"{rate:.1f}" for rate in rates)]
        row += [f"{c['of_reading']:.2f}", f"{c['of_cached']:.2f}", " and ".join(c["met_by"])]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def as_markdown(run: dict[str, Any]) -> str:
    """A line for each format, table and number of rows; the places side by side."""
    bounds = run["limits"]
    places = list(bounds["read_gb_per_s"])
    head = ["format", "table", "rows"]
    head += [f"{place}, {unit}" for place in places for unit in ("GMAC/s", "GB/s")]
    found = {(c["format"], c["isa"], c["n_rows"], c["weights_in"]): c for c in run["cells"]}
    peaks = ", ".join(f"{isa} {rate:.1f}" for isa, rate in bounds["dot_peak_gmac_per_s"].items())
    reads = ", ".join(f"{rate:.1f} from {place}" for place, rate in bounds["read_gb_per_s"].items())
    lines = [
        *title(run),
        f"- only int8 dot products, GMAC/s: {peaks}",
        f"- only reading, GB/s: {reads}",
        "",
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
    ]
    for name, isa, n_rows in dict.fromkeys(key[:3] for key in found):
        row = [found.get((name, isa, n_rows, place)) for place in places]
        texts = [f"{c[u]:.1f}" if c else "" for c in row for u in ("gmac_per_s", "gb_per_s")]
        lines.append("| " + " | ".join([name, isa, str(n_rows), *texts]) + " |")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    isas = _core.runnable_isas()
    cache = caches()
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument(
        "--isas",
        nargs="+",
        choices=isas,
        help="kernel tables; default: all, for --decode all but scalar",
    )
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=0.1, help="for each cell")
    parser.add_argument(
        "--cache-kib", type=int, default=cache[2] // 2 // KIB, help="default: half of the L2"
    )
    # Beyond 1 GiB packing takes longer than measuring.
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=min(4 * cache[3], 1024 * MIB) // MIB,
        help="default: four times the L3, at most 1024",
    )
    parser.add_argument("--decode", action="store_true", help="one row, against its two limits")
    parser.add_argument("-o", "--output", choices=["md", "json"], default="md")
    options = parser.parse_args(arguments)
    if min([*options.rows, options.cache_kib, options.memory_mib]) < 1 or options.seconds <= 0:
        parser.error("--rows, --seconds, --cache-kib and --memory-mib must be positive")
    options.sizes = {"cache": options.cache_kib * KIB, "memory": options.memory_mib * MIB}
    if options.isas is None:
        options.isas = isas[1:] if options.decode and len(isas) > 1 else isas
    if options.decode:
        del options.sizes["cache"]  # `smallest`
    return options


def main(arguments: list[str] | None = None) -> int:
    """Prints what was measured, also when it was interrupted; returns the exit code."""
    options = parse(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    run: dict[str, Any] = {
        "cpu": _core.cpu_info()["model"],
        "load_average_before": os.getloadavg()[0],
        "command": " ".join(["python", "bench/kernels.py", *given]),
        "caches": caches(),
        "sizes": options.sizes,
        "cells": [],
    }
    total = len(options.formats) * len(options.isas)
    if not options.decode:
        run["limits"] = limits(options)
        total *= len(options.sizes) * len(options.rows)
    code = 0
    try:
        with Progress(
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
        ) as bar:
            task = bar.add_task("measuring", total=total)
            for cell in decode_cells(options) if options.decode else cells(options):
                run["cells"].append(cell)
                bar.advance(task)
    except KeyboardInterrupt:
        code = 130
    if options.output == "json":
        print(json.dumps(run, indent=1))
    else:
        print(decode_as_markdown(run) if options.decode else as_markdown(run))
    return code


if __name__ == "__main__":
    sys.exit(main())
