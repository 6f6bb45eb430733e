"""A model in a few lines, for `pyflow spec`: equal layers as one."""

from __future__ import annotations

from dataclasses import dataclass

from pyflow.specs.model_spec import ModelSpec
from pyflow.text import plural


@dataclass(frozen=True, slots=True)
class Layers:
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


def layers(spec: ModelSpec) -> list[Layers]:
    """The kinds of layers of a model by their blocks, one line each."""
    kinds: dict[tuple[str, ...], list[int]] = {}
    for i, layer in enumerate(spec.layers):
        kinds.setdefault(tuple(block.line(spec.ropes) for block in layer), []).append(i)
    return [Layers(tuple(numbers), blocks) for blocks, numbers in kinds.items()]


def ends(spec: ModelSpec) -> tuple[str, str]:
    """Embedding and head."""
    scale = f" x {spec.embedding.scale:g}" if spec.embedding.scale != 1 else ""
    head = spec.head
    parts = [f"{head.norm_type} norm, {spec.n_vocab} logits"]
    parts += ["by the embedding"] if head.weight == spec.embedding.weight else []
    parts += [f"x {head.scale:g}"] if head.scale != 1 else []
    parts += [f"capped at {head.softcap:g}"] if head.softcap else []
    parts += ["bias"] if head.bias else []
    return f"{spec.n_vocab} x {spec.n_embd}{scale}", ", ".join(parts)
