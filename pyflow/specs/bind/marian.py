"""What a file of Marian says of its model, by the names that families read.

Its options stand in the file itself, as YAML: a line `key: value` for each.
"""

from __future__ import annotations

from typing import Any

from pyflow.errors import FormatError, UnsupportedError
from pyflow.formats import Checkpoint
from pyflow.text import printable

CONFIG = "special:model.yml"
_MAX_CONFIG = 1 << 16
_ACTIVATIONS = {"relu": "relu", "swish": "silu"}
# By what stands for the decoder's attention to its own text.
_FAMILIES = {"self-attention": "transformer", "rnn": "transformer-ssru"}
# The only values that run; options with several are in facts().
_ONLY = {
    "type": "transformer",
    "tied-embeddings-all": "true",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-no-projection": "false",
    "transformer-train-position-embeddings": "false",
    "transformer-ffn-depth": "2",
    "transformer-tied-layers": "[]",
    "transformer-pool": "false",
    "transformer-rnn-projection": "false",
    "lemma-dim-emb": "0",
    "ulr": "false",
}
_POSTPROCESS_EMB = ("", "d")  # d: dropout, for training


def facts(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """The family, and the values of a model. UnsupportedError: pyflow does not run such a model.
    FormatError: an option or the embedding is missing or broken."""
    options = _options(checkpoint)
    where = f"{checkpoint.path}: {CONFIG}"

    def expect(key: str, known: tuple[str, ...]) -> str:
        if (found := options.get(key)) not in known:
            raise UnsupportedError(
                printable(
                    f"{where}: {key}: expected {' or '.join(map(repr, known))}, found {found!r:.40}"
                )
                + "; such a model of Marian is not supported"
            )
        return str(found)

    def integer(key: str) -> int:
        text = options.get(key, "")
        if not text.isdecimal() or len(text) > 9:
            raise FormatError(f"{where}: {key}: expected a number, found {text!r:.40}")
        return int(text)

    for key, value in _ONLY.items():
        if key in options or key in ("type", "tied-embeddings-all"):
            expect(key, (value,))
    expect("transformer-postprocess-emb", _POSTPROCESS_EMB)
    autoreg = expect("transformer-decoder-autoreg", tuple(_FAMILIES))
    if autoreg == "rnn":
        expect("dec-cell", ("ssru",))
    shape = next((t.shape for t in checkpoint.tensors if t.name == "Wemb"), ())
    if len(shape) != 2:
        raise FormatError(f"{checkpoint.path}: expected the matrix Wemb, found none")
    n_ff = integer("transformer-dim-ffn")
    return _FAMILIES[autoreg], {
        "n_vocab": shape[0] + 1,
        "n_zeros": 1,  # the start has a row of zeros
        "start": shape[0],
        "n_embd": shape[1],
        "n_layers": integer("enc-depth"),
        "n_decoder_layers": integer("dec-depth"),
        "n_heads": integer("transformer-heads"),
        "n_ff": n_ff,
        "activation": _ACTIVATIONS[expect("transformer-ffn-activation", tuple(_ACTIVATIONS))],
    }


def _options(checkpoint: Checkpoint) -> dict[str, str]:
    text = checkpoint.metadata.get(CONFIG)
    if not isinstance(text, str) or len(text) > _MAX_CONFIG:
        raise FormatError(
            f"{checkpoint.path}: expected the options of a model of Marian ({CONFIG}) of up to "
            f"{_MAX_CONFIG:,} bytes, found {'more' if text else 'none'}"
        )
    found = {}
    for line in text.rstrip("\0").split("\n"):
        key, colon, value = line.partition(":")
        if colon and key == key.strip():
            found[key] = value.strip().strip("\"'")
    return found
