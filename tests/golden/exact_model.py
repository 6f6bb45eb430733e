"""The three models in plain numpy float32: no rounded activations, no rounded cache.

It is what the numbers of a file mean before any engine rounds. Every engine lies around it, ours
and the peer, and the distance between two engines is judged against it. Weights come from gguf's
dequantizer; one tensor is unpacked at a time.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

Array = NDArray[np.float32]
# Rows of the head's weights that are unpacked at once.
HEAD_ROWS = 16384


class ExactModel:
    """forward() gives hidden states of whole sequences, logits() the scores of some rows."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.family = str(reader.fields["general.architecture"].contents())

        def field(name: str, default: float = math.nan) -> float:
            value = reader.fields.get(f"{self.family}.{name}")
            return default if value is None else float(value.contents())

        self.n_layers = int(field("block_count"))
        self.width = int(field("embedding_length"))
        self.n_heads = int(field("attention.head_count"))
        self.n_kv_heads = int(field("attention.head_count_kv"))
        self.head_dim = int(field("attention.key_length", self.width / self.n_heads))
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        self.rope_base = field("rope.freq_base")
        self.window = int(field("attention.sliding_window", 0))
        self.n_vocab = int(self._tensors["token_embd.weight"].shape[1])

    def weight(self, name: str, rows: slice = slice(None)) -> Array:
        """A tensor's values, float32, output rows first."""
        tensor = self._tensors[name]
        return np.ascontiguousarray(dequantize(tensor.data[rows], tensor.tensor_type), np.float32)

    def norm(self, x: Array, name: str) -> Array:
        """RMSNorm over the last axis."""
        mean_square = np.mean(np.square(x, dtype=np.float64), -1, keepdims=True)
        scaled = x / np.sqrt(mean_square + self.epsilon)
        return (scaled * self.weight(name)).astype(np.float32)

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self.weight(f"{name}.weight").T
        return y + self.weight(f"{name}.bias") if f"{name}.bias" in self._tensors else y

    def rope(self, x: Array, base: float) -> Array:
        """x: (sequences, rows, heads, head_dim). llama pairs neighbours, the others pair halves."""
        half = self.head_dim // 2
        angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        y = np.empty_like(x)
        if self.family == "llama":
            first, second = np.s_[..., 0::2], np.s_[..., 1::2]
        else:
            first, second = np.s_[..., :half], np.s_[..., half:]
        y[first] = x[first] * cos - x[second] * sin
        y[second] = x[first] * sin + x[second] * cos
        return y

    def attention(self, x: Array, layer: str, *, base: float, window: int) -> Array:
        n_seq, n_rows, _ = x.shape
        q = self.linear(x, f"{layer}.attn_q").reshape(n_seq, n_rows, self.n_heads, -1)
        k = self.linear(x, f"{layer}.attn_k").reshape(n_seq, n_rows, self.n_kv_heads, -1)
        v = self.linear(x, f"{layer}.attn_v").reshape(n_seq, n_rows, self.n_kv_heads, -1)
        if f"{layer}.attn_q_norm.weight" in self._tensors:
            q = self.norm(q, f"{layer}.attn_q_norm.weight")
            k = self.norm(k, f"{layer}.attn_k_norm.weight")
        q = self.rope(q, base) / np.float32(math.sqrt(self.head_dim))
        k = self.rope(k, base)
        distance = np.arange(n_rows)[:, None] - np.arange(n_rows)
        hidden = (distance < 0) | (distance >= (window or n_rows))
        out = np.empty_like(q)
        for head in range(self.n_heads):
            shared = head * self.n_kv_heads // self.n_heads
            scores = q[:, :, head] @ k[:, :, shared].transpose(0, 2, 1)
            scores = np.where(hidden, -np.inf, scores)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, :, head] = (p / p.sum(-1, keepdims=True)) @ v[:, :, shared]
        return self.linear(out.reshape(n_seq, n_rows, -1), f"{layer}.attn_output")

    def forward(self, tokens: NDArray[np.int32]) -> Array:
        """tokens: (sequences, rows). Returns the final norm's output (sequences, rows, width)."""
        gemma = self.family == "gemma3"
        x = np.stack([self.weight("token_embd.weight")[row] for row in tokens])
        if gemma:
            x *= np.float32(math.sqrt(self.width))
        for i in range(self.n_layers):
            layer = f"blk.{i}"
            # gemma3: five layers with a window and a rope base of 10,000, then one without.
            local = gemma and (i + 1) % 6 != 0
            base, window = (10_000.0, self.window) if local else (self.rope_base, 0)
            y = self.norm(x, f"{layer}.attn_norm.weight")
            y = self.attention(y, layer, base=base, window=window)
            x = x + (self.norm(y, f"{layer}.post_attention_norm.weight") if gemma else y)
            y = self.norm(x, f"{layer}.ffn_norm.weight")
            gate = self.linear(y, f"{layer}.ffn_gate")
            y = (gelu(gate) if gemma else silu(gate)) * self.linear(y, f"{layer}.ffn_up")
            y = self.linear(y, f"{layer}.ffn_down")
            x = x + (self.norm(y, f"{layer}.post_ffw_norm.weight") if gemma else y)
        return self.norm(x, "output_norm.weight")

    def logits(self, hidden: Array) -> Array:
        """hidden: (rows, width). Returns (rows, n_vocab)."""
        name = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        parts = (slice(i, i + HEAD_ROWS) for i in range(0, self.n_vocab, HEAD_ROWS))
        return np.concatenate([hidden @ self.weight(name, part).T for part in parts], axis=1)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The tanh form, which gemma was trained with."""
    inner = np.float32(math.sqrt(2 / math.pi)) * x * (1 + np.float32(0.044715) * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
