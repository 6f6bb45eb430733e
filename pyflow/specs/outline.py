"""What a model is made of, in a few lines: equal layers as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyflow.specs.model_spec import (
    Add,
    Attention,
    Block,
    Ffn,
    ModelSpec,
    Moe,
    Norm,
    Positions,
    Rope,
)
from pyflow.text import plural


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers that are alike but for their weights."""

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
        kinds.setdefault(tuple(_block(block, spec.ropes) for block in layer), []).append(i)
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


def _block(block: Block, ropes: Sequence[Rope]) -> str:
    registers = "" if isinstance(block, Positions) else f"  ({block.input} -> {block.output})"
    return ", ".join(_parts(block, ropes)) + registers


def _parts(block: Block, ropes: Sequence[Rope]) -> Iterator[str]:
    if isinstance(block, Positions):
        yield f"positions: {block.n_positions} learned"
    elif isinstance(block, Norm):
        yield f"{block.type} norm"
        yield from ["bias"] if block.bias else []
    elif isinstance(block, Attention):
        yield from _attention(block, ropes)
    elif isinstance(block, Ffn):
        yield f"ffn: {block.n_ff} {block.activation}"
        yield from ["gated"] if block.gate else []
        yield from ["biases"] if block.up_bias else []
    elif isinstance(block, Moe):
        yield f"experts: {block.top_k} of {block.n_experts}, {block.n_ff} {block.activation}"
        yield from ["weights sum to one"] if block.normalize else []
        yield from [f"x {block.scale:g}"] if block.scale != 1 else []
        yield from [f"a shared one of {block.n_ff_shared}"] if block.n_ff_shared else []
    elif isinstance(block, Add):
        yield "add" if block.scale == 1 else f"add x {block.scale:g}"


def _attention(block: Attention, ropes: Sequence[Rope]) -> Iterator[str]:
    yield f"attention: {block.n_heads} heads of {block.head_dim}, {block.n_kv_heads} of keys"
    if block.rope is not None:
        rope = ropes[block.rope]
        n, order = 2 * len(rope.inv_freq), "interleaved" if rope.interleaved else "halves"
        yield f"rope {block.rope} of {n} ({order})"
    yield from ["ALiBi"] if block.alibi else []
    yield from [f"window {block.window}"] if block.window else []
    yield from [f"capped at {block.softcap:g}"] if block.softcap else []
    if block.q_norm or block.k_norm:
        yield f"{block.norm_type} norms of {'all heads' if block.norm_span == 'all' else 'heads'}"
    yield from ["biases"] if block.q_bias or block.o_bias else []
