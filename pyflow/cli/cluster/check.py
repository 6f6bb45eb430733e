"""`pyflow cluster check`: measure ranks and links, and predict the speed of strategies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from pyflow.cli.cluster.told import Told
from pyflow.cli.options import model, ranks
from pyflow.cli.options.finite import Finite
from pyflow.cli.options.groups import grouped, option, output
from pyflow.cli.options.pipeline_run import device_of_rank, drafting_models
from pyflow.cli.options.rules import Rule, is_given
from pyflow.cli.options.run import RunOptions, run_options
from pyflow.cli.options.speculation import check_layers, draft_layers, draft_models_option
from pyflow.cli.terminal.output import print_json
from pyflow.cluster.supervise.lifeline import TIMEOUT_S, of_process

if TYPE_CHECKING:
    from pyflow.cluster.planning.predict import Drafts
    from pyflow.cluster.planning.survey import Survey
    from pyflow.cluster.supervise.hosts import Place
    from pyflow.model import Model


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
    the model for 1 to 8 rows; neighbours exchange messages, and gather as members of a stage would.
    The layers are then split exactly for each layout, and each strategy is run in virtual time:
    nothing is generated.
    """
    if places is not None:
        return _start(ctx, places)
    from pyflow.cluster.planning.layouts import Predict, Shareable, judge

    found, drafts, drafters = _survey(run, drafting)
    if found is None:  # rank 0 prints
        return 0
    if found.draft_ms is not None:
        drafts = replace(drafts, ms=found.draft_ms)
    cluster = Shareable(found.pipeline, found.sharing, found.gathers)
    layouts = [*cluster.layouts(apart=drafts.beside)]
    told = Told(found, drafts, judge(layouts, Predict(drafts)))
    names = drafting.draft_models
    if output == "json":
        who = {"models": names, "ranks": drafters or (0,)} if names else {}
        print_json(told.as_dict(who), indent=2)
    else:
        where = ", ".join(map(str, drafters or (0,)))
        said = f"{', '.join(names)} on rank {where}" if names else "lookup"
        click.echo("\n\n".join(told.tables(said)))
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
