"""Every block of pyflow/specs/blocks in numpy and float64: one sequence from position 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.ffn import Ffn
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.blocks.positions import Positions
from pyflow.specs.model_spec import ModelSpec
from pyflow.specs.parts import Ref, Rope, TensorRef

Array = NDArray[np.float64]
Vector = Ref | tuple[Ref, ...]
Tensors = Mapping[str, NDArray[np.float32]]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * 0.5 * np.vectorize(math.erfc)(-x / math.sqrt(2))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def clamped_swish(x: Array) -> Array:
    x = np.minimum(x, 7)
    return x / (1 + np.exp(-1.702 * x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "swiglu_clamped": clamped_swish,
}


def gated(activation: str, gate: Array, up: Array) -> Array:
    if activation == "swiglu_clamped":
        up = np.clip(up, -7, 7) + 1
    return ACTIVATIONS[activation](gate) * up


class Reference:
    """Logits of every token: `Reference(spec, tensors, n_ctx).logits(tokens)`.

    stored: what cells keep of keys and values (n, heads, dims).
    """

    def __init__(
        self,
        spec: ModelSpec,
        tensors: Tensors,
        n_ctx: int,
        stored: Callable[[Array], Array] = lambda x: x,
    ) -> None:
        self.spec, self.tensors, self.n_ctx, self.stored = spec, tensors, n_ctx, stored

    def matrix(self, ref: Ref) -> Array:
        source = ref if isinstance(ref, TensorRef) else TensorRef(ref)
        t = self.tensors[source.name].astype(np.float64)
        t = t.reshape(-1, t.shape[-1])
        t = t.T if source.transposed else t
        return self._cut(source, t)

    def vector(self, ref: Vector) -> Array:
        if isinstance(ref, tuple):
            return np.concatenate([self.vector(part) for part in ref])
        source = ref if isinstance(ref, TensorRef) else TensorRef(ref)
        t = self.tensors[source.name].astype(np.float64).reshape(-1)
        return self._cut(source, t) + source.add

    @staticmethod
    def _cut(source: TensorRef, t: Array) -> Array:
        parts = [t[start : start + count] for start, count in source.rows]
        return np.concatenate(parts) if parts else t

    def linear(self, ref: Ref, x: Array, bias: Ref | None = None) -> Array:
        y: Array = x @ self.matrix(ref).T
        return y if bias is None else y + self.vector(bias)

    def normed(
        self, kind: str, x: Array, eps: float, weight: Vector | None, bias: Vector | None
    ) -> Array:
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        if weight is not None:
            w = self.vector(weight)
            y = y * (w if w.size == y.shape[-1] else w.reshape(y.shape[-2:]))
        if bias is not None:
            b = self.vector(bias)
            y = y + (b if b.size == y.shape[-1] else b.reshape(y.shape[-2:]))
        return y

    def turned(self, rope: Rope, x: Array) -> Array:
        """x: (n, heads, head_dim)"""
        long = bool(rope.long_inv_freq) and self.n_ctx > rope.n_ctx_original
        inv_freq = np.array(rope.long_inv_freq if long else rope.inv_freq)
        magnitude = rope.long_magnitude if long else rope.magnitude
        angle = np.arange(len(x))[:, None, None] * inv_freq
        c, s, n = magnitude * np.cos(angle), magnitude * np.sin(angle), inv_freq.size
        first = np.arange(n) * 2 if rope.interleaved else np.arange(n)
        second = first + (1 if rope.interleaved else n)
        y = x.copy()
        y[..., first] = x[..., first] * c - x[..., second] * s
        y[..., second] = x[..., second] * c + x[..., first] * s
        return y

    def attention(self, b: Attention, x: Array) -> Array:
        n = len(x)

        def heads(
            ref: Ref, bias: Ref | None, n_heads: int, norm: Vector | None, norm_bias: Vector | None
        ) -> Array:
            y = self.linear(ref, x, bias)
            if norm is not None and b.norm_span == "all":
                y = self.normed(b.norm_type, y, b.norm_eps, norm, norm_bias)
            y = y.reshape(n, n_heads, -1)
            if norm is not None and b.norm_span == "head":
                y = self.normed(b.norm_type, y, b.norm_eps, norm, norm_bias)
            return y

        q = heads(b.q, b.q_bias, b.n_heads, b.q_norm, b.q_norm_bias)
        k = heads(b.k, b.k_bias, b.n_kv_heads, b.k_norm, b.k_norm_bias)
        v = heads(b.v, b.v_bias, b.n_kv_heads, None, None)
        if b.rope is not None:
            q, k = (self.turned(self.spec.ropes[b.rope], y) for y in (q, k))
        k, v = self.stored(k), self.stored(v)
        # The cells of the cache are f16.
        k, v = (y.astype(np.float16).astype(np.float64) for y in (k, v))
        group = b.n_heads // b.n_kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = b.scale * np.einsum("ihd,jhd->hij", q, k)
        if b.softcap:
            scores = b.softcap * np.tanh(scores / b.softcap)
        distance = np.arange(n)[:, None] - np.arange(n)
        if b.alibi:
            scores = scores - np.array(b.alibi)[:, None, None] * distance
        hidden = (distance < 0) | ((distance >= b.window) if b.window else False)
        scores = np.where(hidden, -np.inf, scores)
        if b.sinks is not None:
            sinks = np.broadcast_to(self.vector(b.sinks)[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, sinks], -1)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p = (p / p.sum(-1, keepdims=True))[..., :n]
        self.attended(b, p, x)
        return self.linear(b.o, np.einsum("hij,jhd->ihd", p, v).reshape(n, -1), b.o_bias)

    def attended(self, b: Attention, p: Array, x: Array) -> None:
        """Told of the weights (heads, rows, cells) and the inputs (cells, n_embd)."""

    def ffn(self, b: Ffn, x: Array) -> Array:
        up = self.linear(b.up, x, b.up_bias)
        if b.gate is None:
            inner = ACTIVATIONS[b.activation](up)
        else:
            inner = gated(b.activation, self.linear(b.gate, x, b.gate_bias), up)
        return self.linear(b.down, inner, b.down_bias)

    def moe(self, b: Moe, x: Array) -> Array:
        def experts(given: Ref | tuple[Ref, ...], rows: int) -> list[Ref]:
            if isinstance(given, tuple):
                return list(given)
            source = given if isinstance(given, TensorRef) else TensorRef(given)
            segments = source.rows or tuple((rows * e, rows) for e in range(b.n_experts))
            return [TensorRef(source.name, (segment,)) for segment in segments]

        def linear(
            given: Ref | tuple[Ref, ...], rows: int, bias: Ref | None, e: int, x: Array
        ) -> Array:
            y = self.linear(experts(given, rows)[e], x)
            return y if bias is None else y + self.vector(bias).reshape(-1, rows)[e]

        logits = self.linear(b.router, x, b.router_bias)
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for i, row in enumerate(x):
            chosen = np.argsort(-p[i], kind="stable")[: b.top_k]
            weights = p[i, chosen] / (p[i, chosen].sum() if b.normalize else 1) * b.scale
            for weight, e in zip(weights, chosen, strict=True):
                gate = linear(b.gate, b.n_ff, b.gate_bias, e, row)
                up = linear(b.up, b.n_ff, b.up_bias, e, row)
                inner = gated(b.activation, gate, up)
                y[i] += weight * linear(b.down, len(row), b.down_bias, e, inner)
        if b.shared_gate is not None:
            assert b.shared_up is not None
            assert b.shared_down is not None
            gate = self.linear(b.shared_gate, x)
            inner = gated(b.activation, gate, self.linear(b.shared_up, x))
            shared = self.linear(b.shared_down, inner)
            if b.shared_router is not None:
                shared = shared / (1 + np.exp(-self.linear(b.shared_router, x)))
            y += shared
        return y

    def logits(self, tokens: NDArray[np.int32]) -> Array:
        spec = self.spec
        x = spec.embedding.scale * self.matrix(spec.embedding.weight)[tokens]
        registers = {"x": x, "h": np.zeros_like(x), "a": np.zeros_like(x)}
        for b in spec.blocks():
            match b:
                case Positions():
                    registers[b.output] += self.matrix(b.weight)[b.offset :][: len(tokens)]
                case Add():
                    registers[b.output] = registers[b.output] + b.scale * registers[b.input]
                case Norm():
                    registers[b.output] = self.normed(
                        b.type, registers[b.input], b.eps, b.weight, b.bias
                    )
                case Attention():
                    registers[b.output] = self.attention(b, registers[b.input])
                case Ffn():
                    registers[b.output] = self.ffn(b, registers[b.input])
                case Moe():
                    registers[b.output] = self.moe(b, registers[b.input])
        head = spec.head
        y = self.normed(head.norm_type, registers["x"], head.eps, head.norm, head.norm_bias)
        y = head.scale * self.linear(head.weight, y, head.bias)
        return head.softcap * np.tanh(y / head.softcap) if head.softcap else y
