"""Makes families/*.json: what other programs say of tiny models with random weights.

    python tests/golden/make_families.py [NAME ...]

hf_*.json through transformers and torch, from a folder with config.json and safetensors;
gguf_*.json through llama.cpp; own_invented.json from invented_twin.py. All in float32, llama.cpp
with a float32 cache. The environment holds transformers, torch, safetensors, gguf and
llama-cpp-python. The weights are those of tests/pyflow/specs/tiny.py, so a fixture holds none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1] / "pyflow/specs"))
import gguf_families
import hf_families
import tiny

TARGET = Path(__file__).parent / "families"
N_TOKENS, N_ROWS = 40, 6
LEAST_CHANGE = 0.05


def make_hf(name: str) -> dict[str, Any]:
    """transformers' logits; names and shapes are those that it saves."""
    import torch
    import transformers
    from safetensors import safe_open

    config = hf_families.CONFIGS[name]
    fixture = fixture_of(name, "hf", config["vocab_size"], hf_families.MORE.get(name, {}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        own = transformers.AutoConfig.for_model(**config)
        transformers.AutoModelForCausalLM.from_config(own).save_pretrained(path / "saved")
        with safe_open(path / "saved/model.safetensors", "numpy") as file:
            shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        saved = json.loads((path / "saved/config.json").read_text())
        fixture |= {"config": config, "saved": shortened(saved, config), "tensors": shapes}
        tiny.write_folder(path / "tiny", fixture)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            path / "tiny",
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
        if any(report.values()):
            raise RuntimeError(f"{name}: {report}")

    def logits(tokens: list[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            found: NDArray[np.float32] = model(torch.tensor([tokens])).logits[0].numpy()
            return found

    peer = f"transformers {transformers.__version__}, torch {torch.__version__}"
    return finished(fixture, peer, logits)


def make_invented(name: str) -> dict[str, Any]:
    """The logits of a model that is described by a spec of its own, in plain torch."""
    import torch
    from invented_twin import N_VOCAB, TENSORS, Twin

    fixture = fixture_of(name, "own", N_VOCAB, {"n_ctx": 60}) | {"tensors": TENSORS}
    tensors = {key: torch.from_numpy(value) for key, value in tiny.weights(fixture).items()}

    def logits(tokens: list[int]) -> NDArray[np.float32]:
        return Twin(tensors).logits(torch.tensor(tokens)).numpy()

    return finished(fixture, f"torch {torch.__version__}", logits)


def shortened(saved: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What transformers saves of a config, less what says nothing or is about training."""
    left_out = ("architectures", "dtype", "transformers_version", "initializer_range", "use_cache")
    return {
        key: value
        for key, value in saved.items()
        if key in config or not (value is None or key in left_out or "drop" in key)
    }


def make_gguf(name: str) -> dict[str, Any]:
    """llama.cpp's logits."""
    bench = str(Path(__file__).parents[2] / "bench")
    sys.path.append(bench)
    from llama_peer import LlamaPeer, PeerOptions, describe

    sys.path.remove(bench)  # bench/kernels.py looks to transformers like a library to use
    case = gguf_families.CASES[name]
    fixture = fixture_of(name, "gguf", gguf_families.N_VOCAB, case.more)
    fixture |= {"metadata": case.metadata, "tensors": case.tensors}
    options = PeerOptions(n_ctx=fixture.get("n_ctx", 64), n_threads=1, f32_cache=True)
    with tempfile.TemporaryDirectory() as folder:
        path = tiny.write(Path(folder), fixture)
        with LlamaPeer(path, options) as peer:

            def logits(tokens: list[int]) -> NDArray[np.float32]:
                peer.clear()
                return peer.decode(np.array(tokens, np.int32), 0, first_output=0).copy()

            return finished(fixture, describe()["name"], logits)


def fixture_of(name: str, kind: str, n_vocab: int, more: dict[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(len(name))
    n_tokens = more.get("n_tokens", N_TOKENS)
    rows = np.linspace(0, n_tokens - 1, N_ROWS).astype(int).tolist()
    return {
        "command": f"python tests/golden/make_families.py {kind}_{name}",
        "seed": sum(name.encode()),
        **more,
        "tokens": random.integers(1, n_vocab, n_tokens).tolist(),
        "rows": rows,
    }


def finished(fixture: dict[str, Any], peer: str, logits: Any) -> dict[str, Any]:
    """With the logits of some rows, and some proof that they depend on what is far away."""
    tokens = fixture["tokens"]
    found = logits(tokens)
    largest = np.abs(found).max()
    if not np.isfinite(found).all():
        raise RuntimeError("not finite")
    other = logits([*tokens[-2::-1], tokens[-1]])
    change = np.abs(other[-1] - found[-1]).max() / largest
    if change < LEAST_CHANGE:
        raise RuntimeError(f"the order of the tokens changes the logits by no more than {change}")
    rows = [[float(f"{x:.5g}") for x in found[row]] for row in fixture["rows"]]
    return {"peer": peer, **fixture, "logits": rows}


def text(fixture: dict[str, Any]) -> str:
    """JSON with one line for each key, and for each row of logits."""
    *head, (_, logits) = fixture.items()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head]
    rows = ",\n".join(f"  {json.dumps(row, separators=(',', ':'))}" for row in logits)
    return "{\n" + ",\n".join([*lines, f' "logits": [\n{rows}\n ]']) + "\n}\n"


def main() -> None:
    makers = {f"hf_{name}": (make_hf, name) for name in hf_families.CONFIGS}
    makers |= {f"gguf_{name}": (make_gguf, name) for name in gguf_families.CASES}
    makers["own_invented"] = (make_invented, "invented")
    for chosen in sys.argv[1:] or makers:
        make, name = makers[chosen]
        (TARGET / f"{chosen}.json").write_text(text(make(name)))
        print(chosen, flush=True)


if __name__ == "__main__":
    main()
