"""lm-eval finds over HTTP what the model says directly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyflow.batch.batch import Batch
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request, View
from pyflow.model import Model
from pyflow.sampling import SamplingParams
from tests.conftest import Import
from tests.pyflow.serve.conftest import Server

DATA = Path(__file__).parent / "data"
N_CTX = 256


def evaluate(server: Server, folder: Path, n_at_once: int) -> dict[str, list[tuple[Any, Any]]]:
    """What lm-eval asked for and what it made of the answers, by task."""
    offline = {name: "1" for name in ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE")}
    how = f"model=smollm2,base_url={server.serving.url}/v1/completions,max_length={N_CTX}"
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
    command += ["--model_args", how, "--include_path", str(DATA)]
    command += ["--tasks", "pyflow_choices", "pyflow_answers"]
    command += ["--batch_size", str(n_at_once), "--log_samples", "--output_path", str(folder)]
    environment = os.environ | offline | {"HF_HOME": str(folder / "home")}
    done = subprocess.run(
        command, cwd=DATA, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[tuple[Any, Any]]] = {}
    for task in ("choices", "answers"):
        (path,) = folder.rglob(f"samples_pyflow_{task}_*.jsonl")
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        found[task] = [
            ([*sample["arguments"][f"gen_args_{i}"].values()], answer)
            for sample in samples
            for i, (answer,) in enumerate(sample["resps"])
        ]
    return found


def direct(model: Model, tokens: list[int]) -> NDArray[np.float64]:
    """Log-probabilities of the tokens after the first, as a batch reports them."""
    runner = LocalRunner(model.context(N_CTX))
    with Batch(runner, model) as batch:
        sampling = SamplingParams(seed=0)
        batch.add(
            Request(view=View(tokens), sampling=sampling, limit=N_CTX, n_predict=0, n_report=1)
        )
        while batch.is_busy:
            for event in batch.step():
                done = event.completion
    runner.close()
    assert done is not None
    assert done.prompt_logprobs is not None
    return np.array([each.logprob for each in done.prompt_logprobs])


def check_choices(model: Model, found: list[tuple[Any, Any]]) -> None:
    tokenizer, greedy, n_ends, has_bytes = model.tokenizer, set(), 0, False

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=True)

    for (context, choice), (logprob, is_greedy) in found:
        # Space at the end of a context belongs to the choice; something must stand before it.
        before = encode(context.rstrip()) or [tokenizer.bos_id]
        whole, n = encode(context + choice) if context else before + encode(choice), len(before)
        expected = direct(model, whole)[n - 1 :]
        assert float(logprob) == pytest.approx(sum(expected), rel=0, abs=1e-12)
        with model.context(N_CTX) as scoring:
            scores = scoring.score(whole)[n - 1 :]
        # Context.score adds exponentials of float32, a batch those of double.
        np.testing.assert_allclose(expected, scores, rtol=0, atol=2e-8)
        best = model.logits(whole).argmax(axis=1)
        assert (str(is_greedy) == "True") == (best[n - 1 : -1].tolist() == whole[n:])
        greedy.add(str(is_greedy))
        n_ends += best[-1] in tokenizer.stop_ids
        has_bytes |= any(b"\x80" <= tokenizer.token_bytes(token) < b"\xc0" for token in whole[n:])
    assert greedy == {"True", "False"}
    assert n_ends > 0  # drawn after a choice, and left out by lm-eval
    assert has_bytes


def check_answers(model: Model, found: list[tuple[Any, Any]]) -> None:
    reasons = set()
    for (context, _), answer in found:
        ids = model.tokenizer.encode(context, add_special=False, parse_special=True)
        how: Any = {"n_predict": 24, "stop": ["\n\n", "<|im_end|>"], "n_ctx": N_CTX}
        done = model.generate(ids, **how, sampling=SamplingParams(temperature=0))
        assert answer == done.text
        reasons.add(done.stop_reason)
    assert {"eos", "length", "stop"} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("n_at_once", [1, 8])
def test_lm_eval_finds_what_the_model_says(
    client: Import, server: Server, smollm2: Model, tmp_path: Path, n_at_once: int
) -> None:
    client("lm_eval")
    found = evaluate(server, tmp_path, n_at_once)
    check_choices(smollm2, found["choices"])
    check_answers(smollm2, found["answers"])
