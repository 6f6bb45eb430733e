"""Models of a few thousand weights from a fixture: how it is written down, and what pyflow says.

A fixture, tests/golden/families/NAME.json, has the configuration, the names and shapes of all
tensors, a seed, tokens, and some rows of another program's logits. Weights are made here, from the
seed and a tensor's name alone, so that no file has to hold them; but those of a trained model are
in its fixture, in eight bits.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Fixture = dict[str, Any]
GAIN = 1.5


def weights(fixture: Fixture) -> dict[str, NDArray[np.float32]]:
    """The tensors by their names, float32."""
    if "trained" in fixture:
        return {
            name: restored(*fixture["trained"][name], shape)
            for name, shape in fixture["tensors"].items()
        }
    mean, gains = fixture.get("norm_mean", 1.0), fixture.get("gains", {})
    found = {}
    for name, shape in fixture["tensors"].items():
        gain = next((gain for part, gain in gains.items() if part in name), 1.0)
        found[name] = weight(fixture["seed"], name, shape, mean) * np.float32(gain)
    return found


def kept(values: NDArray[np.float32]) -> tuple[float, str]:
    """Trained values for a fixture: a scale, and bytes in base64."""
    scale = float(np.abs(values).max()) / 127 or 1.0
    return scale, base64.b64encode(np.rint(values / scale).astype(np.int8).tobytes()).decode()


def restored(scale: float, values: str, shape: list[int]) -> NDArray[np.float32]:
    """What `kept` has kept."""
    read = np.frombuffer(base64.b64decode(values), np.int8).reshape(shape)
    return read.astype(np.float32) * np.float32(scale)


def weight(seed: int, name: str, shape: list[int], norm_mean: float) -> NDArray[np.float32]:
    """Matrices of std `GAIN / sqrt(columns)`, vectors of 0.2, those of norms around norm_mean.

    Uniform, by the generator's raw bits, which unlike its draws are the same in all of numpy.
    """
    raw = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(int(np.prod(shape)))
    uniform = ((raw >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1) * np.sqrt(3)
    values = uniform.reshape(shape)
    if len(shape) > 1 and "norm" not in name:
        return (values * GAIN / np.sqrt(shape[-1])).astype(np.float32)
    is_norm = not name.endswith("bias")
    return (values * 0.2 + (norm_mean if is_norm else 0.0)).astype(np.float32)


def write_fixtures(target: Path, names: Iterable[str], make: Callable[[str], Fixture]) -> None:
    """Writes NAME.json each, a line for each key."""
    for name in names:
        lines = [
            f" {json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}"
            for key, value in make(name).items()
        ]
        (target / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, flush=True)


def write_folder(
    folder: Path, fixture: Fixture, rename: Callable[[str], str] = lambda name: name
) -> Path:
    """A folder as hubs have them; without a config.json where the fixture has none."""
    import safetensors.numpy

    folder.mkdir(exist_ok=True)
    if "config" in fixture:
        (folder / "config.json").write_text(json.dumps(fixture["config"]))
    tensors = {rename(name): values for name, values in weights(fixture).items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_gguf(
    path: Path, fixture: Fixture, tensors: Mapping[str, NDArray[Any]] | None = None
) -> Path:
    """A GGUF file, without a vocabulary; of the fixture's tensors if there are no others. Bytes are
    blocks of Q8_0."""
    import gguf

    architecture = fixture["metadata"]["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in fixture["metadata"].items():
        if key == "general.architecture":
            continue
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_int32 if value < 0 else writer.add_uint32)(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, values in (weights(fixture) if tensors is None else tensors).items():
        raw = gguf.GGMLQuantizationType.Q8_0 if values.dtype == np.uint8 else None
        writer.add_tensor(name, np.ascontiguousarray(values), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write(folder: Path, fixture: Fixture) -> Path:
    """The checkpoint of a fixture in a folder of its own."""
    folder.mkdir(exist_ok=True)
    if "metadata" in fixture:
        return write_gguf(folder / "model.gguf", fixture)
    return write_folder(folder, fixture)
