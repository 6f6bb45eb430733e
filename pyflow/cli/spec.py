"""`pyflow spec`: a model's files against its specification."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from pyflow import catalogue, formats
from pyflow.cli.group import Group
from pyflow.cli.options import model
from pyflow.cli.options.groups import as_json
from pyflow.cli.terminal.output import print_json
from pyflow.errors import PyflowError, ShapeError, UnsupportedError
from pyflow.text import plural, printable

if TYPE_CHECKING:
    from pyflow.specs import Description
    from pyflow.specs.model_spec import ModelSpec

_SHOWN = 20
_TITLES = {
    "missing": "missing tensors",
    "shape": "tensors of another shape",
    "unused": "tensors that the model does not use",
}


@click.group("spec", cls=Group)
def command() -> None:
    """Check a model's files against its specification."""


@command.command("check")
@click.argument("file", metavar="FILE|DIR", callback=model.offered)
@as_json
@click.pass_context
def check(ctx: click.Context, *, file: str, as_json: bool) -> None:
    """Check the model in FILE, in the folder DIR, or pulled by its name, against its spec.

    The spec is a pyflow.toml in its folder, or that of the family named by its metadata or
    config.json. Shown are the layers; tensors that are missing, unused or of another shape, with
    the nearest names; and whether the tokenizer fits the model. No weights are loaded. Exits with 3
    if the files do not fit; a model without a tokenizer takes token ids, and fits.
    """
    from pyflow.specs import describe

    description = describe(formats.open(catalogue.resolve(file)))
    found = _found(description)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found["fits"]:
        ctx.exit(3)


def _found(description: Description) -> dict[str, Any]:
    from pyflow.specs.document import label

    built, spec = description.built, description.built.spec
    unsupported = [*built.unsupported, *_refusals(description)]
    fits = not built.problems and not unsupported and spec is not None
    tokenizer, suits = _tokenizer(description, fits=fits)
    facts = {name: fact.value for name, fact in description.facts.known().items()}
    embedding, head = _ends(spec) if spec else (None, None)
    return {
        "path": str(description.checkpoint.path),
        "spec": label(description.document.path),
        "name": description.document.name,
        "fits": fits and suits,
        "problems": [asdict(problem) for problem in built.problems],
        "more_problems": built.is_cut,
        "unsupported": unsupported,
        "ignored": sorted(built.ignored),
        "facts": facts,
        "embedding": embedding,
        "layers": [
            {"which": f"{where}{one}", "numbers": one.numbers, "blocks": one.blocks}
            for where, one in _layers(spec)
        ]
        if spec
        else None,
        "head": head,
        "n_ctx": spec.n_ctx_train if spec else None,
        "n_tensors": len(built.used),
        "tokenizer": tokenizer,
    }


def _refusals(description: Description) -> list[str]:
    """Why the engine refuses to load a model whose files fit its spec."""
    from pyflow.engine.loaded import planned

    built = description.built
    if built.problems or built.unsupported or built.spec is None:
        return []
    try:
        planned(description.checkpoint, built.spec)
    except (ShapeError, UnsupportedError) as error:
        return [str(error)]
    return []


@dataclass(frozen=True, slots=True)
class _Layers:
    """Layers that differ only in their weights."""

    numbers: tuple[int, ...]
    blocks: tuple[str, ...]

    def __str__(self) -> str:
        """Their numbers, as in ``layers 0-4, 6-10``."""
        spans: list[list[int]] = []
        for i in self.numbers:
            if spans and spans[-1][1] == i - 1:
                spans[-1][1] = i
            else:
                spans.append([i, i])
        texts = (f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
        return f"{plural(len(self.numbers), 'layer')} {', '.join(texts)}"


def _layers(spec: ModelSpec) -> list[tuple[str, _Layers]]:
    """The kinds of layers of a model by their blocks, one line each, and the stack before them."""
    stacks = [("", spec.layers)]
    if spec.source:
        stacks = [("encoder ", spec.source.layers), ("decoder ", spec.layers)]
    found = []
    for where, layers in stacks:
        kinds: dict[tuple[str, ...], list[int]] = {}
        for i, layer in enumerate(layers):
            kinds.setdefault(tuple(block.line(spec.ropes) for block in layer), []).append(i)
        found += [(where, _Layers(tuple(n), blocks)) for blocks, n in kinds.items()]
    return found


def _ends(spec: ModelSpec) -> tuple[str, str]:
    """Embedding and head, or what comes of an encoder."""
    scale = f" x {spec.embedding.scale:g}" if spec.embedding.scale != 1 else ""
    embedding = f"{spec.n_vocab} x {spec.n_embd}{scale}"
    if spec.is_encoder:
        normal = ", normalized" if spec.normalize else ""
        heads = f"; heads: {', '.join(spec.chains)}" if spec.chains else ""
        return (
            embedding,
            f"none, an encoder: vectors of texts, {spec.pool} of tokens{normal}{heads}",
        )
    head = spec.head
    normed = [] if head.norm_type == "none" else [f"{head.norm_type} norm"]
    parts = [*normed, f"{spec.n_vocab} logits"]
    parts += ["by the embedding"] if head.weight == spec.embedding.weight else []
    parts += [f"x {head.scale:g}"] if head.scale != 1 else []
    parts += [f"capped at {head.softcap:g}"] if head.softcap else []
    parts += ["bias"] if head.bias else []
    return embedding, ", ".join(parts)


def _tokenizer(description: Description, *, fits: bool) -> tuple[dict[str, Any], bool]:
    """Its size and its problems; and whether the model loads with it."""
    from pyflow.tokenizer import NoTokenizerError, from_checkpoint

    found: dict[str, Any] = {"found": True, "n_tokens": None, "problem": None, "warnings": []}
    found["n_rows_without_text"] = 0
    suits = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            spec = description.spec if fits else None
            tokenizer = from_checkpoint(
                description.checkpoint,
                n_rows=spec.n_vocab if spec else 0,
                stop_ids=description.stop_ids if spec else (),
            )
            found["n_tokens"] = tokenizer.n_vocab
            if spec:
                found["n_rows_without_text"] = max(0, spec.n_vocab - tokenizer.n_vocab)
        except PyflowError as error:
            found["problem"] = str(error)
            suits = isinstance(error, NoTokenizerError)
            found["found"] = not suits
    found["warnings"] = list(dict.fromkeys(str(warning.message) for warning in caught))
    return found, suits


def _print(found: dict[str, Any]) -> None:
    click.echo(f"{printable(found['path'])}: {found['name']}, as {found['spec']} describes it")
    if found["layers"] is not None:
        click.echo(f"{found['n_ctx']} positions, {found['n_tensors']} tensors\n")
        click.echo(f"embedding: {found['embedding']}")
        for one in found["layers"]:
            click.echo("\n".join([f"{one['which']}:", *(f"  {block}" for block in one["blocks"])]))
        click.echo(f"head: {found['head']}")
    _print_tokenizer(found["tokenizer"])
    if found["ignored"]:
        _list("left out, as the spec says", found["ignored"])
    for kind, title in _TITLES.items():
        texts = [problem["text"] for problem in found["problems"] if problem["kind"] == kind]
        if texts:
            _list(title, texts)
    if found["more_problems"]:
        click.echo("and more: is this spec that of another model?")
    if found["unsupported"]:
        _list("what this build cannot run", found["unsupported"])
    click.echo("\nit fits" if found["fits"] else "\nit does not fit")


def _print_tokenizer(found: dict[str, Any]) -> None:
    said = f"{found['n_tokens']} tokens"
    if n := found["n_rows_without_text"]:
        said += f"; {n} further rows of the embedding have no text"
    if not found["found"]:
        said = "none: it takes token ids, and text once there is one"
    elif found["problem"] is not None:
        said = printable(found["problem"])
    click.echo(f"tokenizer: {said}")
    for line in found["warnings"]:
        click.echo(f"warning: {printable(line)}")


def _list(title: str, lines: list[str]) -> None:
    click.echo(f"\n{title}: {len(lines)}")
    for line in lines[:_SHOWN]:
        click.echo(f"  {printable(line)}")
    if len(lines) > _SHOWN:
        click.echo(f"  and {len(lines) - _SHOWN} more; --json has all")
