"""From a spec and a checkpoint to a `ModelSpec`: steps become blocks, roles become tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pyflow.errors import SpecError, UnsupportedError
from pyflow.specs.bind.binding import (
    Asked,
    Binding,
    Place,
    Problem,
    Record,
    TooManyProblemsError,
    Want,
)
from pyflow.specs.bind.blocks import Blocks, ReadTensor, Ropes, Values
from pyflow.specs.bind.rope import RopeTable
from pyflow.specs.document import Document
from pyflow.specs.grammar import EMBED, HEAD, OUTPUT, POSITIONS, REFUSAL, STACK, STEP, Step
from pyflow.specs.language.facts import Facts, Source
from pyflow.specs.model_spec import Add, Block, Embedding, Head, ModelSpec, Positions, Register

_MAX_STEPS = 16


@dataclass(frozen=True, slots=True)
class Built:
    """spec: None where tensors are missing or of the wrong shape, or what is said cannot run yet.

    unsupported: what of the description no stage can run. ignored: tensors that are none of it.
    asked: roles by their places. ropes: by the names that the spec gives them.
    """

    spec: ModelSpec | None
    problems: tuple[Problem, ...]
    unsupported: tuple[str, ...]
    used: frozenset[str]
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
) -> Built:
    """FormatError, SpecError: a value is missing or out of range. UnsupportedError: of a variant
    that the spec refuses. What is wrong with tensors is told by `Built`."""
    places = document["tensors"].get("places", {})
    prefixes = document["tensors"].get("prefix", ("",))
    binding = Binding(places, prefixes, facts, tensors, where)
    builder = _Builder(document, source, facts, binding, read_tensor)
    spec, is_cut = None, False
    try:
        spec = builder.model()
    except TooManyProblemsError:
        is_cut = True
    ignored: frozenset[str] = frozenset()
    if not is_cut:
        ignored = binding.finish(document["tensors"].get("ignore", ()))
    if any(p.kind != "unused" for p in binding.problems) or builder.unsupported:
        spec = None
    return Built(
        spec,
        tuple(binding.problems),
        tuple(dict.fromkeys(builder.unsupported)),
        frozenset(binding.used),
        ignored,
        is_cut,
        binding.asked,
        builder.ropes.tables,
    )


class _Builder:
    def __init__(
        self,
        document: Document,
        source: Source,
        facts: Facts,
        binding: Binding,
        read_tensor: ReadTensor,
    ) -> None:
        self._doc, self._source, self._binding = document, source, binding
        self._values = Values(facts)
        self.ropes = Ropes(document["ropes"], self._values, binding, read_tensor, source.kind)
        self._blocks = Blocks(document, self._values, binding, self.ropes)
        self._n_positions = 1 << 30
        self.unsupported = self._blocks.unsupported

    def model(self) -> ModelSpec | None:
        for refusal in self._doc["refuse"].values():
            if self._values.of(REFUSAL, refusal, "when"):
                raise UnsupportedError(f"{self._binding.where}: {refusal['why']}")
        n_embd = self._values.fact("n_embd")
        n_ctx = self._values.fact("n_ctx")
        if "encoder" in self._doc.tables:
            self.unsupported.append("encoders cannot run yet")
            self._stack("encoder", n_embd)
        if self._values.of(OUTPUT, self._doc["output"], "pool") != "none":
            self.unsupported.append("pooled outputs cannot run yet")
        if "decoder" not in self._doc.tables:
            return None
        embedding, n_vocab, layers = self._stack("decoder", n_embd)
        head = self._head(embedding, n_vocab, n_embd)
        if head is None:
            return None
        return ModelSpec(
            architecture=self._doc.name,
            name=self._source.name,
            n_vocab=n_vocab,
            n_embd=n_embd,
            n_ctx_train=min(max(n_ctx, self.ropes.n_ctx), self._n_positions),
            ropes=self.ropes.made,
            embedding=embedding,
            layers=layers,
            head=head,
        )

    def _stack(
        self, name: str, n_embd: int
    ) -> tuple[Embedding, int, tuple[tuple[Block, ...], ...]]:
        table, place = self._doc[name], Place(name)
        embed = table.get("embed", {})
        self._values.facts.layer = None
        n_vocab = self._values.fact("n_vocab", 0)
        if "shared_with" in embed:
            place = Place(embed["shared_with"])
        if not n_vocab:
            found = self._binding.find(place, "embed")
            n_vocab = found.shape[0] if found is not None and len(found.shape) == 2 else 0
        weight = self._binding.bind(place, {"embed": Want((n_vocab, n_embd))})["embed"]
        embedding = Embedding(weight or "", self._values.of(EMBED, embed, "scale"))
        first = tuple(self._at_start(Place(name), embed, n_embd))
        layers = []
        for i in range(self._values.of(STACK, table, "n_layers")):
            self._values.facts.layer = i
            blocks = tuple(self._layer(Place(name, "", i), table.get("layer", ()), n_embd))
            layers.append((*first, *blocks) if i == 0 else blocks)
        self._values.facts.layer = None
        return embedding, n_vocab, tuple(layers)

    def _at_start(self, place: Place, embed: Mapping[str, Any], n_embd: int) -> Iterator[Block]:
        """What is done to embeddings before the first layer."""
        if (table := embed.get("positions")) is not None:
            if self._values.of(POSITIONS, table, "type") != "learned":
                self.unsupported.append("sinusoidal positions cannot run yet")
            offset = self._values.of(POSITIONS, table, "offset")
            n = self._values.of(POSITIONS, table, "n_positions")
            self._n_positions = n
            want = Want((offset + n, n_embd))
            yield Positions(
                "x", self._binding.bind(place, {"positions": want})["positions"], n, offset
            )
        if self._values.of(EMBED, embed, "token_types"):
            self.unsupported.append("token types cannot run yet")
            n_types = self._binding.find(place, "token_types")
            rows = n_types.shape[0] if n_types is not None and len(n_types.shape) == 2 else 1
            self._binding.bind(place, {"token_types": Want((rows, n_embd))})
        if "norm" in embed:
            yield self._blocks.norm(place, "embed_norm", embed["norm"], "x", "x", n_embd)

    def _head(self, embedding: Embedding, n_vocab: int, n_embd: int) -> Head | None:
        table, decoder, place = self._doc["head"], self._doc["decoder"], Place()
        if self._values.of(HEAD, table, "type") == "none" or "final_norm" not in decoder:
            self.unsupported.append("models without a final norm and a head cannot run yet")
            return None
        norm = self._blocks.norm(
            Place("decoder"), "final_norm", decoder["final_norm"], "x", "x", n_embd
        )
        tied = self._values.of(HEAD, table, "tied")
        wants = {
            "head": Want((n_vocab, n_embd), "auto" if tied else True),
            "head_bias": Want((n_vocab,), self._values.of(HEAD, table, "bias")),
        }
        bound = self._binding.bind(place, wants)
        return Head(
            norm.weight,
            norm.eps,
            bound["head"] or embedding.weight,
            self._values.of(HEAD, table, "scale"),
            self._values.of(HEAD, table, "softcap"),
            norm.type,
            norm.bias,
            bound["head_bias"],
        )

    # ---- layers

    def _layer(self, place: Place, steps: Sequence[Step], n_embd: int) -> Iterator[Block]:
        if len(steps) > _MAX_STEPS:
            raise SpecError(f"{steps[0].where}: expected at most {_MAX_STEPS} steps")
        names: set[str] = set()
        for step in steps:
            if not self._values.of(STEP, step.values, "when"):
                continue
            for one in (step, *step.parallel):
                if one.name in names:
                    raise SpecError(f"{one.where}: expected steps of different names in a layer")
                names.add(one.name)
            yield from self._step(place, step, n_embd)

    def _step(self, layer: Place, step: Step, n_embd: int) -> Iterator[Block]:
        place = Place(layer.stack, step.name, layer.layer)
        source: Register = "x"
        if step.norm:
            source = "h"
            yield self._blocks.norm(place, "norm", step.norm, "x", "h", n_embd)
        if step.run:
            yield from self._branch(layer, step, source, "h", n_embd)
            yield Add("h", "x", self._values.of(STEP, step.values, "scale"))
        else:
            first, second = step.parallel
            if step.norm and (first.norm or second.norm):
                raise SpecError(f"{step.where}: expected one norm for both branches or one in each")
            for branch, to in ((first, "a"), (second, "h")):
                at = source
                if branch.norm:
                    at = "h"
                    inner = Place(layer.stack, branch.name, layer.layer)
                    yield self._blocks.norm(inner, "norm", branch.norm, "x", "h", n_embd)
                yield from self._branch(layer, branch, at, cast("Register", to), n_embd)
            yield Add("a", "x", self._values.of(STEP, first.values, "scale"))
            yield Add("h", "x", self._values.of(STEP, second.values, "scale"))
        if step.out_norm:
            yield self._blocks.norm(place, "out_norm", step.out_norm, "x", "x", n_embd)

    def _branch(
        self, layer: Place, step: Step, source: Register, to: Register, n_embd: int
    ) -> Iterator[Block]:
        place = Place(layer.stack, step.name, layer.layer)
        yield self._blocks.make(step.run, place, source, to, n_embd)
        if step.post_norm:
            yield self._blocks.norm(place, "post_norm", step.post_norm, to, to, n_embd)
