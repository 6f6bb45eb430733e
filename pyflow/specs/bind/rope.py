"""Rotary frequencies, with every scaling law folded into one frequency per pair.

The laws take their parameters from a table as config.json has it (``rope_scaling``,
``rope_parameters``) or GGUF's metadata (``rope.scaling.*``). Contexts longer than the original one
may have frequencies of their own: LongRoPE's, and those of dynamic NTK at its full length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Overrides
from pyflow.specs.language.values import Number, Whole, nearest
from pyflow.specs.parts import Rope

# Parameters by their names in either source; "" is read elsewhere, or has no effect.
_HF = {
    "type": "old_type",
    "rope_type": "type",
    "factor": "factor",
    "original_max_position_embeddings": "n_ctx_original",
    "attention_factor": "magnitude",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "short_factor": "short_divisors",
    "long_factor": "long_divisors",
    "rope_theta": "",
    "partial_rotary_factor": "turned",
    "mrope_section": "",  # the axes of a text's positions are equal
    "mrope_interleaved": "",
    "max_position_embeddings": "",  # of Ministral 3, beside the original number
    "finetuned": "",
}
_GGUF = {
    "type": "type",
    "factor": "factor",
    "original_context_length": "n_ctx_original",
    "attn_factor": "attn_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_log_multiplier": "mscale_all_dim",
    "finetuned": "",
}
# Parameters that other programs know, and the values at which they change nothing.
_NEUTRAL: dict[str, dict[str, tuple[float, ...]]] = {
    "hf": {
        "alpha": (1,),
        "apply_yarn_scaling": (True,),
        "attn_factor": (1,),
        "ext_factor": (1,),
        "extrapolation_factor": (1,),
        "llama_4_scaling_beta": (0,),
        "long_mscale": (1,),
        "ntk_alpha": (1,),
        "short_mscale": (1,),
        "yarn_attn_factor": (1,),
        "yarn_beta_fast": (32,),
        "yarn_beta_slow": (1,),
        "yarn_ext_factor": (1,),
    },
    "gguf": {"alpha": (0, 1), "yarn_attn_factor": (1,), "yarn_ext_factor": (-1,)},
}
# Where GGUF files have what config.json has as lists.
_TENSORS = {
    "short_divisors": "the tensor rope_factors_short.weight",
    "long_divisors": "the tensor rope_factors_long.weight",
}
_NUMBER = Number(above=0, most=1e6)  # factors, magnitudes, turns
NO_TURN = 1e30
"""The divisor of a pair that does not turn (Gemma 4)."""
_LAWS = ("none", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
_ALSO = {"default": "none", "su": "longrope"}


@dataclass(frozen=True, slots=True)
class RopeTable:
    """A rope as a spec describes it. n_ctx: positions that the model was made for, after scaling.

    divisors: one per pair, divides its frequency. magnitude: in place of the law's; 0 is that.
    elsewhere: parameters of scaling that the spec reads otherwise.
    where: the scaling's key, for messages. kind: hf or gguf, for the names of parameters. named:
    parameters that a user has overridden.
    """

    base: float
    n_dims: int
    interleaved: bool
    n_ctx: int
    n_ctx_original: int | None = None
    scaling: Mapping[str, object] | None = None
    divisors: Sequence[float] = ()
    short_divisors: Sequence[object] = ()
    long_divisors: Sequence[object] = ()
    kind: str = "hf"
    where: str = ""
    magnitude: float = 0.0
    elsewhere: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()


def overridden(t: RopeTable, overrides: Overrides) -> tuple[RopeTable, int]:
    """The rope with a user's base and law, and the positions of the model by them."""
    scaling, law = dict(t.scaling or {}), overrides.law
    if overrides.rope_base is not None:
        scaling.pop("rope_theta", None)
        t = replace(t, base=overrides.rope_base, scaling=scaling)
    if law is None:
        return t, t.n_ctx
    if t.named:
        raise FormatError(
            f"{t.where}: override of {min(t.named)}: has no effect, since scaling {law} replaces "
            "the model's; leave one out"
        )
    given: dict[str, object] = {"type": law}
    original = t.n_ctx
    if overrides.rope_factor is not None:
        given["factor"] = overrides.rope_factor
    if law == "yarn":
        original = overrides.rope_n_ctx_original or t.n_ctx
        t = replace(t, n_ctx_original=original)
    t = replace(t, scaling=given, divisors=(), short_divisors=(), long_divisors=())
    return t, max(t.n_ctx, int(original * (overrides.rope_factor or 1)))


def frequencies(base: float, n_dims: int) -> list[float]:
    """``base ** (-2i / n_dims)`` for each of the n_dims / 2 pairs (Su et al. 2021)."""
    return [base ** (-2.0 * i / n_dims) for i in range(n_dims // 2)]


def make_rope(t: RopeTable) -> tuple[Rope, int]:
    """The rope, and the number of positions of the model, which a law may extend.

    FormatError: a parameter is out of range. UnsupportedError: an unknown law or parameter.
    """
    if t.n_dims % 2:
        raise FormatError(f"{t.where}: expected an even number of dimensions, found {t.n_dims}")
    p = Parameters(t)
    plain = _divided(frequencies(t.base, t.n_dims), t.divisors, t.where)
    law = _LAW.get(p.law)
    rope, n_ctx = law(t, p, plain) if law else (Rope(tuple(plain), p.extra), t.n_ctx)
    if t.magnitude:
        rope = replace(rope, magnitude=t.magnitude * p.extra)
    p.check_named(t)
    for f in (*rope.inv_freq, *rope.long_inv_freq, rope.magnitude):
        if not math.isfinite(f):
            raise FormatError(f"{t.where}: expected finite frequencies, found {f}")
    return replace(rope, interleaved=t.interleaved), n_ctx


class Parameters:
    """The parameters of a law, each checked when it is read."""

    def __init__(self, t: RopeTable) -> None:
        names = _GGUF if t.kind == "gguf" else _HF
        self._where, self._table = t.where, dict[str, object]()
        self._kind, self._names, self._read = t.kind, names, {"type", "old_type"}
        neutral = _NEUTRAL[t.kind]
        for name, value in (t.scaling or {}).items():
            if name in neutral or name in t.elsewhere:
                continue
            if name not in names:
                raise UnsupportedError(
                    f"{t.where}: {name!r:.60} is not supported{nearest(name, names)}; "
                    f"expected {', '.join(names)}"
                )
            # Of truncate null is false to transformers, and not what it is if it is absent.
            if names[name] and (value is not None or name == "truncate"):
                self._table[names[name]] = value
        if "rope_theta" in (t.scaling or {}) and names is _HF:
            self._check_base(t)
        self.law = self._law(t)
        self.extra = self.number("attn_factor", 1.0)
        self._check_neutral(t)

    def _check_neutral(self, t: RopeTable) -> None:
        """UnsupportedError: a parameter of other programs would change the frequencies."""
        neutrals = _NEUTRAL[t.kind]
        if t.kind == "gguf":  # the share of YaRN's ramp; -1 is what its law has
            neutrals = neutrals | {"yarn_ext_factor": (-1, 1 if self.law == "yarn" else 0)}
        for name, neutral in neutrals.items():
            value = (t.scaling or {}).get(name)
            if value is not None and name not in t.elsewhere and value not in neutral:
                raise UnsupportedError(
                    f"{self._where}: {name}: expected {' or '.join(f'{v:g}' for v in neutral)}, "
                    f"the value without effect, found {value!r:.60}"
                )

    def check_named(self, t: RopeTable) -> None:
        """FormatError: the law does not read a parameter that a user has overridden."""
        for name in sorted(t.named):
            if (ours := self._names.get(name)) and ours not in self._read:
                raise FormatError(
                    f"{self._where}: override of {name}: has no effect with scaling {self.law}; "
                    "override the type too"
                )

    def _called(self, name: str) -> str:
        """A parameter by its name in the file."""
        own = next((theirs for theirs, ours in self._names.items() if ours == name), name)
        return own if self._kind == "hf" else _TENSORS.get(name, own)

    def _get(self, name: str, default: object = None) -> object:
        self._read.add(name)
        return self._table.get(name, default)

    def _check_base(self, t: RopeTable) -> None:
        """UnsupportedError: the scaling has another base than the spec has read."""
        found = (t.scaling or {})["rope_theta"]
        if found is not None and found != t.base:
            raise UnsupportedError(
                f"{t.where}: rope_theta: expected {t.base:g}, the base that the model is read "
                f"with, found {found!r:.60}"
            )

    def _law(self, t: RopeTable) -> str:
        if t.long_divisors or t.short_divisors:
            return "longrope"
        # GGUF files without a type but with a factor mean linear scaling.
        is_linear = t.kind == "gguf" and self.number("factor", 1.0) != 1.0
        plain = "linear" if is_linear else "none"
        law = self._table.get("type", self._table.get("old_type", plain))
        law = _ALSO.get(law, law) if isinstance(law, str) else law
        if law not in _LAWS:
            raise UnsupportedError(
                f"{self._where}: type {law!r:.60} is not supported; expected one of "
                f"{', '.join(_LAWS)}"
            )
        return str(law)

    def number(
        self, name: str, default: float | None = None, kind: Number | Whole | None = None
    ) -> float:
        kind = kind or _NUMBER
        value = self._get(name, default)
        taken = kind.take(value) if isinstance(value, int | float) else None
        if taken is None:
            found = "nothing" if value is None else repr(value)[:60]
            raise FormatError(
                f"{self._where}: {self._called(name)}: expected {kind.expected}, found {found}"
            )
        return taken

    def numbers(self, name: str, given: Sequence[object], n: int) -> Sequence[object]:
        values = given or self._get(name)
        if not isinstance(values, list | tuple) or len(values) != n:
            found = "nothing" if values is None else repr(values)[:60]
            if isinstance(values, list | tuple):
                found = f"{len(values)}"
            raise FormatError(
                f"{self._where}: {self._called(name)}: expected {n} numbers, found {found}"
            )
        return values

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise FormatError(
                f"{self._where}: {self._called(name)}: expected true or false, found {value!r:.60}"
            )
        return value

    def has(self, name: str) -> bool:
        self._read.add(name)
        return name in self._table

    def n_ctx_original(self, t: RopeTable) -> int:
        if t.n_ctx_original is not None:
            return t.n_ctx_original
        return int(self.number("n_ctx_original", t.n_ctx, Whole(most=1 << 30)))


def _divided(values: Sequence[float], divisors: Sequence[object], where: str) -> list[float]:
    if not divisors:
        return list(values)
    if len(divisors) != len(values):
        raise FormatError(f"{where}: expected {len(values)} divisors, found {len(divisors)}")
    divided = []
    for f, d in zip(values, divisors, strict=True):
        by = float(d) if isinstance(d, int | float) and not isinstance(d, bool) else 0.0
        if not 1e-30 < abs(by) < 1.01 * NO_TURN:  # which as f32 is a little more
            raise FormatError(f"{where}: expected divisors other than 0, found {d!r:.60}")
        divided.append(f / by if abs(by) < 0.99 * NO_TURN else 0.0)
    return divided


def _linear(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    factor = p.number("factor")
    return Rope(tuple(f / factor for f in plain), p.extra), t.n_ctx


def _dynamic(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    """NTK-aware scaling of the base by the length of the text. Here by the length of the context:
    frequencies may not change under keys that are kept, so a context longer than the original takes
    those of the longest one, which is `factor` times as long.
    """
    factor, original = p.number("factor", kind=Number(least=1)), t.n_ctx
    if t.n_dims <= 2:
        raise FormatError(f"{t.where}: expected more than 2 dimensions, found {t.n_dims}")
    n_ctx = int(original * factor)
    base = t.base * (factor * n_ctx / original - (factor - 1)) ** (t.n_dims / (t.n_dims - 2))
    long = tuple(_divided(frequencies(base, t.n_dims), t.divisors, t.where))
    return Rope(tuple(plain), p.extra, False, long, p.extra, original), n_ctx


def _yarn(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    """YaRN's blend of interpolated and original frequencies (Peng et al. 2023, section 3.2).

    Pairs that turn more than beta_fast times over the original context keep their frequency, those
    that turn less than beta_slow times are slowed by `factor`, with a linear ramp between.
    """
    original = p.n_ctx_original(t)
    # Without either number the scaling would silently do nothing.
    known = t.kind == "gguf" or t.n_ctx_original is not None or p.has("n_ctx_original")
    factor = p.number("factor", t.n_ctx / original if known else None)
    if t.base <= 1:
        raise FormatError(f"{t.where}: expected a base above 1, found {t.base}")

    def pair_of(turns: float) -> float:
        return t.n_dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(t.base))

    low, high = pair_of(p.number("beta_fast", 32.0)), pair_of(p.number("beta_slow", 1.0))
    if p.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(t.n_dims - 1, high)
    blended = []
    for i, f in enumerate(plain):
        keep = 1.0 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        blended.append(f / factor * (1.0 - keep) + f * keep)

    def mscale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    magnitude = mscale(1.0)
    if p.has("mscale_all_dim") and (p.has("mscale") or t.kind == "gguf"):
        all_dim = p.number("mscale_all_dim", kind=Number(least=0))
        by = p.number("mscale", 1.0, Number(least=0))
        if by and all_dim:
            magnitude = mscale(by) / mscale(all_dim)
    magnitude = p.number("magnitude", magnitude) * p.extra
    return Rope(tuple(blended), magnitude), max(
        t.n_ctx, int(original * factor)
    ) if t.kind == "hf" else t.n_ctx


def _llama3(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    """Llama 3.1: long waves are slowed by `factor`, short ones are not, with a ramp between. How
    often a wave fits into the original context tells which.
    """
    factor, original = p.number("factor"), p.n_ctx_original(t)
    low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
    if high <= low:
        raise FormatError(
            f"{t.where}: expected high_freq_factor above low_freq_factor, found {high} and {low}"
        )
    scaled = []
    for f in plain:
        turns = original * f / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        scaled.append(f / factor * (1.0 - keep) + f * keep)
    return Rope(tuple(scaled)), t.n_ctx


def _longrope(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    """LongRoPE (Ding et al. 2024): a divisor per pair, from one of two sets by context length."""
    original = p.n_ctx_original(t)
    short = p.numbers("short_divisors", t.short_divisors, len(plain))
    long = p.numbers("long_divisors", t.long_divisors, len(plain))
    magnitude = 1.0
    if t.kind == "hf":
        factor = p.number("factor", t.n_ctx / original)
        if factor > 1 and original > 1:
            magnitude = math.sqrt(1 + math.log(factor) / math.log(original))
    magnitude = p.number("magnitude", magnitude) * p.extra
    near, far = (tuple(_divided(plain, divisors, t.where)) for divisors in (short, long))
    return Rope(near, magnitude, False, far, magnitude, original), t.n_ctx


def _proportional(t: RopeTable, p: Parameters, plain: list[float]) -> tuple[Rope, int]:
    """Gemma 4: the first pairs turn as those of the whole head, the others not at all."""
    factor, n = p.number("factor", 1.0), t.n_dims * p.number("turned", 1.0, Number(0, most=1)) // 2
    turns = (f / factor if i < n else 0.0 for i, f in enumerate(plain))
    return Rope(tuple(turns), p.extra), t.n_ctx


_LAW = {
    "proportional": _proportional,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
