"""The model of tests/pyflow/specs/data/invented.toml in plain torch, and its tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

N_VOCAB, N_EMBD, N_LAYERS = 96, 64, 3
_EVEN = {
    "pair_norm.weight": [64],
    "pair_norm.bias": [64],
    "pair_out_norm.weight": [64],
    "look/mix.weight": [128, 64],
    "look/mix.bias": [128],
    "look/out.weight": [64, 64],
    "think/in.weight": [160, 64],
    "think/in.bias": [160],
    "think/out.weight": [64, 80],
    "think/out.bias": [64],
    "think_norm.weight": [64],
}
_ODD = {
    "gaze/ask.weight": [96, 64],
    "gaze/told.weight": [64, 64],
    "gaze/out.weight": [64, 96],
    "gaze/ask_norm.weight": [96],
    "gaze/told_norm.weight": [32],
    "gaze_norm.weight": [64],
    "gaze_norm.bias": [64],
    "vote_norm.weight": [64],
    "vote/chair.weight": [3, 64],
    "vote/all/chair.weight": [1, 64],
    **{f"vote/{j}/{m}.weight": [24, 64] for j in (1, 2, 3) for m in "ab"},
    **{f"vote/{j}/c.weight": [64, 24] for j in (1, 2, 3)},
    **{f"vote/all/{m}.weight": [40, 64] for m in "ab"},
    "vote/all/c.weight": [64, 40],
}
TENSORS: dict[str, list[int]] = {
    "brain/words.weight": [N_VOCAB, N_EMBD],
    "brain/places.weight": [62, N_EMBD],
    "brain/words_norm.weight": [N_EMBD],
    "brain/words_norm.bias": [N_EMBD],
    "brain/last_norm.weight": [N_EMBD],
    "mouth.weight": [N_VOCAB, N_EMBD],
    "mouth.offset_bias": [N_VOCAB],
    "diary/monday": [3, 3],
    **{
        f"brain/{i}/{name}": shape
        for i in range(N_LAYERS)
        for name, shape in (_ODD if i % 2 else _EVEN).items()
    },
}


class Twin:
    """`Twin(tensors).logits(tokens)`: (n, N_VOCAB)."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.t = tensors

    def plain(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.t[f"brain/{name}.weight"], 1e-6)

    def shifted(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.t[f"brain/{name}.weight"] + 0.5, self.t[f"brain/{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.t[f"brain/{name}.weight"], self.t.get(f"brain/{name}.bias"))

    def logits(self, tokens: Tensor) -> Tensor:
        n = len(tokens)
        x = 2.0 * self.t["brain/words.weight"][tokens] + self.t["brain/places.weight"][2 : 2 + n]
        x = self.shifted(x, "words_norm")
        for i in range(N_LAYERS):
            x = self.odd(x, f"{i}") if i % 2 else self.even(x, f"{i}")
        x = self.plain(x, "last_norm")
        y = 0.5 * F.linear(x, self.t["mouth.weight"], self.t["mouth.offset_bias"])
        return 4.0 * torch.tanh(y / 4.0)

    def even(self, x: Tensor, p: str) -> Tensor:
        h = self.shifted(x, f"{p}/pair_norm")
        look, think = self.near(h, f"{p}/look"), self.gated(h, f"{p}/think")
        return self.plain(
            x + 0.7 * look + self.plain(think, f"{p}/think_norm"), f"{p}/pair_out_norm"
        )

    def odd(self, x: Tensor, p: str) -> Tensor:
        x = x + self.shifted(self.far(x, f"{p}/gaze"), f"{p}/gaze_norm")
        return x + 0.5 * self.experts(self.plain(x, f"{p}/vote_norm"), f"{p}/vote")

    def near(self, h: Tensor, p: str) -> Tensor:
        """Two groups of two queries, a key and a value; 12 of 16 dimensions turn."""
        n = len(h)
        groups = self.linear(h, f"{p}/mix").view(n, 2, 4, 16)
        q, k, v = groups[:, :, :2].reshape(n, 4, 16), groups[:, :, 2], groups[:, :, 3]
        k, v = (part.repeat_interleave(2, 1) for part in (turned(k), v))
        scores = torch.einsum("qhd,khd->hqk", turned(q), k) * 0.3
        scores = 5.0 * torch.tanh(scores / 5.0)
        distance = torch.arange(n)[:, None] - torch.arange(n)
        scores = scores.masked_fill((distance < 0) | (distance >= 7), -math.inf)
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(n, 64)
        return out @ self.t[f"brain/{p}/out.weight"]

    def far(self, x: Tensor, p: str) -> Tensor:
        """Three queries to one key, with ALiBi: slopes 2^-2, 2^-4 of two heads, and 2^-1."""
        n = len(x)
        v, k = self.linear(x, f"{p}/told").split(32, -1)
        q = self.plain(self.linear(x, f"{p}/ask"), f"{p}/ask_norm").view(n, 3, 32)
        k = self.plain(k, f"{p}/told_norm")
        scores = torch.einsum("qhd,kd->hqk", q, k) / math.sqrt(32)
        distance = torch.arange(n)[:, None] - torch.arange(n)
        scores = scores - torch.tensor([0.25, 0.0625, 0.5])[:, None, None] * distance
        scores = scores.masked_fill(distance < 0, -math.inf)
        out = torch.einsum("hqk,kd->qhd", scores.softmax(-1), v).reshape(n, 96)
        return self.linear(out, f"{p}/out")

    def gated(self, h: Tensor, p: str) -> Tensor:
        up, gate = self.linear(h, f"{p}/in").split(80, -1)
        return self.linear(F.gelu(gate) * up, f"{p}/out")

    def experts(self, h: Tensor, p: str) -> Tensor:
        probabilities = self.linear(h, f"{p}/chair").softmax(-1)
        chosen = probabilities.topk(2)
        weight = torch.zeros_like(probabilities).scatter(-1, chosen.indices, chosen.values)
        out = torch.sigmoid(self.linear(h, f"{p}/all/chair")) * self.expert(h, f"{p}/all")
        for j in range(3):
            out = out + 1.5 * weight[:, j : j + 1] * self.expert(h, f"{p}/{j + 1}")
        return out

    def expert(self, h: Tensor, p: str) -> Tensor:
        return self.linear(F.relu(self.linear(h, f"{p}/a")) * self.linear(h, f"{p}/b"), f"{p}/c")


def turned(x: Tensor) -> Tensor:
    """x (n, heads, 16): pairs (2i, 2i + 1) of the first 12 turn by position * 500^(-i / 6)."""
    angles = torch.arange(len(x))[:, None, None] * 500.0 ** (-torch.arange(6) / 6)
    cos, sin, a, b = angles.cos(), angles.sin(), x[..., 0:12:2], x[..., 1:12:2]
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([pairs, x[..., 12:]], -1)
