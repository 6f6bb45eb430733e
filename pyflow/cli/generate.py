"""`pyflow generate`: text from one prompt, or from many."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from pyflow.cli.options import model
from pyflow.cli.options import sampling as draws
from pyflow.cli.options.asking import Question, question
from pyflow.cli.options.constraint import constraint
from pyflow.cli.options.finite import Whole
from pyflow.cli.options.groups import as_json, grouped, option, ruled
from pyflow.cli.options.pipeline import pipelines
from pyflow.cli.options.rules import Rule, is_given
from pyflow.cli.options.run import RunOptions, adapters, run_with_pipelines
from pyflow.cli.options.speculation import speculation
from pyflow.cli.options.topics import TopicCommand
from pyflow.cli.terminal.output import print_json
from pyflow.cli.terminal.progress import counted, on_interrupt, reading_progress
from pyflow.cli.terminal.signals import ENDING, like_ctrl_c
from pyflow.sampling import SamplingParams

if TYPE_CHECKING:
    from pyflow.cluster.model import PipelinedModel
    from pyflow.constrain import Constraint
    from pyflow.errors import SessionError
    from pyflow.generate import Completion, Options, StopReason
    from pyflow.generate.any_model import AnyModel
    from pyflow.generate.stream import Stream
    from pyflow.model import Model

_ENDS: dict[StopReason, str] = {
    "eos": "the model",
    "length": "-n",
    "stop": "--stop",
    "cancelled": "interruption",
    "context": "the end of the context (-c)",
}


_MOST = 256  # tokens of a text by beams, where nothing else is said


class _Writing(NamedTuple):
    n_predict: int
    beams: int | None
    from_language: str | None
    to_language: str | None

    @property
    def languages(self) -> dict[str, str]:
        """Those that are given, by their names in `generate`."""
        names = {"from_language": self.from_language, "to_language": self.to_language}
        return {key: name for key, name in names.items() if name is not None}


_writing = grouped(
    "writing",
    _Writing,
    draws.n_predict,
    option(
        "--beams",
        "Of a model that reads a source: follow so many texts at once, and print the best.",
        type=click.IntRange(1, 64),
        metavar="N",
        short="Follow so many texts at once",
    ),
    draws.from_language,
    draws.to_language,
)
_WITHOUT_LANGUAGES = ["--prefix", "--suffix", "--chat", "--special", "-sys", "--prefill"]


def _with_logprobs(sampling: SamplingParams, n_logprobs: int) -> SamplingParams:
    return dataclasses.replace(sampling, n_logprobs=n_logprobs)


_sampling = grouped(
    "sampling",
    _with_logprobs,
    draws.sampling,
    option(
        "--logprobs n_logprobs",
        "With --json, report the K likeliest tokens in every place.",
        metavar="K",
        type=Whole(0),
        default=0,
    ),
)


@click.command("generate", cls=TopicCommand)
@run_with_pipelines(
    model.model,
    model.ctx_size,
    model.threads,
    model.numa,
    model.quantize,
    model.overrides,
    model.offload,
    adapters,
    model.cache_type,
    speculation,
    pipelines,
)
@ruled(
    Rule("--logprobs", forbids=["--pipeline"], advice="stages return tokens, not logits"),
    Rule("--logprobs", needs=["--json", "--jsonl"]),
    Rule("--jsonl", forbids=["--session"]),
    model.NO_SESSION,
    Rule("--beams", forbids=["--spec"], advice="each beam needs all its next tokens, not a draft"),
    Rule("--beams", forbids=["--pipeline", "--session", "--jsonl", "--logprobs", "--stop"]),
    Rule("--beams", forbids=draws.FLAGS, advice="beams draw nothing"),
    Rule("--from", forbids=[*_WITHOUT_LANGUAGES, "--pipeline"]),
    Rule("--to", forbids=[*_WITHOUT_LANGUAGES, "--pipeline"]),
    Rule("--beams", forbids=["--json-schema", "--grammar"], advice="beams know no grammars"),
)
@question
@_writing
@_sampling
@draws.stop
@constraint
@model.session
@as_json
def command(
    *,
    run: RunOptions,
    session_file: str | None,
    question: Question,
    writing: _Writing,
    sampling: SamplingParams,
    stop: tuple[str, ...],
    constraint: Constraint | None,
    as_json: bool,
) -> int:
    """Continue a text, or answer one question.

    The prompt is -p, or FILE, or standard input (-); -p and one of the others are joined. The text
    is printed on standard output as it is generated; a seed that was drawn, and timings, on
    standard error.
    """
    as_json = as_json or is_given("jsonl")
    if session_file is not None:
        click.get_current_context().with_resource(like_ctrl_c())
    draws_seed = sampling.seed is None
    seeded = sampling.seeded()
    with run.open() as loaded, run.speculator(loaded) as speculator, reading_progress() as progress:
        draws.check_tokens(seeded, loaded)
        seeded = draws.with_defaults(seeded, loaded)
        wanted: Options = {
            "n_predict": writing.n_predict if is_given("n_predict") else loaded.defaults.n_predict,
            "sampling": seeded,
            "stop": question.templating.stops(stop),
            "constraint": constraint,
            "progress": progress,
        }
        if run.pipeline is None:
            wanted |= {
                "n_ctx": run.context_size(loaded),
                "cache_type": run.cache_type,
                "speculator": speculator,
                "session": session_file,
            }
        wanted |= cast("Options", writing.languages)
        prompts: Any = [prompt.text for prompt in question.prompts]
        if not writing.languages:
            with model.printing_warnings():
                prompts = question.encode(loaded)
        if writing.beams is not None:
            _print_best(cast("Model", loaded), prompts, writing, wanted["n_predict"], as_json)
            return 0
        with model.printing_warnings():
            chunks = loaded.stream(prompts, **wanted)
        came, unsaved = _read(chunks, echo=not as_json, ending=session_file is not None)
        done = chunks.completions
        if as_json:
            ids = [prompt.id for prompt in question.prompts]
            for completion, own in zip_longest(done, ids):
                result = _as_dict(run, loaded, completion)
                print_json(result if own is None else {"id": own, **result})
        elif not done[0].text.endswith("\n"):
            click.echo()
        if draws_seed and seeded.temperature > 0:
            click.echo(f"seed {seeded.seed}", err=True)
        _print_statistics(done)
    if unsaved is not None:
        raise unsaved
    return 128 + came if any(c.stop_reason == "cancelled" for c in done) else 0


def _read(chunks: Stream, *, echo: bool, ending: bool) -> tuple[int, SessionError | None]:
    """Reads a stream to its end or a signal; the signal, or SIGINT, and why no session was saved.

    echo: print its text. ending: SIGTERM and SIGHUP end it as Ctrl-C does.
    """
    from pyflow.errors import SessionError

    unsaved = None
    with on_interrupt(chunks.cancel, ENDING if ending else ()) as came:
        try:
            with chunks:
                for chunk in chunks:
                    if echo:
                        click.echo(chunk.text, nl=False)
        except SessionError as error:  # the answer is there, and is printed first
            unsaved = error
    return came[0] if came else signal.SIGINT, unsaved


def _print_best(
    model: Model, source: Any, writing: _Writing, n_predict: int, as_json: bool
) -> None:
    """The best text that a search finds."""
    from pyflow.generate.beams import Beams

    how = Beams(**{**model.defaults.search, "n": writing.beams})
    n_predict = n_predict if n_predict > 0 else _MOST
    (found,) = model.beam_search(source, how, n_predict=n_predict, **writing.languages)
    text, tokens = model.text_of(found[0].tokens)
    if as_json:
        print_json({"model": model.name, "text": text, "tokens": tokens, "score": found[0].score})
    else:
        click.echo(text)


def _as_dict(run: RunOptions, model: AnyModel, done: Completion) -> dict[str, Any]:
    """What --json prints."""
    result: dict[str, Any] = {
        "model": model.name,
        "text": done.text,
        "prompt_tokens": done.prompt_tokens,
        "tokens": done.tokens,
        "stop_reason": done.stop_reason,
        "seed": done.seed,
        "timings": done.timings.as_dict(),
    }
    if done.speculation is not None:
        result["speculation"] = done.speculation.as_dict()
    if done.pipeline is not None:
        result["pipeline"] = done.pipeline.as_dict()
        if run.pipeline is not None:
            result["pipeline"] |= run.pipeline.as_dict(cast("PipelinedModel", model))
    if done.logprobs is not None:
        result["logprobs"] = [
            {
                **_token(model, place.token, place.logprob),
                "top": [_token(model, token, logprob) for token, logprob in place.top],
            }
            for place in done.logprobs
        ]
    return result


def _token(model: AnyModel, token: int, logprob: float) -> dict[str, Any]:
    text = model.tokenizer.token_bytes(token).decode("utf-8", "replace")
    return {"id": token, "text": text, "logprob": logprob}


def _print_statistics(done: Sequence[Completion]) -> None:
    """Timings, and what speculation and pipelines did, on standard error."""
    from pyflow.speculate.stats import PipelineStats, SpeculationStats

    click.echo(timing_line(done), err=True)
    if parts := [c.speculation for c in done if c.speculation is not None]:
        click.echo(str(SpeculationStats.total(parts)), err=True)
    if runs := [c.pipeline for c in done if c.pipeline is not None]:
        click.echo(str(PipelineStats.total(runs)), err=True)


def timing_line(done: Sequence[Completion]) -> str:
    """Counts and speeds; only counts for several prompts, which share their time."""
    if len(done) > 1:
        n_read = sum(c.timings.prompt_n for c in done)
        n_drawn = sum(c.timings.predicted_n for c in done)
        return f"{len(done)} prompts, {counted(n_read)}; generated {counted(n_drawn)}"
    t = done[0].timings
    return (
        f"prompt {counted(t.prompt_n, t.prompt_per_second)}; "
        f"generated {counted(t.predicted_n, t.predicted_per_second)}; "
        f"loaded in {t.load_ms:.0f} ms; ended by {_ENDS[done[0].stop_reason]}"
    )
