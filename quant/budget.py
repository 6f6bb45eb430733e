"""Formats by role within a number of bytes, so that the model changes least.

    share_out({"ffn_up": Matrices(26_542_080, 576), ...}, nbytes=107_649_792)

For errors as small as those of 3 to 6 bits, what a model loses is a sum over its matrices: of each
the relative squared error of its weights times how much that matrix matters ("Pushing the Limits of
Large Language Model Quantization via the Linearity Theorem", Malinovskii et al., 2024). So, from
the fewest bits for all roles on, the bytes go one step after the other to where a byte takes most
off that sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyflow.quant.blocks import FORMATS

ERRORS = {
    "Q3H_K": 0.0118,
    "Q3H_NL": 0.0118,
    "IQ4_XS": 0.00544,
    "IQ4_NL": 0.00538,
    "Q4_K": 0.00481,
    "Q5_K": 0.00114,
    "Q5_B64": 0.00157,
    "Q6_K": 0.00027,
    "Q6_B64": 0.00037,
    "Q8_0": 0.00002,
}
"""The formats to choose from, and their relative squared errors: of normally distributed weights,
`distortion(rng.standard_normal((64, 3072)), name).relative`."""

SENSITIVITIES = {
    "token_embd": 1.4,
    "output": 7.8,
    "attn_q": 2.3,
    "attn_k": 2.4,
    "attn_v": 32.5,
    "attn_output": 2.6,
    "ffn_gate": 9.0,
    "ffn_up": 14.2,
    "ffn_down": 16.7,
}
"""Mean KL divergence by relative squared error, when all matrices of the role have it: what each
role of smollm2 in Q3H_B64 did to 20 chunks of Spec-Bench's questions, by 0.0142. The residual
stream was turned by an orthogonal matrix, so that no weight lies on the grid of the file that it
came from:

    python bench/requantize/requantize.py smollm2 base.gguf --rotate 1
    pyflow quantize base.gguf ROLE.gguf --type F16 --pure --tensor-type '\\bROLE.weight=q3h_b64'
    pyflow eval kld base.gguf ROLE.gguf ... -f questions.txt --chunks 20

On WikiText-2 they are some 20 % less, all alike. Models differ in how sensitive they are as a
whole, which changes no choice."""

_OTHERS = 7.0  # roles that were not measured


@dataclass(frozen=True, slots=True)
class Matrices:
    """All that get the same format."""

    n_weights: int
    n_cols: int
    """The greatest common divisor of their rows' lengths."""
    tied: bool = False
    """Token embeddings that are the output matrix too."""


def sensitivity(role: str, tied: bool = False) -> float:
    role = role.removesuffix("_exps").removesuffix("_shexp")
    own = SENSITIVITIES.get("attn_v" if role == "attn_qkv" else role, _OTHERS)
    return own + SENSITIVITIES["output"] if tied else own


def share_out(roles: Mapping[str, Matrices], nbytes: int) -> dict[str, str]:
    """The format of each role, of `nbytes` together at most where the least ones allow it.

    A role whose rows no format's blocks divide has none.
    """
    steps = {role: _steps(role, matrices) for role, matrices in roles.items()}
    steps = {role: found for role, found in steps.items() if found}
    at = dict.fromkeys(steps, 0)
    left = nbytes - sum(found[0].nbytes for found in steps.values())
    while True:
        affordable = [
            (steps[role][i + 1].gain, role)
            for role, i in at.items()
            if i + 1 < len(steps[role])
            and steps[role][i + 1].nbytes - steps[role][i].nbytes <= left
        ]
        if not affordable:
            return {role: steps[role][i].name for role, i in at.items()}
        role = max(affordable)[1]
        left -= steps[role][at[role] + 1].nbytes - steps[role][at[role]].nbytes
        at[role] += 1


@dataclass(frozen=True, slots=True)
class _Step:
    name: str
    nbytes: int
    loss: float
    gain: float
    """By how much the loss is less than one step before, by byte."""


def _steps(role: str, matrices: Matrices) -> list[_Step]:
    """The formats that the role may have, each step's gain less than that of the one before."""
    steps: list[_Step] = []
    by_size = sorted(ERRORS, key=lambda name: (FORMATS[name].bits_per_weight, ERRORS[name]))
    for name in by_size:
        if matrices.n_cols % FORMATS[name].block:
            continue
        nbytes = matrices.n_weights // FORMATS[name].block * FORMATS[name].block_bytes
        loss = sensitivity(role, matrices.tied) * ERRORS[name]
        if not steps:
            steps.append(_Step(name, nbytes, loss, math.inf))
        elif loss < steps[-1].loss:
            while _gain(steps[-1], nbytes, loss) >= steps[-1].gain:
                steps.pop()
            steps.append(_Step(name, nbytes, loss, _gain(steps[-1], nbytes, loss)))
    return steps


def _gain(before: _Step, nbytes: int, loss: float) -> float:
    return (before.loss - loss) / (nbytes - before.nbytes)
