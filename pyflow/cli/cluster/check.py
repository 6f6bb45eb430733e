"""`pyflow cluster check`: measure ranks and links, and predict the speed of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from pyflow.cli.options import model, ranks
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.groups import grouped, option, output
from pyflow.cli.options.pipeline_run import device_of_rank, drafting_models
from pyflow.cli.options.rules import Rule, is_given
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.speculation import check_layers, draft_layers, draft_models_option
from pyflow.cli.terminal.output import print_json
from pyflow.cluster.supervise.lifeline import TIMEOUT_S, of_process
from pyflow.text import markdown_table

if TYPE_CHECKING:
    from pyflow.cluster.mpi.survey import Survey
    from pyflow.cluster.planning.predict import Drafts, Prediction
    from pyflow.cluster.supervise.hosts import Place
    from pyflow.model import Model

_GIGA, _MEGA = 1e9, 1e6
# Numbers of rows whose times the table shows; the JSON has all.
_SHOWN = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafting:
    """The drafts that predictions assume."""

    draft_models: tuple[str, ...]
    draft_layers: Sequence[int]
    draft_ranks: Sequence[int]
    acceptance: float | None


_drafting = grouped(
    "drafting",
    _Drafting,
    draft_models_option(
        "The model that would draft. Only its time is measured, of several models that of the "
        "last.  [default: lookup]"
    ),
    draft_layers,
    ranks.draft_ranks,
    option(
        "--acceptance",
        "The probability that a draft is accepted.  [default: 0.66 of a draft model, 0.4 of "
        "lookup]",
        type=Finite(0, 1),
        metavar="P",
    ),
    rules=[
        Rule("--draft-rank", needs=["--draft-model"]),
        Rule("--draft-layers", needs=["--draft-model self"]),
    ],
)


@click.command("check")
@ranks.places
@run_options(model.model, model.threads, model.ctx_size, model.cache_type)
@_drafting
@output("md", "json")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    places: list[Place] | None,
    run: RunOptions,
    drafting: _Drafting,
    output: str,
) -> int:
    """Measure N ranks of this machine, or the hosts of FILE, and predict how fast they would be.

    Without -n and --hosts, the ranks that mpirun has started. Every rank computes some layers of
    the model for 1 to 8 rows; neighbours exchange messages. The layers are then split exactly, and
    each strategy is run in virtual time: nothing is generated.
    """
    if places is not None:
        return _start(ctx, places)
    from pyflow.cluster.planning.predict import choose, predictions

    found, drafts, drafters = _survey(run, drafting)
    if found is None:  # rank 0 prints
        return 0
    if found.draft_ms is not None:
        drafts = replace(drafts, ms=found.draft_ms)
    expected = predictions(found.pipeline, drafts)
    best = choose(expected)
    names = drafting.draft_models
    if output == "json":
        who = {"models": names, "ranks": drafters or (0,)} if names else {}
        print_json(_as_json(found, drafts, expected, best, who), indent=2)
    else:
        where = ", ".join(map(str, drafters or (0,)))
        said = f"{', '.join(names)} on rank {where}" if names else "lookup"
        click.echo("\n\n".join(_tables(found, drafts, expected, best, said)))
    return 0


def _survey(run: RunOptions, drafting: _Drafting) -> tuple[Survey | None, Drafts, tuple[int, ...]]:
    """What ranks and links take, what drafts take, and the ranks that only draft.

    The survey is None on ranks other than 0.
    """
    from pyflow import _core
    from pyflow.cluster.mpi.survey import survey
    from pyflow.cluster.mpi.transport import world
    from pyflow.cluster.planning.profile import drafts_by
    from pyflow.engine.model_files import ModelFiles

    name, among, names = run.model or model.default_model(), world(), drafting.draft_models
    drafters = ranks.drafters(drafting.draft_ranks, among.size, len(names))
    pool = _core.ThreadPool(run.n_threads or model.threads_of_each(among.n_here))

    def models() -> AbstractContextManager[list[Model]]:
        files = ModelFiles(name)
        check_layers(files, drafting.draft_layers)
        own = names[drafters.index(among.rank)] if len(drafters) > 1 else names[-1]
        gpu = of_process().gpu or None
        return drafting_models(files, [own], drafting.draft_layers, pool.n_threads, gpu)

    found = survey(
        name,
        pool=pool,
        drafters=drafters,
        drafts=models if among.rank in drafters else None,
        open_device=partial(device_of_rank, drafts=among.rank in drafters, allow_inexact=False),
        n_ctx=run.n_ctx,
        cache_type=run.cache_type,
    )
    with ExitStack() as stack:
        has_own = found is not None and names and not drafters
        draft = stack.enter_context(models())[0] if has_own else None
        drafts = drafts_by(draft, drafting.acceptance, elsewhere=bool(drafters))
    return found, drafts, drafters


def _start(ctx: click.Context, places: list[Place]) -> int:
    """Runs this command on ranks, with its other options."""
    from pyflow.cluster.supervise.launcher import Launcher
    from pyflow.cluster.supervise.restarts import supervise

    arguments = ["pyflow", "cluster", "check"]
    for param in ctx.command.params:
        name = str(param.name)
        if name not in ("n_ranks", "hosts", "gpu_ranks") and is_given(name):
            value = ctx.params[name]
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
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
            hello.device or hello.isa,
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
            ",".join(str(len(layers)) for layers in each.split.ranges),
            f"{each.tokens_per_s:.2f}",
        ]
        for each in expected
    ]
    head = ["strategy", "drafts", "runs", "layers", "t/s"]
    parts.append(markdown_table(head, rows, left={"strategy", "layers"}))
    table, lines = describe(best.split)
    parts.append(markdown_table([*table[0]], [[*row] for row in table[1:]], left={"HOST"}))
    own = found.hellos[0]
    lines = [
        f"all have pyflow {own.version} and the same model, {own.model[:12]}",
        f"drafts by {drafter}: {drafts.ms:.2f} ms each, {drafts.acceptance:.0%} of them accepted",
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
                "device": hello.device,
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
                "layers": [len(layers) for layers in each.split.ranges],
                "tokens_per_s": each.tokens_per_s,
                "chosen": each is best,
            }
            for each in expected
        ],
    }
