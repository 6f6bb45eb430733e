"""One side of measure.py: a child process that loads a model, then runs what it is given.

    python bench/texts/sides.py SIDE

Requests and answers are lines of JSON. All sides get the same token ids; only the work on them is
timed, by CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Ids = Sequence[Sequence[int]]


class Side(Protocol):
    """load: a folder, or what this side needs in its place, and what it is called. run: vectors of
    texts, or how many tokens were written."""

    def load(self, path: str, n_threads: int) -> str: ...
    def run(self, texts: Ids, n_predict: int) -> Any: ...


class PyflowVectors:
    """Weights as they are, or in blocks."""

    def __init__(self, quantize: str | None = None) -> None:
        self._quantize = quantize

    def load(self, path: str, n_threads: int) -> str:
        import pyflow

        self._model = pyflow.load(path, n_threads=n_threads, quantize=self._quantize)
        return f"pyflow {self._quantize or 'as stored'}"

    def run(self, texts: Ids, n_predict: int) -> Any:
        from pyflow.embed.framing import Framed

        del n_predict
        framed = [Framed([*ids], [0] * len(ids), 0) for ids in texts]
        return self._model.encoder.vectors(framed)


class TorchVectors:
    """sentence-transformers."""

    def load(self, path: str, n_threads: int) -> str:
        import sentence_transformers
        import torch

        torch.set_num_threads(n_threads)
        self._torch = torch
        self._model = sentence_transformers.SentenceTransformer(path, device="cpu")
        return (
            f"sentence-transformers {version('sentence-transformers')}, torch {torch.__version__}"
        )

    def run(self, texts: Ids, n_predict: int) -> Any:
        del n_predict
        ids = self._torch.tensor([[*one] for one in texts])
        features = {"input_ids": ids, "attention_mask": self._torch.ones_like(ids)}
        with self._torch.inference_mode():
            return self._model(features)["sentence_embedding"].numpy()


class OnnxVectors:
    """onnxruntime, as fastembed runs it; the mean is taken by numpy. Needs a file of export.py."""

    def load(self, path: str, n_threads: int) -> str:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self._inputs = {one.name for one in self._session.get_inputs()}
        return f"onnxruntime {version('onnxruntime')}, {Path(path).stem}"

    def run(self, texts: Ids, n_predict: int) -> Any:
        del n_predict
        ids = np.array(texts, np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        fed = {name: values for name, values in given.items() if name in self._inputs}
        mean = self._session.run(None, fed)[0].mean(axis=1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)


class LlamaVectors:
    """llama.cpp, with a GGUF file of its converter."""

    def load(self, path: str, n_threads: int) -> str:
        import ctypes

        import llama_cpp

        self._library, self._n_threads = llama_cpp, n_threads
        self._quiet = llama_cpp.llama_log_callback(lambda _level, _text, _data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        self._context, self._most = None, (0, 0)
        return f"llama.cpp (llama-cpp-python {version('llama-cpp-python')}), {Path(path).stem}"

    def _open(self, n_tokens: int, n_texts: int) -> None:
        library = self._library
        if self._context is not None:
            library.llama_free(self._context)
        params = library.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_tokens
        params.n_seq_max = n_texts
        params.n_threads = params.n_threads_batch = self._n_threads
        params.embeddings, params.kv_unified = True, True
        params.pooling_type = library.LLAMA_POOLING_TYPE_MEAN
        self._context = library.llama_init_from_model(self._model, params)
        self._batch = library.llama_batch_init(n_tokens, 0, 1)
        self._most = (n_tokens, n_texts)

    def run(self, texts: Ids, n_predict: int) -> Any:
        del n_predict
        library, n_tokens = self._library, sum(map(len, texts))
        if (n_tokens, len(texts)) != self._most:
            self._open(n_tokens, len(texts))
        batch, at = self._batch, 0
        for seq, ids in enumerate(texts):
            for position, token in enumerate(ids):
                batch.token[at], batch.pos[at], batch.logits[at] = token, position, 1
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, seq
                at += 1
        batch.n_tokens = n_tokens
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        if library.llama_encode(self._context, batch):
            raise RuntimeError(f"llama_encode of {n_tokens} tokens failed")
        n_embd = library.llama_model_n_embd(self._model)
        rows = [
            np.ctypeslib.as_array(library.llama_get_embeddings_seq(self._context, i), (n_embd,))
            for i in range(len(texts))
        ]
        found = np.stack(rows)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


class PyflowTexts:
    """Greedy translation."""

    def load(self, path: str, n_threads: int) -> str:
        import pyflow

        self._model = pyflow.load(path, n_threads=n_threads)
        return f"pyflow, {Path(path).name}"

    def run(self, texts: Ids, n_predict: int) -> Any:
        from pyflow.sampling import SamplingParams

        greedy = SamplingParams(temperature=0)
        done = self._model.generate([[*ids] for ids in texts], n_predict=n_predict, sampling=greedy)
        return [one.tokens for one in done]


class CTranslate2Texts:
    """The same by CTranslate2, whose vocabulary says w17 for 17."""

    def load(self, path: str, n_threads: int) -> str:
        import ctranslate2

        self._model = ctranslate2.Translator(
            path, device="cpu", inter_threads=1, intra_threads=n_threads, compute_type="default"
        )
        return (
            f"CTranslate2 {ctranslate2.__version__}, {Path(path).name} ({self._model.compute_type})"
        )

    def run(self, texts: Ids, n_predict: int) -> Any:
        found = self._model.translate_batch(
            [[f"w{token}" for token in ids] for ids in texts],
            beam_size=1,
            max_decoding_length=n_predict,
            min_decoding_length=n_predict,
        )
        return [[int(token[1:]) for token in one.hypotheses[0]] for one in found]


SIDES: dict[str, Any] = {
    "pyflow": PyflowVectors,
    "pyflow-q8_0": lambda: PyflowVectors("q8_0"),
    "torch": TorchVectors,
    "onnx": OnnxVectors,
    "onnx-int8": OnnxVectors,
    "llama.cpp": LlamaVectors,
    "llama.cpp-q8_0": LlamaVectors,
    "pyflow-texts": PyflowTexts,
    "pyflow-texts-int8": PyflowTexts,
    "ctranslate2": CTranslate2Texts,
    "ctranslate2-int8": CTranslate2Texts,
}


def timed(side: Side, texts: Ids, n_predict: int, least_s: float) -> dict[str, Any]:
    """The median of calls that take `least_s` together, and what the first one gave."""
    result = side.run(texts, n_predict)
    seconds = []
    while sum(seconds) < least_s:
        start = time.monotonic()
        side.run(texts, n_predict)
        seconds.append(time.monotonic() - start)
    given = np.asarray(result).round(6).tolist()
    return {"seconds": statistics.median(seconds), "result": given}


def main() -> None:
    side: Side = SIDES[sys.argv[1]]()
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if request.pop("op") == "load":
                    answer: dict[str, Any] = {"name": side.load(**request)}
                else:
                    answer = timed(side, **request)
            except Exception as error:  # which the parent tells
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
