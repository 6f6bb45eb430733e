"""Blocks of a layer, from their tables in a spec: parameters evaluated, tensors bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pyflow.errors import FormatError, SpecError
from pyflow.specs.bind.binding import Binding, Place, Want
from pyflow.specs.bind.rope import RopeTable, make_rope
from pyflow.specs.document import Document
from pyflow.specs.grammar import ATTENTION, FFN, MOE, NORM, RELATIVE, REQUIRED, ROPE, Param, Table
from pyflow.specs.language.expression import UnresolvedError
from pyflow.specs.language.facts import Facts
from pyflow.specs.language.values import nearest
from pyflow.specs.model_spec import Attention, Block, Ffn, Moe, Norm, Register, Rope

ReadTensor = Callable[[str, int], Sequence[float]]
"""The values of a small vector by its name and their number; FormatError when it is another."""


class Values:
    """The values of keys and facts, as a model at hand resolves them."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def of(self, shape: Table, table: Mapping[str, Any], key: str) -> Any:
        """The value of a key, as the grammar wants it; its default where nothing resolves."""
        param = cast("Param", shape[key])
        given = table.get(key)
        if given is None:
            return param.default
        try:
            found = given.resolve(self.facts)
        except UnresolvedError as error:
            if param.default is not REQUIRED:
                return param.default
            raise FormatError(f"{error}: expected {param.kind.expected}, found nothing") from None
        taken = param.kind.take(found.value)
        if taken is None:
            raise found.fault(param.kind.expected)
        return taken

    def fact(self, name: str, default: int | None = None) -> int:
        """A standard fact that is an integer."""
        try:
            return cast("int", self.facts.fact(name))
        except UnresolvedError as error:
            if default is not None:
                return default
            raise FormatError(f"{error}: expected an integer, found nothing") from None


class Ropes:
    """The ropes that blocks ask for, each made when the first one does.

    tables: what they are made of, by name. n_ctx: positions that the model is good for, which
    scaling may extend.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        values: Values,
        binding: Binding,
        read_tensor: ReadTensor,
        kind: str,
    ) -> None:
        self._given, self._values, self._binding = tables, values, binding
        self._read_tensor, self._kind = read_tensor, kind
        self.tables: dict[str, RopeTable] = {}
        self._made: dict[str, Rope] = {}
        self.n_ctx = 0

    @property
    def made(self) -> tuple[Rope, ...]:
        return tuple(self._made.values())

    def index(self, name: str, head_dim: int) -> int | None:
        """The index of a rope, which is made when a block first asks for it."""
        if name == "none":
            return None
        if name not in self._made:
            self._made[name] = self._make(name)
        rope = self._made[name]
        if 2 * len(rope.inv_freq) > head_dim:
            raise FormatError(
                f"{self._binding.where}: rope {name}: expected up to {head_dim} dimensions, those "
                f"of a head, found {2 * len(rope.inv_freq)}"
            )
        return list(self._made).index(name)

    def _make(self, name: str) -> Rope:
        given = self._given
        if name not in given:
            raise SpecError(
                f"{self._binding.where}: there is no rope {name!r:.60}{nearest(name, given)}"
            )
        table = given[name]

        def value(key: str) -> Any:
            return self._values.of(ROPE, table, key)

        n_dims, scaling, factor = value("n_dims"), value("scaling"), value("factor")
        where = f"{self._binding.where}: rope {name}"
        if scaling is not None:
            where = table["scaling"].resolve(self._values.facts).where
            if not isinstance(scaling, dict):
                raise FormatError(f"{where}: expected a table, found {scaling!r:.60}")
        if factor is not None:
            scaling = {"factor": factor} | (scaling or {})
        self.tables[name] = RopeTable(
            base=value("base"),
            n_dims=n_dims,
            interleaved=value("layout") == "interleaved",
            n_ctx=self._values.fact("n_ctx"),
            n_ctx_original=value("n_ctx_original"),
            scaling=scaling,
            divisors=self._divisors(table.get("divisors"), n_dims),
            short_divisors=self._divisors(table.get("short_divisors"), n_dims),
            long_divisors=self._divisors(table.get("long_divisors"), n_dims),
            kind=self._kind,
            where=where,
        )
        rope, n_ctx = make_rope(self.tables[name])
        self.n_ctx = max(self.n_ctx, n_ctx)
        return rope

    def _divisors(self, name: str | None, n_dims: int) -> Sequence[float]:
        if name is None or name not in self._binding.tensors:
            return ()
        self._binding.used.add(name)
        return self._read_tensor(name, n_dims // 2)


class Blocks:
    """Makes blocks. unsupported: what of them no stage can run."""

    def __init__(self, document: Document, values: Values, binding: Binding, ropes: Ropes) -> None:
        self._tables: Mapping[str, Any] = document["blocks"]
        self._values, self._binding, self._ropes = values, binding, ropes
        self.unsupported: list[str] = []

    def make(self, name: str, place: Place, source: Register, to: Register, n_embd: int) -> Block:
        """A block that is no norm, by its name."""
        table = self._tables[name]
        kinds: dict[str, Callable[..., Block]] = {
            "attention": self._attention,
            "ffn": self._ffn,
            "moe": self._moe,
        }
        return kinds[table["kind"]](place, table, source, to, n_embd)

    def norm(
        self, place: Place, role: str, name: str, source: Register, to: Register, n_embd: int
    ) -> Norm:
        kind, eps, weight, bias = self._norm_of(name, n_embd)
        bound = self._binding.bind(place, {role: weight, f"{role}_bias": bias})
        return Norm(source, to, bound[role], eps, kind, bound[f"{role}_bias"])

    def _norm_of(self, name: str, n: int, *also: int) -> tuple[Any, float, Want, Want]:
        """Type, eps, and what is wanted of weight and bias, of n values each."""
        table = self._tables[name]
        kind = self._values.of(NORM, table, "type")
        bias = self._values.of(NORM, table, "bias")
        add = self._values.of(NORM, table, "add")
        other = tuple((m,) for m in also)
        return (
            kind,
            self._values.of(NORM, table, "eps"),
            Want((n,), self._values.of(NORM, table, "weight"), add=add, also=other),
            Want((n,), kind == "layer" if bias is None else bias, also=other),
        )

    def _attention(
        self, place: Place, table: Mapping[str, Any], source: Register, to: Register, n_embd: int
    ) -> Attention:
        def value(key: str) -> Any:
            return self._values.of(ATTENTION, table, key)

        n_heads, n_kv_heads, head_dim = value("n_heads"), value("n_kv_heads"), value("head_dim")
        if n_heads % n_kv_heads:
            raise FormatError(
                f"{self._binding.where}: {place}: expected queries of a multiple of {n_kv_heads} "
                f"heads, those of keys, found {n_heads}"
            )
        if value("mask") != "causal" or value("kv_from") != "self":
            self.unsupported.append(
                "attention to what comes later, or to an encoder, cannot run yet"
            )
        q, kv = n_heads * head_dim, n_kv_heads * head_dim
        bias = value("qkv_bias")
        wants = {
            "q": Want((q, n_embd)),
            "k": Want((kv, n_embd)),
            "v": Want((kv, n_embd)),
            "o": Want((n_embd, q)),
            "q_bias": Want((q,), bias),
            "k_bias": Want((kv,), bias),
            "v_bias": Want((kv,), bias),
            "o_bias": Want((n_embd,), value("o_bias")),
        }
        norm_type: Any = "rms"
        norm_eps, span = 0.0, value("qk_norm_span")
        if "qk_norm" in table:
            for role, n in (("q_norm", n_heads), ("k_norm", n_kv_heads)):
                norm_type, norm_eps, weight, norm_bias = (
                    self._norm_of(table["qk_norm"], n * head_dim)
                    if span == "all"
                    else self._norm_of(table["qk_norm"], head_dim, n * head_dim)
                )
                per_head = n if span == "head" else 0
                wants[role] = replace(weight, n_heads=per_head)
                wants[f"{role}_bias"] = replace(norm_bias, n_heads=per_head)
        self._relative(place, table, n_heads)
        return Attention(
            source,
            to,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            scale=value("scale"),
            rope=self._ropes.index(value("rope"), head_dim),
            window=value("window"),
            softcap=value("softcap"),
            norm_eps=norm_eps,
            norm_type=norm_type,
            norm_span=span,
            alibi=_slopes(n_heads, value("alibi")),
            **self._binding.bind(place, wants),
        )

    def _relative(self, place: Place, table: Mapping[str, Any], n_heads: int) -> None:
        if "relative" not in table:
            return
        self.unsupported.append("relative position biases cannot run yet")
        n = self._values.of(RELATIVE, table["relative"], "n_buckets")
        self._binding.bind(place, {"relative": Want((n, n_heads))})

    def _ffn(
        self, place: Place, table: Mapping[str, Any], source: Register, to: Register, n_embd: int
    ) -> Ffn:
        n_ff, bias = self._values.of(FFN, table, "n_ff"), self._values.of(FFN, table, "bias")
        gated = self._values.of(FFN, table, "gated")
        wants = {
            "gate": Want((n_ff, n_embd), gated),
            "up": Want((n_ff, n_embd)),
            "down": Want((n_embd, n_ff)),
            "gate_bias": Want((n_ff,), bias if gated else False),
            "up_bias": Want((n_ff,), bias),
            "down_bias": Want((n_embd,), bias),
        }
        return Ffn(
            source,
            to,
            n_ff=n_ff,
            activation=self._values.of(FFN, table, "activation"),
            **self._binding.bind(place, wants),
        )

    def _moe(
        self, place: Place, table: Mapping[str, Any], source: Register, to: Register, n_embd: int
    ) -> Moe:
        def value(key: str) -> Any:
            return self._values.of(MOE, table, key)

        n, top_k, n_ff, n_shared = (
            value(key) for key in ("n_experts", "top_k", "n_ff", "n_ff_shared")
        )
        if top_k > n:
            raise FormatError(
                f"{self._binding.where}: {place}: expected up to {n} experts, found top {top_k}"
            )
        shared = n_shared > 0
        wants = {
            "router": Want((n, n_embd)),
            "gate": Want((n_ff, n_embd), n_experts=n),
            "up": Want((n_ff, n_embd), n_experts=n),
            "down": Want((n_embd, n_ff), n_experts=n),
            "shared_gate": Want((n_shared, n_embd), shared),
            "shared_up": Want((n_shared, n_embd), shared),
            "shared_down": Want((n_embd, n_shared), shared),
            "shared_router": Want(
                (1, n_embd), value("shared_router") if shared else False, also=((n_embd,),)
            ),
        }
        return Moe(
            source,
            to,
            n_experts=n,
            top_k=top_k,
            n_ff=n_ff,
            activation=value("activation"),
            normalize=value("normalize"),
            scale=value("scale"),
            n_ff_shared=n_shared,
            **self._binding.bind(place, wants),
        )


def _slopes(n_heads: int, max_bias: float) -> tuple[float, ...]:
    """ALiBi's slope of each head (Press et al. 2022); those past a power of two lie between."""
    if not max_bias:
        return ()
    n = 1 << (n_heads.bit_length() - 1)
    even, odd = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    return tuple(even ** (h + 1) if h < n else odd ** (2 * (h - n) + 1) for h in range(n_heads))
