"""llama.cpp, held at arm's length: the few calls that the golden files and the comparison need.

Uses llama-cpp-python's low-level bindings only, so that its Python layer is neither measured nor
trusted.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]

_quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """How a model is opened and a context made; the words are llama.cpp's."""

    n_ctx: int = 512
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int = 2
    flash_attention: bool = False
    f32_cache: bool = False
    repack: bool = True


def describe() -> dict[str, str]:
    """Version and the line in which llama.cpp says what it was built with."""
    return {
        "name": f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})",
        "system_info": llama_cpp.llama_print_system_info().decode().strip(" |"),
    }


def make_batch(n_tokens: int) -> tuple[Any, Tokens, Tokens, NDArray[np.int8]]:
    """A batch of one sequence, and views of its ids, positions and output flags.

    Filled through the views, so that the time of a decode is llama.cpp's and not ctypes'.
    """
    batch = llama_cpp.llama_batch_init(n_tokens, 0, 1)
    for i in range(n_tokens):
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
    views = (np.ctypeslib.as_array(p, (n_tokens,)) for p in (batch.token, batch.pos, batch.logits))
    ids, positions, wanted = views
    return batch, ids, positions, wanted


class LlamaPeer:
    """One model with one context at a time; `reopen` changes the context and keeps the weights."""

    def __init__(self, path: Path, options: PeerOptions) -> None:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such model file")
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_MMAP
        params.use_extra_bufts = options.repack
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise RuntimeError(f"{path}: llama.cpp does not load it")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._context: ctypes.c_void_p | None = None
        self.reopen(options)

    def reopen(self, options: PeerOptions) -> None:
        """Replaces the context; the cache starts empty. `repack` stays as the model was opened."""
        self._close_context()
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = options.n_ctx
        params.n_batch = options.n_batch
        params.n_ubatch = options.n_ubatch
        params.n_seq_max = options.n_seq_max
        params.n_threads = options.n_threads
        params.n_threads_batch = options.n_threads
        cache_type = llama_cpp.GGML_TYPE_F32 if options.f32_cache else llama_cpp.GGML_TYPE_F16
        params.type_k = cache_type
        params.type_v = cache_type
        params.no_perf = True
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if options.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context for {options}")
        self.options = options
        self._batch = make_batch(options.n_batch)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool = False) -> Tokens:
        """Token ids of the text, one int32 each."""
        raw = text.encode()
        ids = np.empty(len(raw) + 8, np.int32)
        n = llama_cpp.llama_tokenize(
            self._vocab,
            raw,
            len(raw),
            ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            len(ids),
            add_special,
            parse_special,
        )
        if n < 0:
            raise RuntimeError(f"llama.cpp wants room for {-n} tokens, had {len(ids)}")
        return ids[:n].copy()

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special tokens spelled out."""
        buffer = ctypes.create_string_buffer(256)
        n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            raise RuntimeError(f"token {token} is longer than {len(buffer)} bytes")
        return buffer.raw[:n]

    @property
    def bos(self) -> int | None:
        """BOS, where the model asks for it in front of every text."""
        if not llama_cpp.llama_vocab_get_add_bos(self._vocab):
            return None
        return int(llama_cpp.llama_vocab_bos(self._vocab))

    def is_end(self, token: int) -> bool:
        """True for every token that ends a generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocab, token))

    def clear(self) -> None:
        """Empties the cache."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def truncate(self, n_past: int) -> None:
        """Forgets every cell at position n_past and beyond."""
        memory = llama_cpp.llama_get_memory(self._context)
        if not llama_cpp.llama_memory_seq_rm(memory, 0, n_past, -1):
            raise RuntimeError(f"llama.cpp cannot go back to position {n_past}")

    def decode(self, tokens: Tokens, position: int, *, first_output: int) -> Logits:
        """Runs one batch and returns float32[n - first_output, n_vocab], valid until the next call.

        tokens: at most n_batch ids that go to `position` onwards of sequence 0.
        first_output: index in tokens of the first row whose logits are wanted; negative counts
        from the end; n or more wants none.
        """
        n = len(tokens)
        first = first_output + n if first_output < 0 else first_output
        batch, ids, positions, wanted = self._batch
        batch.n_tokens = n
        ids[:n] = tokens
        positions[:n] = np.arange(position, position + n)
        wanted[:n] = 0
        wanted[first:n] = 1
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode of {n} tokens at {position} failed: {status}")
        llama_cpp.llama_synchronize(self._context)
        if first >= n:
            return np.empty((0, self.n_vocab), np.float32)
        start = llama_cpp.llama_get_logits_ith(self._context, first)
        return np.ctypeslib.as_array(start, (n - first, self.n_vocab))

    def close(self) -> None:
        """Frees context and weights; a second call does nothing."""
        self._close_context()
        if self._model is not None:
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def _close_context(self) -> None:
        if self._context is not None:
            llama_cpp.llama_batch_free(self._batch[0])
            llama_cpp.llama_free(self._context)
            self._context = None

    def __enter__(self) -> LlamaPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
