"""Which model a speculator was trained for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from pyflow.errors import UnsupportedError

if TYPE_CHECKING:
    from pyflow.engine.model_files import ModelFiles
    from pyflow.specs.model_spec import ModelSpec


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A model, whatever its weights are quantized to."""

    name: str
    n_embd: int
    n_vocab: int
    n_layers: int
    tokenizer: str
    """32 hexadecimal digits: a hash of all tokens' bytes."""

    @classmethod
    def of(cls, model: ModelFiles) -> Base:
        spec = model.spec
        return cls(
            name=spec.name,
            n_embd=spec.n_embd,
            n_vocab=spec.n_vocab,
            n_layers=spec.n_layers,
            tokenizer=_tokenizer_hash(model),
        )

    def resembles(self, spec: ModelSpec) -> bool:
        """Whether name and sizes are those of a model; its tokens are not compared."""
        mine = (self.name, self.n_embd, self.n_vocab, self.n_layers)
        return mine == (spec.name, spec.n_embd, spec.n_vocab, spec.n_layers)

    def check(self, where: str, model: ModelFiles) -> None:
        """UnsupportedError if a speculator for this base is used for another model."""
        found = Base.of(model)
        for field in self.__struct_fields__:
            mine, other = getattr(self, field), getattr(found, field)
            if mine != other:
                what = (
                    ""
                    if field == "name"
                    else f": {field} is {mine!r:.50} there, {other!r:.50} here"
                )
                raise UnsupportedError(
                    f"{where}: this speculator was trained for {self.name!r:.100}, the model is "
                    f"{found.name!r:.100}{what}"
                )


def _tokenizer_hash(model: ModelFiles) -> str:
    digest = hashlib.blake2b(digest_size=16)
    tokenizer = model.tokenizer
    for token in range(tokenizer.n_vocab):
        text = tokenizer.token_bytes(token)
        digest.update(len(text).to_bytes(4, "little"))
        digest.update(text)
    return digest.hexdigest()
