"""Builds a `ModelSpec` from a spec and a checkpoint: steps become blocks, roles tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyflow.errors import SpecError, UnsupportedError
from pyflow.formats.overrides import NO_OVERRIDES, Overrides
from pyflow.specs.bind.binding import Asked, Binding, Place, Problem, Record, TooManyProblemsError
from pyflow.specs.bind.blocks import Blocks, Context
from pyflow.specs.bind.chains import chains
from pyflow.specs.bind.rope import RopeTable
from pyflow.specs.bind.ropes import ReadTensor, Ropes
from pyflow.specs.block import Block, PlePlace, Want
from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.altup import Altup
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.blocks.ple_inputs import PleInputs
from pyflow.specs.blocks.positions import Positions
from pyflow.specs.blocks.scale import Scale
from pyflow.specs.blocks.token_types import TokenTypes
from pyflow.specs.document import Document
from pyflow.specs.grammar import EMBED, HEAD, OUTPUT, REFUSAL, STACK, STEP, Step
from pyflow.specs.language import unread
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import Facts, Source
from pyflow.specs.language.functions import ExpressionError
from pyflow.specs.language.tensors import Pattern
from pyflow.specs.model_spec import NO_HEAD, Embedding, Head, ModelSpec, SourceSpec
from pyflow.specs.parts import Register

_MAX_STEPS = 16


@dataclass(frozen=True, slots=True)
class Built:
    """spec: None if tensors are missing or of the wrong shape, or if no stage can run the model.

    unsupported: why no stage can run it. turned: tensors that other programs have quantized as rows
    of outputs, where the spec says transposed. ignored: tensors that the spec says to ignore.
    is_cut: there were too many problems to list. ropes: by their names in the spec.
    """

    spec: ModelSpec | None
    problems: tuple[Problem, ...]
    unsupported: tuple[str, ...]
    used: frozenset[str]
    turned: frozenset[str]
    ignored: frozenset[str]
    is_cut: bool
    asked: Mapping[tuple[Place, str], Asked]
    ropes: Mapping[str, RopeTable]


def build(
    document: Document,
    source: Source,
    facts: Facts,
    tensors: Mapping[str, Record],
    read_tensor: ReadTensor,
    where: str,
    overrides: Overrides = NO_OVERRIDES,
) -> Built:
    """The model, or what is wrong with its tensors.

    FormatError, SpecError: a value is missing or out of range. UnsupportedError: the spec refuses
    this variant.
    """
    places = document["tensors"].get("places", {})
    prefixes = document["tensors"].get("prefix", ("",))
    binding = Binding(places, prefixes, facts, tensors, where)
    ropes = Ropes(document["ropes"], facts, binding, read_tensor, source.kind, overrides)
    builder = _Builder(document, facts, binding, ropes)
    spec, is_cut = None, False
    try:
        spec = builder.model(source.name)
    except TooManyProblemsError:
        is_cut = True
    ignored: frozenset[str] = frozenset()
    if not is_cut:
        facts.layer = None
        patterns = [_expanded(p, facts, where) for p in document["tensors"].get("ignore", ())]
        ignored = binding.finish(patterns)
    if (name := overrides.of_ropes) and not ropes.is_overridden and not is_cut:
        raise UnsupportedError(
            f"{where}: {name}: expected a model whose positions turn; this one has no rope that an "
            "override changes"
        )
    if any(p.kind != "unused" for p in binding.problems) or builder.unsupported:
        spec = None
    return Built(
        spec,
        tuple(binding.problems),
        tuple(dict.fromkeys(builder.unsupported)),
        frozenset(binding.used),
        frozenset(binding.turned),
        ignored,
        is_cut,
        binding.asked,
        ropes.tables,
    )


def _expanded(pattern: str, facts: Facts, where: str) -> str:
    """A pattern of ignored names, which may have expressions in braces."""
    if "{" not in pattern:
        return pattern
    try:
        return Pattern.of(pattern, where).expand(facts)
    except (UnresolvedError, ExpressionError) as error:
        raise SpecError(f"{where}: {pattern!r:.80}: {error}") from None


class _Builder:
    def __init__(self, document: Document, facts: Facts, binding: Binding, ropes: Ropes) -> None:
        self._doc, self._binding, self._ropes = document, binding, ropes
        self._facts, self._value = facts, facts.value
        self._blocks = Blocks(document["blocks"], facts, binding, ropes)
        self.unsupported = self._blocks.unsupported
        self._altup: Context | None = None  # of the stack at hand

    def model(self, name: str) -> ModelSpec | None:
        doc = self._doc
        unread.check(doc["unread"], doc.reads, self._facts)
        self._refuse()
        n_embd, n_ctx = self._facts.integer("n_embd"), self._facts.integer("n_ctx")
        self._blocks.n_embd = n_embd
        stacks = [
            name
            for name in ("decoder", "encoder")
            if name in doc.tables and self._value(STACK, doc[name], "when")
        ]
        if not stacks:
            raise SpecError(f"{doc.path}: expected a decoder or an encoder, found neither")
        embedding, n_vocab, layers = self._stack(stacks[0], n_embd)
        source = self._source(embedding, n_embd) if len(stacks) > 1 else None
        self._check_sources(layers, source)
        if any(isinstance(b, Attention) and b.mask == "full" for layer in layers for b in layer):
            head, layers = NO_HEAD, self._end(stacks[0], layers)
        elif (found := self._head(embedding, n_vocab, n_embd)) is not None:
            head = found
        else:
            return None
        n_positions = [b.n_positions for b in layers[0] if isinstance(b, Positions)]
        return ModelSpec(
            architecture=self._doc.name,
            name=name,
            n_vocab=n_vocab,
            n_embd=n_embd,
            n_ctx_train=min(max(n_ctx, self._ropes.n_ctx), *n_positions, 1 << 30),
            ropes=self._ropes.made,
            embedding=embedding,
            layers=layers,
            head=head,
            source=source,
            **self._readouts(head, embedding, n_vocab, n_embd),
        )

    def _source(self, decoder: Embedding, n_embd: int) -> SourceSpec:
        """The encoder that a decoder reads; without an embedding of its own if both have one."""
        embedding, n_vocab, layers = self._stack("encoder", n_embd)
        blocks = [block for layer in layers for block in layer]
        if any(isinstance(b, Attention) and b.mask != "full" for b in blocks):
            raise SpecError(f"{self._doc.path}: encoder: expected attention with mask full")
        start = self._value(STACK, self._doc["decoder"], "start")
        if start is None:
            raise SpecError(f"{self._doc.path}: decoder.start: expected the first token of a text")
        own = None if embedding == decoder else embedding
        return SourceSpec(self._end("encoder", layers), own, n_vocab, start)

    def _check_sources(
        self, layers: tuple[tuple[Block, ...], ...], source: SourceSpec | None
    ) -> None:
        reads = any(isinstance(b, Attention) and b.kv_from for layer in layers for b in layer)
        if reads is (source is None):
            raise SpecError(
                f"{self._doc.path}: expected an encoder, and attention to it (kv_from encoder) in "
                "the decoder, found one of both alone"
            )

    def _end(
        self, stack: str, layers: tuple[tuple[Block, ...], ...]
    ) -> tuple[tuple[Block, ...], ...]:
        """The layers of an encoder; its final norm ends the last of them."""
        if "final_norm" not in self._doc[stack]:
            return layers
        norm = self._norm(self._doc[stack]["final_norm"], Place(stack), "final_norm", "x", "x")
        return (*layers[:-1], (*layers[-1], norm))

    def _readouts(
        self, head: Head, embedding: Embedding, n_vocab: int, n_embd: int
    ) -> dict[str, Any]:
        """What encoders give: pool, normalize and chains of a `ModelSpec`."""
        if head is not NO_HEAD:
            return {}
        table = self._doc["output"]
        return {
            **{key: self._value(OUTPUT, table, key) for key in OUTPUT},
            "chains": chains(self._doc, self._blocks, embedding.weight, n_vocab, n_embd),
        }

    def _refuse(self) -> None:
        """UnsupportedError: the spec refuses this variant, or its layer at hand."""
        for refusal in self._doc["refuse"].values():
            if self._value(REFUSAL, refusal, "when"):
                raise UnsupportedError(f"{self._facts.where}: {refusal['why']}")

    def _stack(
        self, name: str, n_embd: int
    ) -> tuple[Embedding, int, tuple[tuple[Block, ...], ...]]:
        table, place = self._doc[name], Place(name)
        embed = table.get("embed", {})
        self._facts.layer = None
        n_vocab = self._facts.integer("n_vocab", 0)
        if "shared_with" in embed:
            place = Place(embed["shared_with"])
        if not n_vocab:
            found = self._binding.find(place, "embed")
            n_vocab = found.shape[0] if found is not None and len(found.shape) == 2 else 0
        weight = self._binding.bind(place, {"embed": Want((n_vocab, n_embd))})["embed"]
        embedding = Embedding(weight or "", self._value(EMBED, embed, "scale"))
        n_layers = self._value(STACK, table, "n_layers")
        self._altup = (
            self._blocks.of(Altup, table["altup"], Place(name)) if "altup" in table else None
        )
        first = tuple(self._at_start(Place(name), embed, n_layers))
        layers = []
        for i in range(n_layers):
            self._facts.layer = i
            self._refuse()
            blocks = tuple(self._layer(Place(name, "", i), table.get("layer", ())))
            layers.append((*first, *blocks) if i == 0 else blocks)
        self._facts.layer = None
        if self._altup is not None and layers:
            layers[-1] = (*layers[-1], self._altup_part("merge"))
        return embedding, n_vocab, tuple(layers)

    def _altup_part(self, part: str, layer: int | None = None, source: Register = "x") -> Altup:
        """A part of what keeps several streams; those of layers have tensors of their own."""
        assert self._altup is not None
        place = self._altup.place
        if layer is not None:
            place = replace(place, step="altup", layer=layer)
        return Altup.make(replace(self._altup, place=place, role=part), source, "x")

    def _at_start(self, place: Place, embed: Mapping[str, Any], n_layers: int) -> Iterator[Block]:
        """The blocks between the embedding and the first layer."""
        if "ple" in embed:
            ple = self._blocks.of(PleInputs, embed["ple"], place)
            n_streams = self._altup.value("n") if self._altup is not None else 0
            self._blocks.ple = PlePlace(ple.value("n"), n_layers, n_streams * self._blocks.n_embd)
            if ple.value("n"):
                yield PleInputs.make(ple, "x", "x")
        if self._altup is not None:
            yield self._altup_part("begin")
        if "positions" in embed:
            positions = self._blocks.of(Positions, embed["positions"], place)
            if positions.value("type") != "none":
                yield Positions.make(positions, "x", "x")
        if "token_types" in embed:
            types = self._blocks.of(TokenTypes, embed["token_types"], place)
            if types.value("n_types") != 0:
                yield TokenTypes.make(types, "x", "x")
        if "norm" in embed:
            yield self._norm(embed["norm"], place, "embed_norm", "x", "x")

    def _head(self, embedding: Embedding, n_vocab: int, n_embd: int) -> Head | None:
        table, decoder, place = self._doc["head"], self._doc["decoder"], Place()
        if self._value(HEAD, table, "type") == "none":
            self.unsupported.append("models without a head cannot run yet")
            return None
        norm = None
        if "final_norm" in decoder:
            norm = self._norm(decoder["final_norm"], Place("decoder"), "final_norm", "x", "x")
        tied = self._value(HEAD, table, "tied")
        wants = {
            "head": Want((n_vocab, n_embd), "auto" if tied else True),
            "head_bias": Want((n_vocab,), self._value(HEAD, table, "bias")),
        }
        bound = self._binding.bind(place, wants)
        return Head(
            norm.weight if norm else None,
            norm.eps if norm else 0.0,
            bound["head"] or embedding.weight,
            self._value(HEAD, table, "scale"),
            self._value(HEAD, table, "softcap"),
            norm.type if norm else "none",
            norm.bias if norm else None,
            bound["head_bias"],
        )

    # ---- layers

    def _layer(self, place: Place, steps: Sequence[Step]) -> Iterator[Block]:
        if len(steps) > _MAX_STEPS:
            raise SpecError(f"{steps[0].where}: expected at most {_MAX_STEPS} steps")
        if self._altup is not None:
            yield self._altup_part("predict", layer=place.layer)
        names: set[str] = set()
        for step in steps:
            if not self._value(STEP, step.values, "when"):
                continue
            for one in (step, *step.parallel):
                if one.name in names:
                    raise SpecError(f"{one.where}: expected steps of different names in a layer")
                names.add(one.name)
            yield from self._step(place, step)

    def _step(self, layer: Place, step: Step) -> Iterator[Block]:
        place = replace(layer, step=step.name)
        source: Register = "h" if step.norm else "x"
        sides: tuple[Register, Register] = ("a", "h")
        into_streams = self._value(STEP, step.values, "into") == "streams"
        if into_streams and (self._altup is None or not step.run):
            raise SpecError(f"{step.where}: into: expected altup in the stack, and run")
        if into_streams:
            yield self._altup_part("correct", layer=layer.layer)
        if step.norm:
            yield self._norm(step.norm, place, "norm", "x", "h")
        if step.run:
            yield from self._branch(place, step, source, "h")
            if into_streams:
                yield self._altup_part("add", source="h")
            else:
                yield self._add(place, step, "h")
        else:
            first, second = step.parallel
            if step.norm and (first.norm or second.norm):
                raise SpecError(f"{step.where}: expected one norm for both branches or one in each")
            for branch, to in zip(step.parallel, sides, strict=True):
                at, inner = source, replace(layer, step=branch.name)
                if branch.norm:
                    at = "h"
                    yield self._norm(branch.norm, inner, "norm", "x", "h")
                yield from self._branch(inner, branch, at, to)
            if step.post_norm:
                yield Add("a", "h")
                yield self._norm(step.post_norm, place, "post_norm", "h", "h")
                yield self._add(place, step, "h")
            else:
                yield self._add(place, first, "a")
                yield self._add(place, second, "h")
        if step.out_norm:
            yield self._norm(step.out_norm, place, "out_norm", "x", "x")
        scale = Scale.make(self._blocks.of(Scale, step.values, place), "x", "x")
        if not scale.changes_nothing:
            yield scale

    def _branch(self, place: Place, step: Step, source: Register, to: Register) -> Iterator[Block]:
        yield self._blocks.make(step.run, place, source, to)
        if step.post_norm:
            yield self._norm(step.post_norm, place, "post_norm", to, to)

    def _norm(self, name: str, place: Place, role: str, source: Register, to: Register) -> Norm:
        return Norm.make(self._blocks.named(name, place, role), source, to)

    def _add(self, place: Place, step: Step, source: Register) -> Add:
        return Add.make(self._blocks.of(Add, step.values, place), source, "x")
