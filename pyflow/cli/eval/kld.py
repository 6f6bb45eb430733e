"""`pyflow eval kld`: how far quantized models are from the one that they were made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyflow.cli.eval.text import Measurement, TextOptions, end, measuring, of_text
from pyflow.cli.options import model
from pyflow.cli.options.groups import as_json
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.terminal.output import print_json
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.model import Model
    from pyflow.quant.measure.kld import Divergence
    from pyflow.quant.measure.windows import Cut, Window

# The characters of a text that tokenizers must encode alike.
_PROBE = 10_000


@click.command("kld")
@click.argument("base", metavar="BASE")
@click.argument("quants", metavar="QUANT...", nargs=-1, required=True)
@of_text
@run_options(model.threads, model.numa)
@as_json
def command(
    *, base: str, quants: tuple[str, ...], text: TextOptions, run: RunOptions, as_json: bool
) -> None:
    """How far each model QUANT is from BASE in what it predicts: KL divergence, lower is better.

    All models read the text side by side, and no logits are stored. Printed are perplexity and its
    change, whose error is that of paired differences; the divergence in nats, with mean, median
    and the 99 and 99.9 % quantiles; how often the likeliest token is the base's; and the root mean
    square of the change of the right token's probability.
    """
    with ExitStack() as stack:
        models = [stack.enter_context(run.load(name, continues=True)) for name in (base, *quants)]
        found = diverge(models, text)
    if as_json:
        figures = {
            **found.facts(text),
            "base": {"model": base, **_mean(found.divergences[0].base_ppl, "ppl")},
            "models": [
                {"model": name, **as_figures(divergence)}
                for name, divergence in zip(quants, found.divergences, strict=True)
            ],
        }
        print_json(figures)
    else:
        click.echo(_table(base, quants, found.divergences))
        click.echo(found.told(text))
    end(found.run, found.windows, text.resume)


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured of models against the first one."""

    cut: Cut
    windows: Sequence[Window]
    run: Measurement
    divergences: list[Divergence]

    def facts(self, text: TextOptions) -> dict[str, Any]:
        """For JSON: how it was measured."""
        return {
            **text.facts(self.cut),
            "chunks": self.run.n_done,
            "tokens": self.divergences[0].tokens,
            "seconds": self.run.seconds,
        }

    def told(self, text: TextOptions) -> str:
        """The same in a line."""
        told = text.told(self.cut, self.run.n_done, self.divergences[0].tokens)
        return f"{told[0].upper()}{told[1:]}, {self.run.seconds:.1f} s"


def diverge(models: Sequence[Model], text: TextOptions) -> Found:
    """Measures models against the first one; Ctrl-C ends it early."""
    from pyflow.quant.measure import kld
    from pyflow.quant.measure.perplexity import limited

    check_tokenizers(models, text.text)
    cut = text.cut(models[0])
    windows = limited(cut, text.n_chunks)
    journal = text.journal(cut, kld.n_figures(len(models) - 1), models, "eval kld")
    with measuring(journal, windows) as (run, show), ExitStack() as contexts:
        first, *others = (
            contexts.enter_context(model.context(text.n_ctx, n_batch=text.n_ctx))
            for model in models
        )
        kld.diverge(
            first,
            others,
            windows,
            journal,
            n_vocab=models[0].spec.n_vocab,
            regime=text.regime,
            n_threads=models[0].n_threads,
            progress=show,
        )
    records = journal.records[: run.n_done]
    found = [kld.compare(records, k) for k in range(len(models) - 1)]
    return Found(cut, windows, run, found)


def check_tokenizers(models: Sequence[Model], text: str) -> None:
    """UsageError unless all models encode a text alike and have as many tokens."""
    base, *others = models
    for other in others:
        alike = other.spec.n_vocab == base.spec.n_vocab and list(
            other.tokenizer.encode(text[:_PROBE])
        ) == list(base.tokenizer.encode(text[:_PROBE]))
        if not alike:
            raise click.UsageError(
                f"{other.path}: expected the vocabulary of {base.path} ({base.spec.n_vocab:,} "
                f"tokens), found another ({other.spec.n_vocab:,}); only models that share one "
                "compare"
            )


def as_figures(d: Divergence) -> dict[str, Any]:
    """For JSON."""
    from pyflow.quant.measure.kld import QUANTILES

    quantiles = zip(QUANTILES, d.kl_quantiles, strict=True)
    return {
        **_mean(d.ppl, "ppl"),
        "ln_ppl_ratio": dataclasses.asdict(d.ln_ratio),
        "ppl_change": dataclasses.asdict(d.ppl_change),
        "kl": {
            **dataclasses.asdict(d.kl),
            **{f"p{q:g}": value for q, value in quantiles},
            "max": d.kl_max,
        },
        "same_top": dataclasses.asdict(d.same_top),
        "rms_dp": dataclasses.asdict(d.rms_dp),
        "mean_dp": dataclasses.asdict(d.mean_dp),
    }


def _mean(value: Any, name: str) -> dict[str, float]:
    return {name: value.mean, "stderr": value.stderr}


def _table(base: str, quants: Sequence[str], found: Sequence[Divergence]) -> str:
    head = ["model", "perplexity", "change", "mean KL", "median", "99 %", "99.9 %", "max"]
    p = found[0].base_ppl
    rows = [[base, f"{p.mean:.4f} ± {p.stderr:.4f}", *[""] * 8]]
    for name, d in zip(quants, found, strict=True):
        median, _, _, p99, p999 = d.kl_quantiles
        rows.append(
            [
                name,
                f"{d.ppl.mean:.4f} ± {d.ppl.stderr:.4f}",
                percent(d.ppl_change),
                f"{d.kl.mean:.6f} ± {d.kl.stderr:.6f}",
                *(f"{x:.5f}" for x in (median, p99, p999, d.kl_max)),
                percent(d.same_top, signed=False),
                percent(d.rms_dp, signed=False),
            ]
        )
    return markdown_table([*head, "same top", "RMS Δp"], rows, left={"model"})


def percent(value: Any, *, signed: bool = True) -> str:
    sign = "+" if signed else ""
    return f"{100 * value.mean:{sign}.3f} ± {100 * value.stderr:.3f} %"
