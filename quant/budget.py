"""Choose a format per role within a budget of bytes, so that the model changes least.

    share_out({"ffn_up": Matrices(26_542_080, 576), ...}, nbytes=107_649_792)

At 3 to 6 bits, a model's loss is a sum over its matrices: the relative squared error of a matrix
times the model's sensitivity to it ("Pushing the Limits of Large Language Model Quantization via
the Linearity Theorem", Malinovskii et al., 2024). The search is greedy: it starts with the fewest
bits for all roles, and each step goes to the role whose next byte reduces the sum most.
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
"""The formats to choose from, and their relative squared error on normally distributed weights:
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
"""Mean KL divergence per unit of relative squared error, if all matrices of the role have it.
Measured on smollm2: each role in Q3H_B64 (error 0.0142), 20 chunks of Spec-Bench's questions. The
residual stream was rotated first, so that weights do not lie on the grid of their original format:

    python bench/requantize/requantize.py smollm2 base.gguf --rotate 1
    pyflow quantize base.gguf ROLE.gguf --type F16 --pure --tensor-type '\\bROLE.weight=q3h_b64'
    pyflow eval kld base.gguf ROLE.gguf ... -f questions.txt --chunks 20

On WikiText-2 all are some 20 % lower. A factor common to all roles changes no choice."""

_OTHERS = 7.0  # for roles that were not measured


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of one role, which get the same format."""

    n_weights: int
    n_cols: int
    """The greatest common divisor of their row lengths."""
    tied: bool = False
    """They are token embeddings and the output matrix in one."""


def sensitivity(role: str, tied: bool = False) -> float:
    role = role.removesuffix("_exps").removesuffix("_shexp")
    own = SENSITIVITIES.get("attn_v" if role == "attn_qkv" else role, _OTHERS)
    return own + SENSITIVITIES["output"] if tied else own


def share_out(roles: Mapping[str, Matrices], nbytes: int) -> dict[str, str]:
    """The format of each role, within `nbytes` in all; the smallest ones if that is too little.

    Leaves out roles whose rows no format's blocks divide.
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
    """Reduction of the loss per byte, against the step before."""


def _steps(role: str, matrices: Matrices) -> list[_Step]:
    """The role's formats by size, as a convex hull: the gain falls from step to step."""
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
