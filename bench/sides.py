"""One side of a comparison: a child process that loads a model once and times what it is asked to.

    python bench/sides.py pyflow|before|llama.cpp|openvino

Requests and answers are single lines of JSON on stdin and stdout. An answer to a request that fails
is {"error": "..."}; the child ends when its stdin does. Only the work itself is timed, by
CLOCK_MONOTONIC: token ids are ready before the clock starts, and no logits are sampled from.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The size of the vocabulary and the bytes of weights that one token needs; None: unknown."""

    n_vocab: int | None = None
    bytes_per_token: int | None = None


class Side(Protocol):
    """What compare.py asks of every runtime."""

    variants: tuple[str, ...]

    def describe(self) -> dict[str, str]:
        """Name with version, and what the arithmetic runs on."""

    def load(self, path: Path, n_threads: int, n_ctx: int) -> Loaded:
        """Makes a model ready for work with n_threads."""

    def use(self, variant: str) -> None:
        """Takes one of `variants` for the runs that follow."""

    def prefill(self, tokens: Tokens) -> float:
        """Seconds from an empty cache to the logits of the last token."""

    def decode(self, prompt: Tokens, tokens: Tokens) -> float:
        """Seconds for the tokens one at a time, each to its logits, after the untimed prompt."""

    def read_rate(self) -> float | None:
        """Bytes a second of only reading a token's weights by the same threads; None: unknown."""


class PyflowSide:
    """The only place in bench/ that knows pyflow's API."""

    variants = ("default",)

    def __init__(self) -> None:
        import pyflow

        self._pyflow = pyflow
        self._model: Any = None
        self._context: Any = None

    def describe(self) -> dict[str, str]:
        from pyflow import _core

        return {
            "name": f"pyflow {version('pyflow-llm')}",
            "system_info": f"kernels: {_core.cpu_info()['isa']}",
        }

    def load(self, path: Path, n_threads: int, n_ctx: int) -> Loaded:
        if self._model is not None:
            self._context.close()
            self._model.close()
        self._model = self._pyflow.load(path, n_threads=n_threads)
        self._context = self._model.context(n_ctx=n_ctx)
        return Loaded(self._model.spec.n_vocab, self._model.stage.token_bytes)

    def use(self, variant: str) -> None:
        del variant

    def prefill(self, tokens: Tokens) -> float:
        self._context.clear()
        start = time.monotonic()
        self._context.forward(tokens, logits="last", regime="prefill")
        return time.monotonic() - start

    def decode(self, prompt: Tokens, tokens: Tokens) -> float:
        self._context.clear()
        self._context.forward(prompt, logits="none", regime="prefill")
        rows = [tokens[i : i + 1] for i in range(len(tokens))]
        start = time.monotonic()
        for row in rows:
            self._context.forward(row, logits="last")
        return time.monotonic() - start

    def read_rate(self) -> float | None:
        return float(self._model.stage.read_rate(3))


class LlamaSide:
    """llama.cpp at its best: mapped file, its repacked weights, flash attention off and on."""

    variants = ("flash attention off", "flash attention on")

    def __init__(self) -> None:
        import llama_peer

        self._library = llama_peer
        self._peer: Any = None

    def describe(self) -> dict[str, str]:
        description: dict[str, str] = self._library.describe()
        return description

    def load(self, path: Path, n_threads: int, n_ctx: int) -> Loaded:
        if self._peer is not None:
            self._peer.close()
        # One logical and one physical batch take the whole prompt of 512.
        self._options = {"n_threads": n_threads, "n_ctx": n_ctx, "n_batch": 512, "n_ubatch": 512}
        self._peer = self._library.LlamaPeer(path, self._library.PeerOptions(**self._options))
        return Loaded(self._peer.n_vocab)

    def use(self, variant: str) -> None:
        flash = variant == self.variants[1]
        if self._peer.options.flash_attention != flash:
            options = self._library.PeerOptions(**self._options, flash_attention=flash)
            self._peer.reopen(options)

    def _prompt(self, tokens: Tokens) -> None:
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            is_last = start + len(part) == len(tokens)
            self._peer.decode(part, start, first_output=-1 if is_last else len(part))

    def prefill(self, tokens: Tokens) -> float:
        self._peer.clear()
        start = time.monotonic()
        self._prompt(tokens)
        return time.monotonic() - start

    def decode(self, prompt: Tokens, tokens: Tokens) -> float:
        self._peer.clear()
        self._prompt(prompt)
        rows = [tokens[i : i + 1] for i in range(len(tokens))]
        start = time.monotonic()
        for i, row in enumerate(rows):
            self._peer.decode(row, len(prompt) + i, first_output=0)
        return time.monotonic() - start

    def read_rate(self) -> float | None:
        return None


class OpenVinoSide:
    """OpenVINO GenAI's pipeline, which turns a GGUF file into a graph of its own.

    It cannot be told what to decode: it goes on greedily from the prompt, which is the same work.
    The clock is its own, around each inference, and so leaves its sampling out.
    """

    variants = ("default",)

    def __init__(self) -> None:
        import openvino
        import openvino_genai

        self._openvino, self._genai = openvino, openvino_genai
        self._pipeline: Any = None

    def describe(self) -> dict[str, str]:
        device = self._openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")
        return {"name": f"openvino-genai {version('openvino-genai')}", "system_info": device}

    def load(self, path: Path, n_threads: int, n_ctx: int) -> Loaded:
        del n_ctx  # its cache grows
        self._pipeline = None
        # By default it would keep the cells of a prompt and skip what it has seen before.
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 2**31 - 1
        self._pipeline = self._genai.LLMPipeline(
            str(path), "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=n_threads
        )
        return Loaded()

    def use(self, variant: str) -> None:
        del variant

    def _inferences(self, prompt: Tokens, n_generate: int) -> list[float]:
        """Seconds of the prompt, then of each token but the last, which nothing follows."""
        ids = prompt.astype(np.int64)[None]
        tensors = (self._openvino.Tensor(ids), self._openvino.Tensor(np.ones_like(ids)))
        config = self._genai.GenerationConfig(
            max_new_tokens=n_generate, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        result = self._pipeline.generate(self._genai.TokenizedInputs(*tensors), config)
        seconds = [us * 1e-6 for us in result.perf_metrics.raw_metrics.token_infer_durations]
        if len(seconds) != n_generate:
            raise RuntimeError(f"expected {n_generate} inferences, found {len(seconds)}")
        return seconds

    def prefill(self, tokens: Tokens) -> float:
        return self._inferences(tokens, 1)[0]

    def decode(self, prompt: Tokens, tokens: Tokens) -> float:
        return sum(self._inferences(prompt, 1 + len(tokens))[1:])

    def read_rate(self) -> float | None:
        return None


SIDES: dict[str, Callable[[], Side]] = {
    "pyflow": PyflowSide,
    "before": PyflowSide,  # another build of pyflow, in an environment of its own
    "llama.cpp": LlamaSide,
    "openvino": OpenVinoSide,
}


def answer(side: Side, request: dict[str, Any]) -> dict[str, Any]:
    """Runs one request."""
    match request["op"]:
        case "describe":
            return {**side.describe(), "variants": side.variants}
        case "load":
            path, n_threads = Path(request["path"]), request["n_threads"]
            return asdict(side.load(path, n_threads, request["n_ctx"]))
        case "prefill":
            side.use(request["variant"])
            return {"seconds": side.prefill(np.array(request["tokens"], np.int32))}
        case "decode":
            side.use(request["variant"])
            prompt = np.array(request["prompt"], np.int32)
            return {"seconds": side.decode(prompt, np.array(request["tokens"], np.int32))}
        case "read_rate":
            return {"bytes_per_second": side.read_rate()}
        case op:
            raise ValueError(f"no such request: {op}")


def main() -> None:
    # Whatever the libraries print goes to stderr: stdout carries answers only.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        side: Side | None = None
        for line in sys.stdin:
            try:
                if side is None:
                    side = SIDES[sys.argv[1]]()
                reply = answer(side, json.loads(line))
            except Exception as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
