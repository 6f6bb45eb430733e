"""Every block of pyflow/specs/blocks in numpy and float64: one sequence from position 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from pyflow.specs.blocks.add import Add
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.ffn import Ffn
from pyflow.specs.blocks.mla import Mla
from pyflow.specs.blocks.moe import Moe
from pyflow.specs.blocks.norm import Norm
from pyflow.specs.blocks.positions import Positions
from pyflow.specs.blocks.shortconv import Shortconv
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
        if source.inputs:
            t = t[source.inputs[0] :][: source.inputs[1]]
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
        if b.plain_norms:
            q, k = (self.normed("rms", y, b.norm_eps, None, None) for y in (q, k))
        if b.v_norm:
            v = self.normed("rms", v, b.norm_eps, None, None)
        if b.temperature_beta:
            assert b.temperature_length is not None
            steps = (np.arange(n) + (b.temperature_offset or 0)) // b.temperature_length
            q = q * (1 + b.temperature_beta * np.log(1 + steps))[:, None, None]
        k, v = self.stored(k), self.stored(v)
        # The cells of the cache are f16.
        k, v = (y.astype(np.float16).astype(np.float64) for y in (k, v))
        group = b.n_heads // b.n_kv_heads
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = b.scale * np.einsum("ihd,jhd->hij", q, k)
        if b.softcap:
            scores = b.softcap * np.tanh(scores / b.softcap)
        at = np.arange(n)
        distance = at[:, None] - at
        if b.alibi:
            scores = scores - np.array(b.alibi)[:, None, None] * distance
        hidden = (distance < 0) | ((distance >= b.window) if b.window else False)
        if b.mask == "chunk":
            hidden = (distance < 0) | (at[:, None] // b.window != at // b.window)
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

    def mla(self, b: Mla, x: Array) -> Array:
        n, rope = len(x), self.spec.ropes[b.rope]
        if b.q_a is None:
            assert b.q is not None
            q = self.linear(b.q, x)
        else:
            assert b.q_b is not None
            inner = self.linear(b.q_a, x, b.q_a_bias)
            q = self.linear(b.q_b, self.normed("rms", inner, b.norm_eps, b.q_a_norm, None))
        q = q.reshape(n, b.n_heads, -1)
        latent, turned = np.split(self.linear(b.kv_a, x, b.kv_a_bias), [b.kv_rank], axis=1)
        latent = self.normed("rms", latent, b.norm_eps, b.kv_a_norm, None)
        turned = self.turned(rope, turned[:, None])[:, 0]
        cells = self.stored(np.concatenate([latent, turned], 1)[:, None])[:, 0]
        latent, turned = np.split(cells.astype(np.float16).astype(np.float64), [b.kv_rank], axis=1)
        keys, values = self.head_matrices(b)
        asked = [self.linear(keys[h], q[:, h, : b.nope_dim]) for h in range(b.n_heads)]
        scores = np.einsum("hir,jr->hij", np.array(asked), latent)
        scores += np.einsum("ihd,jd->hij", self.turned(rope, q[..., b.nope_dim :]), turned)
        scores = np.where(np.tri(n, dtype=bool), b.scale * scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = p / p.sum(-1, keepdims=True) @ latent
        heads = [self.linear(values[h], mixed[h]) for h in range(b.n_heads)]
        return self.linear(b.o, np.concatenate(heads, 1), b.o_bias)

    @staticmethod
    def head_matrices(b: Mla) -> tuple[list[TensorRef], list[TensorRef]]:
        """Of each head, W_k transposed and W_v."""
        heads, both = range(b.n_heads), b.nope_dim + b.value_dim
        if b.kv_b is None:
            k, v = str(b.k_b), str(b.v_b)
            keys = [TensorRef(k, ((h * b.kv_rank, b.kv_rank),)) for h in heads]
            return keys, [TensorRef(v, ((h * b.value_dim, b.value_dim),)) for h in heads]
        one = str(b.kv_b)
        keys = [TensorRef(one, transposed=True, inputs=(h * both, b.nope_dim)) for h in heads]
        return keys, [TensorRef(one, ((h * both + b.nope_dim, b.value_dim),)) for h in heads]

    def shortconv(self, b: Shortconv, x: Array) -> Array:
        n = x.shape[1]
        parts = [self.linear(TensorRef(str(b.in_proj), ((j * n, n),)), x) for j in range(3)]
        if b.in_proj_bias is not None:
            biases = self.vector(b.in_proj_bias).reshape(3, -1)
            parts = [part + bias for part, bias in zip(parts, biases, strict=True)]
        before, after, inner = parts
        taps = self.vector(b.conv).reshape(-1, b.window)
        states = np.pad(before * inner, ((b.window - 1, 0), (0, 0)))
        y = sum(taps[:, j] * states[j : j + len(x)] for j in range(b.window))
        y = y if b.conv_bias is None else y + self.vector(b.conv_bias)
        return self.linear(b.out_proj, after * y, b.out_proj_bias)

    def ffn(self, b: Ffn, x: Array) -> Array:
        up = self.linear(b.up, x, b.up_bias)
        if b.gate is None:
            inner = ACTIVATIONS[b.activation](up)
        else:
            inner = gated(b.activation, self.linear(b.gate, x, b.gate_bias), up)
        return self.linear(b.down, inner, b.down_bias)

    def likelihoods(self, b: Moe, x: Array) -> tuple[Array, Array]:
        """Of all experts for each row, and what they are chosen by."""
        logits = self.linear(b.router, x, b.router_bias)
        if b.gating == "sigmoid":
            p = 1 / (1 + np.exp(-logits))
        else:
            p = np.exp(logits - logits.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
        keys = p if b.choice_bias is None else p + self.vector(b.choice_bias)
        groups = np.sort(keys.reshape(len(x), b.n_groups, -1), -1)
        best = groups[..., -2:].sum(-1) if b.group_score == "two" else groups[..., -1]
        used = np.argsort(-best, axis=1, kind="stable")[:, : b.n_groups_used]
        of_group = np.arange(b.n_experts) // (b.n_experts // b.n_groups)
        seen = (used[:, :, None] == of_group).any(1)
        return p, np.where(seen, keys, -np.inf)

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

        p, keys = self.likelihoods(b, x)
        y = np.zeros_like(x)
        for i in range(len(x)):
            chosen = np.argsort(-keys[i], kind="stable")[: b.top_k]
            weights = p[i, chosen] / (p[i, chosen].sum() if b.normalize else 1) * b.scale
            for likely, e in zip(weights, chosen, strict=True):
                row, weight = (likely * x[i], 1.0) if b.weighs_inputs else (x[i], likely)
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
                case Mla():
                    registers[b.output] = self.mla(b, registers[b.input])
                case Shortconv():
                    registers[b.output] = self.shortconv(b, registers[b.input])
                case Ffn():
                    registers[b.output] = self.ffn(b, registers[b.input])
                case Moe():
                    registers[b.output] = self.moe(b, registers[b.input])
        head = spec.head
        y = self.normed(head.norm_type, registers["x"], head.eps, head.norm, head.norm_bias)
        y = head.scale * self.linear(head.weight, y, head.bias)
        return head.softcap * np.tanh(y / head.softcap) if head.softcap else y
