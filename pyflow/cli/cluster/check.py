"""`pyflow cluster check`: what ranks and links take, and what is expected of strategies on them."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from msgspec import structs

from pyflow.cli.options import model as options
from pyflow.cli.options import ranks
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.speculation import check_layers, draft_layers_option, model_names
from pyflow.cli.terminal.output import print_json
from pyflow.cluster.supervise.lifeline import TIMEOUT_S
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.cluster.mpi.survey import Survey
    from pyflow.cluster.planning.predict import Drafts, Prediction
    from pyflow.cluster.supervise.launcher import Place
    from pyflow.engine.context import CacheType
    from pyflow.model import Model

_GIGA, _MEGA = 1e9, 1e6
# Rows of a run whose time is shown; all are in the JSON.
_SHOWN = (1, 2, 4, 8)


@click.command("check")
@ranks.n_ranks
@ranks.hosts
@options.model
@options.threads
@options.ctx_size
@options.cache_type
@click.option(
    "--draft-model",
    metavar="MODEL",
    help="Who would guess; nobody is asked, but its time counts, of several models that of the "
    "last one.  [default: lookup]",
)
@draft_layers_option
@ranks.draft_ranks
@click.option(
    "--acceptance",
    type=Finite(0, 1),
    metavar="P",
    help="How often a guess is right.  [default: 0.66 of a draft model, 0.4 of lookup]",
)
@options.output("md", "json")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    n_ranks: int | None,
    hosts: Path | None,
    model: str | None,
    threads: int | None,
    ctx_size: int | None,
    cache_type: str,
    draft_model: str | None,
    draft_layers: list[int],
    draft_ranks: list[int],
    acceptance: float | None,
    output: str,
) -> int:
    """Measure N ranks of this machine, or the hosts of FILE, and predict how fast they would be.

    Without -n and --hosts, the ranks that mpirun has started. Every rank computes some layers of
    the model for 1 to 8 rows; neighbours exchange messages. The layers are then split exactly, and
    each strategy is run in virtual time: nothing is generated.
    """
    if n_ranks is not None or hosts is not None:
        return _start(ctx, ranks.places(n_ranks, hosts))
    from pyflow import _core
    from pyflow.cli.options.pipeline_choice import drafting_models, threads_of_each
    from pyflow.cluster.mpi.endpoint import world
    from pyflow.cluster.mpi.survey import survey
    from pyflow.cluster.planning.predict import choose, predictions
    from pyflow.cluster.planning.profile import drafts_by
    from pyflow.engine.model_files import ModelFiles

    name, among = model or options.default_model(), world()
    names = model_names(draft_model)
    drafters = ranks.drafters(draft_ranks, among.size, len(names))
    if draft_ranks and not names:
        raise click.UsageError("--draft-rank is of no use without --draft-model")
    if draft_layers and "self" not in names:
        raise click.UsageError("--draft-layers is for --draft-model self")
    pool = _core.ThreadPool(threads or threads_of_each(among.n_here))

    def models() -> AbstractContextManager[list[Model]]:
        described = ModelFiles(name)
        check_layers(described, draft_layers)
        own = names[drafters.index(among.rank)] if len(drafters) > 1 else names[-1]
        return drafting_models(described, [own], draft_layers, pool.n_threads)

    found = survey(
        name,
        pool=pool,
        drafters=drafters,
        drafts=models if among.rank in drafters else None,
        n_ctx=ctx_size,
        cache_type=cast("CacheType", cache_type),
    )
    if found is None:  # rank 0 speaks
        return 0
    with ExitStack() as stack:
        draft = stack.enter_context(models())[0] if names and not drafters else None
        drafts = drafts_by(draft, acceptance, elsewhere=bool(drafters))
    drafts = replace(drafts, ms=found.draft_ms) if found.draft_ms is not None else drafts
    expected = predictions(found.pipeline, drafts)
    best = choose(expected)
    if output == "json":
        who = {"models": names, "ranks": drafters or [0]} if names else {}
        print_json(_as_json(found, drafts, expected, best, who), indent=2)
    else:
        where = ", ".join(map(str, drafters or [0]))
        said = f"{', '.join(names)} on rank {where}" if names else "lookup"
        click.echo("\n\n".join(_tables(found, drafts, expected, best, said)))
    return 0


def _start(ctx: click.Context, places: list[Place]) -> int:
    """Runs this command on ranks, with the other options that it was given."""
    from pyflow.cluster.supervise.launcher import Launcher
    from pyflow.cluster.supervise.restarts import supervise

    arguments = ["pyflow", "cluster", "check"]
    for param in ctx.command.params:
        name = str(param.name)
        if name not in ("n_ranks", "hosts") and options.is_given(name):
            value = ctx.params[name]
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            arguments += [param.opts[-1], *([] if value is True else [text])]
    return supervise(Launcher(), arguments, places, timeout_s=TIMEOUT_S)


def _tables(
    found: Survey, drafts: Drafts, expected: list[Prediction], best: Prediction, drafter: str
) -> list[str]:
    from pyflow.cluster.planning.plan import describe

    pipeline = found.pipeline
    head = [
        "rank",
        "host",
        "kernels",
        *(f"ms/layer, {n}" for n in _SHOWN),
        "head ms",
        "read",
        "may use",
    ]
    ranks = [
        [
            str(profile.rank),
            profile.host,
            hello.isa,
            *(f"{profile.layer_ms[n - 1]:.3f}" for n in _SHOWN),
            f"{profile.head_ms:.2f}",
            f"{read / _GIGA:.1f} GB/s",
            f"{profile.max_nbytes / 2**20:,.0f} MiB" if profile.max_nbytes else "drafts",
        ]
        for profile, read, hello in zip(
            pipeline.ranks, found.read_bytes_per_s, found.hellos, strict=True
        )
    ]
    parts = [markdown_table(head, ranks, left={"host", "kernels"})]
    links = [
        [f"{i} and {j}", f"{1e6 * link.latency_s:,.0f} us", f"{link.bytes_per_s / _MEGA:,.0f} MB/s"]
        for (i, j), link in sorted(pipeline.links.items())
    ]
    if links:
        parts.append(markdown_table(["ranks", "latency", "bandwidth"], links, left={"ranks"}))
    rows = [
        [
            each.kind + (", redrafting" if each.strategy.redrafts else ""),
            str(each.strategy.n_draft),
            str(each.strategy.n_flight),
            ",".join(str(len(layers)) for layers in each.ranges),
            f"{each.tokens_per_s:.2f}",
        ]
        for each in expected
    ]
    head = ["strategy", "guesses", "runs", "layers", "t/s"]
    parts.append(markdown_table(head, rows, left={"strategy", "layers"}))
    table, lines = describe(best.split)
    parts.append(markdown_table([*table[0]], [[*row] for row in table[1:]], left={"HOST"}))
    own = found.hellos[0]
    lines = [
        f"all have pyflow {own.version} and the same model, {own.model[:12]}",
        f"guesses by {drafter}: {drafts.ms:.2f} ms each, right {drafts.acceptance:.0%} of the time",
        f"best: {best.kind}, {best.tokens_per_s:.2f} tokens per second",
        *lines,
    ]
    parts.append("\n".join(lines))
    return parts


def _as_json(
    found: Survey,
    drafts: Drafts,
    expected: list[Prediction],
    best: Prediction,
    who: dict[str, Any],
) -> dict[str, Any]:
    reads = found.read_bytes_per_s
    return {
        "ranks": [
            {
                **structs.asdict(profile),
                "read_bytes_per_s": read,
                "version": hello.version,
                "model": hello.model,
                "isa": hello.isa,
            }
            for profile, read, hello in zip(found.pipeline.ranks, reads, found.hellos, strict=True)
        ],
        "links": [
            {"from": i, "to": j, **structs.asdict(link)}
            for (i, j), link in found.pipeline.links.items()
        ],
        "drafts": asdict(drafts) | who,
        "strategies": [
            {
                "kind": each.kind,
                "n_draft": each.strategy.n_draft,
                "n_rows": each.strategy.n_rows,
                "n_flight": each.strategy.n_flight,
                "redrafts": each.strategy.redrafts,
                "layers": [len(layers) for layers in each.ranges],
                "tokens_per_s": each.tokens_per_s,
                "chosen": each is best,
            }
            for each in expected
        ],
    }
