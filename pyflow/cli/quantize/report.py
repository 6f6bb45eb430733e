"""What `pyflow quantize` tells of its work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.quant import FORMATS
from pyflow.quant.imatrix import ENOUGH, WIDTH
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.quant.convert import Share
    from pyflow.quant.plan import Step


def warnings(steps: list[Step], weighed: bool) -> list[str]:
    """Lines on what becomes of matrices otherwise than one may expect, and on how to read the
    table. weighed: importance was given."""
    lines = fallbacks(steps, weighed)
    if n := sum(step.moments is not None for step in steps):
        lines.append(
            f"columns of {_matrices(n)} make up for each other's errors, which the table has as "
            "those of outputs"
        )
    return lines


def _matrices(n: int, does: str = "", do: str = "") -> str:
    """So many, and a verb of one or of several."""
    return f"{n} matrix {does}".rstrip() if n == 1 else f"{n} matrices {do}".rstrip()


def fallbacks(steps: list[Step], weighed: bool) -> list[str]:
    """The first of these alone."""
    lines = []
    instead: dict[tuple[str, str, int], int] = {}
    for step in steps:
        if step.instead_of is not None:
            kind = step.instead_of, step.to, step.tensor.shape[-1]
            instead[kind] = instead.get(kind, 0) + 1
    for (wanted, to, n_cols), count in instead.items():
        lines.append(
            f"{_matrices(count, 'gets', 'get')} {to} instead of {wanted}: rows of {n_cols} are no "
            f"multiple of {FORMATS[wanted].block}"
        )
    kept = Counter(step.kept_for for step in steps if step.kept_for is not None)
    lines += [
        f"{_matrices(count, 'stays as it is', 'stay as they are')}: {why}"
        for why, count in kept.items()
    ]
    if weighed:
        without = [
            step.tensor.name
            for step in steps
            if not step.copied and FORMATS[step.to].block > 1 and step.importance is None
        ]
        if without:
            more = f" and {len(without) - 3} more" if len(without) > 3 else ""
            lines.append(f"no importance was measured of {', '.join(without[:3])}{more}")
        moments = [step.moments for step in steps if step.moments is not None]
        if few := [m for m in moments if m.n_rows < ENOUGH * min(m.n_cols, WIDTH)]:
            lines.append(
                f"moments of {_matrices(len(few))} are of too short a text, {few[0].n_rows:,} "
                f"tokens for {few[0].n_cols:,} columns, and may do harm"
            )
    return lines


def lost(shares: dict[str, Share]) -> list[str]:
    """A line on each role of which whole matrices were lost."""
    lines = []
    for role, share in shares.items():
        if not share.lost:
            continue
        more = f" and {len(share.lost) - 1} more" if len(share.lost) > 1 else ""
        lines.append(
            f"warning: {share.lost[0]}{more}: hardly anything is left of weights that are too "
            f"small for F16, in which scales are; --tensor-type '{role}=bf16' keeps them"
        )
    return lines


def _error(share: Share) -> float:
    return float(share.distortion.relative**0.5)


def _total(shares: dict[str, Share]) -> Share:
    from pyflow.quant.convert import Share

    total = Share()
    for share in shares.values():
        total.add(share)
    return total


def show(target: Path, shares: dict[str, Share], nbytes: int, seconds: float) -> None:
    """Prints a table by role, and the size of it all."""
    total = _total(shares)
    rows = [
        [
            role or "(no part of the model)",
            str(share.n_tensors),
            ", ".join(
                name if len(share.types) == 1 else f"{count} {name}"
                for name, count in share.types.items()
            ),
            f"{share.n_weights:,}",
            f"{share.nbytes:,}",
            f"{share.bits_per_weight:.2f}",
            f"{100 * _error(share):.3f} %" if share.n_converted else "",
        ]
        for role, share in [*shares.items(), ("all", total)]
    ]
    for row in rows[-1:]:
        row[2] = ""
    head = ["role", "tensors", "type", "weights", "bytes", "bits", "error"]
    click.echo(markdown_table(head, rows, left=("role", "type")))
    click.echo(f"{target}: {nbytes:,} bytes in {seconds:.1f} s")


def as_json(
    target: Path,
    type_name: str,
    shares: dict[str, Share],
    plan: list[Step],
    nbytes: int,
    seconds: float,
    n_threads: int,
) -> dict[str, object]:
    """The same, and more, as --json has it."""

    def figures(share: Share) -> dict[str, object]:
        d = share.distortion
        return {
            "n_tensors": share.n_tensors,
            "types": share.types,
            "n_weights": share.n_weights,
            "nbytes": share.nbytes,
            "bits_per_weight": share.bits_per_weight,
            "n_converted": share.n_converted,
            "relative_error": _error(share),
            "mse": d.mse,
            "mean_error": d.mean_error,
            "max_error": d.max_error,
            "lost": share.lost,
        }

    return {
        "path": str(target),
        "type": type_name,
        "nbytes": nbytes,
        "seconds": seconds,
        "n_threads": n_threads,
        "tensors": {step.tensor.name: step.to for step in plan},
        "roles": {role: figures(share) for role, share in shares.items()},
        "all": figures(_total(shares)),
    }
