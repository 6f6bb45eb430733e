"""A model in plain Python that behaves like the engine, for tests of what drives it."""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow import _core
from pyflow.batch.local_runner import LocalRunner
from pyflow.cli import main
from pyflow.cli.options import model as options
from pyflow.engine.context import Context
from pyflow.engine.defaults import Defaults
from pyflow.errors import CancelledError, ResourceError
from pyflow.generate import AnyModel, Options
from pyflow.generate.any_model import Run
from pyflow.generate.local import run_model
from pyflow.tokenizer import Detokenizer

BOS, EOS, TURN, N_VOCAB = 256, 257, 258, 259
Logits = Callable[[list[int]], NDArray[np.float32]]


class FakeTokenizer:
    """One token per byte; BOS, EOS and a mark that opens a turn."""

    n_vocab, bos_id, eos_id, stop_ids, add_bos = N_VOCAB, BOS, EOS, frozenset({EOS}), True

    def encode(self, text: str | bytes, *, add_special: bool = True, **_: object) -> list[int]:
        raw = text.encode() if isinstance(text, str) else text
        return [BOS] * (add_special and bool(raw)) + list(raw)

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode()

    def control_starts(self, text: str) -> list[int]:  # noqa: ARG002
        return []

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.token_bytes)


class FakeTemplate:
    """<TURN>role:content<EOS> for every message."""

    head = ""

    def guarded(self) -> FakeTemplate:
        found = FakeTemplate()
        found.head = "guarded:"
        return found

    def using(self, variables: Mapping[str, object]) -> FakeTemplate:
        assert not variables
        return self

    def encode(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        prefill: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> list[int]:
        if tell is not None:
            tell("about the template")
        ids = [BOS, *self.head.encode()]
        for message in messages:
            ids += [TURN, *f"{message['role']}:{message['content']}".encode(), EOS]
        return ids + [TURN, *b"assistant:", *prefill.encode()] * add_generation_prompt


def hashed_logits(tokens: list[int]) -> NDArray[np.float32]:
    """Letters for the most part, by everything that is seen."""
    rng = np.random.default_rng(zlib.crc32(np.array(tokens, np.int32).tobytes()))
    x = rng.standard_normal(N_VOCAB) * 2 - 100
    x[97:123] += 100
    x[EOS] += 99.5
    return x.astype(np.float32)


class FakeContext(Context):
    """Keeps (position, token) per sequence and complains about whatever the engine would."""

    def __init__(self, model: FakeModel, n_ctx: int, n_seq_max: int, n_batch: int) -> None:
        self.model, self.n_ctx, self.n_seq_max, self.n_batch = model, n_ctx, n_seq_max, n_batch
        self.cells: list[dict[int, int]] = [{} for _ in range(n_seq_max)]
        self.n_rows: list[int] = []
        self.n_shifts = 0
        self.window = 0
        self.layer_windows = [0]
        self.closed = False
        self.shifts, self.prefill, self.adapters = True, "decode", None
        self.before_call: Callable[[], None] = lambda: None
        self._interrupted = False

    @property
    def native(self) -> Any:
        return self

    def step(self, entries: Sequence[_core.Entry], **_: Any) -> list[Any]:
        assert not self.closed
        self._interrupted = False
        self.before_call()
        if self._interrupted:
            raise CancelledError("stopped")
        self.n_rows.append(sum(len(entry.tokens) for entry in entries))
        assert 0 < self.n_rows[-1] <= self.n_batch
        assert len({entry.seq for entry in entries}) == len(entries)
        results = []
        for entry in entries:
            cells, drawn = self.cells[entry.seq], []
            for token in entry.tokens:
                cells[max(cells, default=-1) + 1] = token
            if sum(map(len, self.cells)) > self.n_ctx:
                raise ResourceError("out of cells")
            if entry.sampler is not None:
                seen = [cells[q] for q in sorted(cells)]
                drawn.append(entry.sampler.sample(self.model.logits_of(seen), max(cells) + 1))
                entry.sampler.accept(drawn[0].token)
            results.append(SimpleNamespace(drawn=drawn, nodes=[], failed=False, check=lambda: None))
        return results

    @property
    def n_free(self) -> int:
        return self.n_ctx - sum(map(len, self.cells))

    def turns_alike(self, n_positions: int, other: int) -> bool:  # noqa: ARG002
        return True

    def interrupt(self) -> None:
        self._interrupted = True

    def clear(self) -> None:
        self.cells = [{} for _ in range(self.n_seq_max)]

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        end = p1 if p1 >= 0 else self.n_ctx + 1
        self.cells[dst] |= {p: t for p, t in self.cells[src].items() if p0 <= p < end}

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        end = p1 if p1 >= 0 else self.n_ctx + 1
        self.cells[seq] = {p: t for p, t in self.cells[seq].items() if not p0 <= p < end}

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        assert p1 == -1
        self.n_shifts += 1
        moved = {p + delta if p >= p0 else p: t for p, t in self.cells[seq].items()}
        assert len(moved) == len(self.cells[seq])
        self.cells[seq] = moved

    def seq_pos_max(self, seq: int) -> int:
        return max(self.cells[seq], default=-1)

    def seq_reusable(self, seq: int, n: int) -> int:
        assert sorted(self.cells[seq]) == list(range(len(self.cells[seq])))
        held = len(self.cells[seq])
        # With a window, cells long past cannot be had back.
        return min(n, held) if not self.window or n > held - self.window else 0

    def close(self) -> None:
        self.closed = True


class FakeModel(AnyModel):
    name, tokenizer, chat_template = "fake", FakeTokenizer(), FakeTemplate()
    inexact = ""

    def __init__(self, logits_of: Logits = hashed_logits, n_ctx_train: int = 8192) -> None:
        self.path, self.load_ms, self.n_threads = Path("fake.gguf"), 1.5, 1
        self.logits_of = logits_of
        self.spec = SimpleNamespace(
            n_ctx_train=n_ctx_train, n_vocab=N_VOCAB, is_encoder=False, source=None
        )
        self.defaults = Defaults()
        self.contexts: list[FakeContext] = []

    def __enter__(self) -> FakeModel:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def context(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = 512,
        cache_type: str = "f16",
        n_source: int | None = None,
    ) -> FakeContext:
        assert not n_source
        assert cache_type in ("f16", "q8_0")
        n_ctx = n_ctx or min(4096, self.spec.n_ctx_train)
        self.contexts.append(FakeContext(self, n_ctx, n_seq_max, n_batch))
        return self.contexts[-1]

    def run(self, lengths: Sequence[int], n_predict: int, options: Options) -> Run:
        model: Any = self
        return run_model(model, lengths, n_predict, options)

    def conversation(
        self,
        n_ctx: int | None = None,
        *,
        cache_type: str = "f16",
        speculator: Any = None,
        session: None = None,
    ) -> Run:
        assert session is None
        context: Any = self.context(n_ctx, cache_type=cache_type)
        return Run(LocalRunner(context, speculator), [context.n_ctx], owned=True)


@pytest.fixture
def fake_model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def make_model() -> type[FakeModel]:
    return FakeModel


@pytest.fixture
def saying() -> Callable[..., FakeModel]:
    """saying(prompt, tokens): a model that answers this prompt with these tokens, then ends."""

    def make(prompt: str, answer: str | Sequence[int], **options: Any) -> FakeModel:
        start = len(FakeTokenizer().encode(prompt))
        tokens = list(answer.encode()) if isinstance(answer, str) else list(answer)

        def logits_of(seen: list[int]) -> NDArray[np.float32]:
            x = np.zeros(N_VOCAB, np.float32)
            at = len(seen) - start
            x[tokens[at] if at < len(tokens) else EOS] = 100
            return x

        return FakeModel(logits_of, **options)

    return make


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fake_model: Any
) -> Callable[..., tuple[int, str, str]]:
    """run(*args, model=..., stdin=...) -> exit code, standard output, standard error."""
    monkeypatch.delenv("PYFLOW_DEBUG", raising=False)

    def run_(*args: str, model: Any = None, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(options, "load", lambda *_, **__: model or fake_model)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = main(args)
        out, err = capsys.readouterr()
        return code, out, err

    return run_
