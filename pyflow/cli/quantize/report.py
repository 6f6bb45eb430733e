"""What `pyflow quantize` prints."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyflow.quant import FORMATS
from pyflow.quant.imatrix import ENOUGH, WIDTH
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.formats import Checkpoint
    from pyflow.gguf_export import GgufModel
    from pyflow.quant.convert import Share
    from pyflow.quant.plan import Step


def announce(steps: list[Step], model: Checkpoint | GgufModel, weighed: bool) -> None:
    """Prints matrices that get another format than expected, and how to read the table.

    weighed: importance was given.
    """
    from pyflow.gguf_export import GgufModel

    notes = model.notes if isinstance(model, GgufModel) else []
    lines = [f"warning: {note}" for note in notes] + fallbacks(steps, weighed)
    if n := sum(step.moments is not None for step in steps):
        lines.append(
            f"{_matrices(n, 'uses', 'use')} moments (GPTQ); the table has the errors of the outputs"
        )
    for line in lines:
        click.echo(line, err=True)


def _matrices(n: int, does: str = "", do: str = "") -> str:
    """A count of matrices, with a verb in singular or plural."""
    return f"{n} matrix {does}".rstrip() if n == 1 else f"{n} matrices {do}".rstrip()


def fallbacks(steps: list[Step], weighed: bool) -> list[str]:
    """Lines on matrices that get another format than expected."""
    lines = []
    instead: dict[tuple[str, str, int], int] = {}
    for step in steps:
        if step.instead_of is not None:
            kind = step.instead_of, step.to, step.tensor.shape[-1]
            instead[kind] = instead.get(kind, 0) + 1
    for (wanted, to, n_cols), count in instead.items():
        lines.append(
            f"{_matrices(count, 'gets', 'get')} {to} instead of {wanted}: rows of {n_cols} are not "
            f"a multiple of {FORMATS[wanted].block}"
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
            lines.append(f"no importance was measured for {', '.join(without[:3])}{more}")
        moments = [step.moments for step in steps if step.moments is not None]
        if few := [m for m in moments if m.n_rows < ENOUGH * min(m.n_cols, WIDTH)]:
            lines.append(
                f"moments of {_matrices(len(few))} overfit a short text: {few[0].n_rows:,} tokens "
                f"for {few[0].n_cols:,} columns"
            )
    return lines


def lost(shares: dict[str, Share]) -> list[str]:
    """A line for each role that lost whole matrices."""
    lines = []
    for role, share in shares.items():
        if not share.lost:
            continue
        more = f" and {len(share.lost) - 1} more" if len(share.lost) > 1 else ""
        lines.append(
            f"warning: {share.lost[0]}{more}: the weights underflow the format's F16 scales; "
            f"--tensor-type '{role}=bf16' keeps them"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was written."""

    target: Path
    type_name: str
    shares: dict[str, Share]
    """By role."""
    plan: list[Step]
    nbytes: int
    seconds: float
    n_threads: int

    def show(self) -> None:
        """Prints a table by role, and the size of the result."""
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
            for role, share in [*self.shares.items(), ("all", _total(self.shares))]
        ]
        rows[-1][2] = ""
        head = ["role", "tensors", "type", "weights", "bytes", "bits", "error"]
        click.echo(markdown_table(head, rows, left=("role", "type")))
        click.echo(f"{self.target}: {self.nbytes:,} bytes in {self.seconds:.1f} s")

    def as_dict(self) -> dict[str, object]:
        """The same with details, for --json."""
        return {
            "path": str(self.target),
            "type": self.type_name,
            "nbytes": self.nbytes,
            "seconds": self.seconds,
            "n_threads": self.n_threads,
            "tensors": {step.tensor.name: step.to for step in self.plan},
            "roles": {role: _figures(share) for role, share in self.shares.items()},
            "all": _figures(_total(self.shares)),
        }


def _figures(share: Share) -> dict[str, object]:
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
