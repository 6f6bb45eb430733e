"""Heads of encoders: layers after the last one, from a spec's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyflow.specs.bind.binding import Place
from pyflow.specs.bind.blocks import Blocks
from pyflow.specs.block import Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.document import Document
from pyflow.specs.grammar import CHAIN, LAYER
from pyflow.specs.model_spec import Chain, Dense
from pyflow.specs.parts import Ref

HEADS = ("classify", "fill")


def chains(
    document: Document, blocks: Blocks, embedding: Ref, n_vocab: int, n_embd: int
) -> dict[str, Chain]:
    """The heads whose layers are all in the checkpoint, by their names.

    embedding: the weight that tied layers share, of n_vocab rows.
    """
    found = {}
    for name in HEADS:
        table = document[name]
        names = table.get("layers", ())
        layers: Mapping[str, Any] = document["layers"]
        if not names or not all(
            blocks.facts.value(LAYER, layers[one], "tied")
            or blocks.binding.find(Place("layers", one), "weight") is not None
            for one in names
        ):
            continue
        made = tuple(_layers(names, layers, blocks, (embedding, n_vocab), n_embd))
        found[name] = Chain(blocks.facts.value(CHAIN, table, "pool"), made)
    return found


def _layers(
    names: tuple[str, ...],
    tables: Mapping[str, Any],
    blocks: Blocks,
    embedding: tuple[Ref, int],
    n_in: int,
) -> Iterator[Dense]:
    value = blocks.facts.value
    for name in names:
        table, place = tables[name], Place("layers", name)
        tied, size = value(LAYER, table, "tied"), value(LAYER, table, "size")
        tensor = blocks.binding.find(place, "weight")
        n_out = size or (embedding[1] if tied else 0)
        if not n_out and tensor is not None:
            n_out = tensor.shape[0]
        wants = {
            "weight": Want((n_out, n_in), "auto" if tied else True),
            "weight_bias": Want((n_out,), value(LAYER, table, "bias")),
        }
        norm = None
        if "norm" in table:
            norm = NormValues.of(blocks.named(table["norm"], place, "norm"), n_out)
            wants |= {"norm": norm.weight, "norm_bias": norm.bias}
        bound = blocks.binding.bind(place, wants)
        yield Dense(
            weight=bound["weight"] or (embedding[0] if tied else ""),
            n_in=n_in,
            n_out=n_out,
            bias=bound["weight_bias"],
            activation=value(LAYER, table, "activation"),
            norm=bound.get("norm"),
            norm_bias=bound.get("norm_bias"),
            norm_type=norm.type if norm else "layer",
            norm_eps=norm.eps if norm else 0.0,
        )
        n_in = n_out
