"""What a model's files say about it, weights aside."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from pyflow import catalogue, chat, formats
from pyflow.adapters import Adapters
from pyflow.chat import ChatTemplate
from pyflow.constrain import Constraint, Grammars, Matcher
from pyflow.engine.defaults import read_defaults
from pyflow.engine.fingerprint import fingerprint
from pyflow.errors import PyflowError, UnsupportedError
from pyflow.formats import Checkpoint, Overrides
from pyflow.quant import read_as, target_of
from pyflow.specs import describe
from pyflow.tokenizer import NoTokenizerError, Tokenizer, from_checkpoint
from pyflow.tokenizer.base.headroom import is_limited


class ModelFiles:
    """Spec, tokenizer, chat template and sampling defaults of a model."""

    adapters: Adapters | None = None
    """Those that are loaded beside the weights, if any are."""

    def __init__(
        self,
        path: str | Path,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        quantize: str | None = None,
        overrides: Overrides | None = None,
        layers: Sequence[int] = (),
    ) -> None:
        """path: a pulled name, or the path of a checkpoint. meanwhile: called while another thread
        reads the vocabulary. The others: as for `load`, whose errors it raises."""
        start = time.monotonic()
        self.path = catalogue.resolve(path)
        self.checkpoint = open_checkpoint(self.path, quantize=quantize, overrides=overrides)
        self.metadata = self.checkpoint.metadata
        self._description = describe(self.checkpoint)
        self.spec = self._description.spec
        if layers:
            self.spec = self.spec.shallow(layers)
        self.defaults = read_defaults(
            self.checkpoint,
            n_ctx=self.spec.n_ctx_train,
            n_vocab=self.spec.n_vocab,
            spec=self._description.generation,
            reads_sources=self.spec.source is not None,
        )
        stop_ids = self.defaults.stop_ids | frozenset(self._description.stop_ids)
        search = dict(self.defaults.search)
        if never := self._description.never:
            search["banned"] = (*search.get("banned", ()), *never)
        self.defaults = replace(self.defaults, stop_ids=stop_ids, search=search)
        self._tokenizer: Tokenizer | None = None
        self._no_tokenizer = ""
        if is_limited():  # then neither may take the memory that the other counts on
            self._read_tokenizer()
            meanwhile()
        else:
            with ThreadPoolExecutor(1) as reader:
                reading = reader.submit(self._read_tokenizer)
                meanwhile()
                reading.result()
        # The system maps neighbours of the pages that are read: the whole file, at worst.
        self.checkpoint.native.release_all()
        self.load_ms = 1e3 * (time.monotonic() - start)

    def _read_tokenizer(self) -> None:
        try:
            self._tokenizer = from_checkpoint(
                self.checkpoint,
                n_rows=self.spec.n_vocab,
                stop_ids=self.defaults.stop_ids,
            )
        except NoTokenizerError as error:
            self._no_tokenizer = str(error)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def tokenizer(self) -> Tokenizer:
        """NoTokenizerError if the files have none: such a model takes and gives token ids only."""
        if self._tokenizer is None:
            raise NoTokenizerError(self._no_tokenizer)
        return self._tokenizer

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the arithmetic and the weights; see `engine.fingerprint`."""
        return fingerprint(self.checkpoint, self.spec)

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template, or None."""
        return chat.from_checkpoint(
            self.checkpoint, self.tokenizer, template=self._description.template
        )

    @functools.cached_property
    def grammars(self) -> Grammars:
        """Constraints over the vocabulary. UnsupportedError: llguidance is not installed."""
        return Grammars(self.tokenizer, self.spec.n_vocab)

    def matcher(self, constraint: Constraint) -> Matcher:
        """What holds one text of this model to a constraint, from the text's first token on."""
        return self.grammars.matcher(constraint)


def open_checkpoint(
    name_or_path: str | Path, *, quantize: str | None = None, overrides: Overrides | None = None
) -> Checkpoint:
    """The checkpoint of a pulled name or a path; `catalogue.resolve` finds it.

    quantize: a weight format, in any case. Matrices in F32, F16 or BF16 become that format while
    they are loaded; others stay as they are. overrides: of its metadata; `specs.describe` applies
    the others. Raises like `formats.open`, and UnsupportedError for an unknown format or a
    checkpoint without such matrices.
    """
    if overrides is not None and not isinstance(overrides, Overrides):
        raise PyflowError(
            f"overrides: expected an Overrides(...) of pyflow.formats, found {overrides!r:.60}"
        )
    checkpoint = formats.open(catalogue.resolve(name_or_path))
    if overrides:
        metadata = checkpoint.metadata
        if checkpoint.format == "GGUF":
            metadata = overrides.on_metadata(metadata, str(checkpoint.path))
        checkpoint = replace(checkpoint, metadata=metadata, overrides=overrides)
    if quantize is None:
        return checkpoint
    wanted = target_of(quantize).name
    if not can_quantize(checkpoint):
        matrices = {t.dtype for t in checkpoint.tensors if len(t.shape) > 1}
        raise UnsupportedError(
            f"{checkpoint.path}: quantize {wanted}: expected weights in F32, F16 or BF16, found "
            f"{', '.join(sorted(matrices)) or 'none'}; load it as it is, or take the model in F16"
        )
    return replace(checkpoint, pack_as=wanted)


def can_quantize(checkpoint: Checkpoint) -> bool:
    """Whether it has float matrices that loading does not quantize yet."""
    return checkpoint.pack_as is None and any(
        len(t.shape) > 1 and (form := read_as(t.dtype)) is not None and form.block == 1
        for t in checkpoint.tensors
    )
