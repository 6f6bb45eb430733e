"""`pyflow inspect`: what is in a model file."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np

from pyflow import _core, catalogue, formats
from pyflow.cli.options import model
from pyflow.cli.options.groups import as_json, flag, ruled
from pyflow.cli.options.rules import Rule
from pyflow.cli.options.run import RunOptions, adapters, run_options
from pyflow.cli.terminal.output import describe, error_object, print_json
from pyflow.errors import FormatError, UnsupportedError
from pyflow.text import printable

# The items of an array and the characters of a text that are shown.
_ITEMS = 4
_CHARS = 60
_OF_MEMORY = (
    *("-c", "--numa", "--quantize", "--override-kv", "--lora"),
    *("--gpu-layers", "--rope-freq-base", "--rope-scaling", "--rope-scale", "--yarn-orig-ctx"),
)
# Bytes of a MemoryPlan.
_OF_DEVICE = ("device", "device_available")
_NEEDS = ("weights", "kv", "scratch", "tokenizer", "total", "available")


@click.command("inspect")
@click.argument("file", metavar="FILE|DIR", callback=model.offered)
@flag("--memory", "Show the memory that it takes to run, and whether that fits.")
@run_options(
    *(model.ctx_size, model.cache_type, model.numa, model.quantize, model.overrides),
    *(model.offload, adapters),
)
@ruled(*(Rule(option, needs=["--memory"]) for option in _OF_MEMORY))
@as_json
def command(*, file: str, memory: bool, run: RunOptions, as_json: bool) -> None:
    """Show what is in FILE (GGUF, safetensors, PyTorch, llama2.c, or an index.json of shards), in
    the checkpoint of the folder DIR, or in a pulled model by its name.

    No code of the file is run. For a PyTorch file it also shows the globals that its pickle asks
    for, even if the file is refused for one of them.

    Without --memory: metadata and tensors, also of types that this build cannot run. With it: the
    memory that the model and a context of -c tokens take. Nothing is loaded.
    """
    path = _locate(file)
    try:
        checkpoint = formats.open(path)
    except (FormatError, UnsupportedError) as error:
        _show_globals(path, error, as_json)
        raise
    if memory:
        from pyflow.engine.model_files import can_quantize

        result = _memory(checkpoint, run)
        offer_quantize = run.quantize is None and can_quantize(checkpoint)
    else:
        result = _contents(checkpoint)
    if as_json:
        print_json({"path": str(checkpoint.path), **result})
    elif memory:
        _print_memory(result, can_quantize=offer_quantize)
    else:
        _print_contents(str(checkpoint.path), result)


def _locate(file: str) -> Path:
    try:
        return catalogue.resolve(file)
    except FormatError:
        if file and Path(file).is_dir():
            return Path(file)
        raise


def _show_globals(path: Path, why: Exception, as_json: bool) -> None:
    """Shows the globals of a refused file's pickle, if it has one."""
    if not path.is_file() or not formats.has_pickle(path):
        return
    names, error = _core.pickle_globals(path)
    if as_json:
        told = {"path": str(path), "globals": _globals(names), "refused": error}
        print_json({"error": error_object(why, describe(why)), **told})
    else:
        _print_globals(names)


def _globals(names: list[tuple[str, bool, bool]]) -> list[dict[str, Any]]:
    return [{"name": name, "known": known, "runs_code": runs} for name, known, runs in names]


def _print_globals(names: list[tuple[str, bool, bool]]) -> None:
    click.echo("globals that the pickle asks for (none was imported or called)")
    for name, known, runs_code in names:
        why = "it could run code" if runs_code else "not on the list of what a checkpoint needs"
        click.echo(f"  {printable(name)}{'' if known else f'  (refused: {why})'}")


def _memory(checkpoint: formats.Checkpoint, run: RunOptions) -> dict[str, Any]:
    from pyflow.engine.loaded import plan
    from pyflow.engine.model_files import open_checkpoint
    from pyflow.specs import build_spec

    spec = build_spec(open_checkpoint(checkpoint.path, overrides=run.overrides))
    n_ctx = model.context_size(run.n_ctx, spec.n_ctx_train)
    needs = plan(
        checkpoint.path,
        n_ctx=n_ctx,
        cache_type=run.cache_type,
        numa=run.numa,
        quantize=run.quantize,
        overrides=run.overrides,
        offload=run.offload,
        adapters=run.adapters,
    )
    names = [*_NEEDS, *(_OF_DEVICE if run.offload else ())]
    if run.adapters:
        names.insert(names.index("total"), "adapters")
    told = {name: getattr(needs, name) for name in (*names, "fits")}
    if run.offload:
        told |= {"gpu_layers": needs.gpu_layers, "gpu_experts": needs.gpu_experts}
        told["devices"] = [
            {
                "number": part.device.number,
                "name": part.device.name,
                "layers": part.n_layers,
                "nbytes": part.nbytes,
                "available": part.available,
            }
            for part in needs.devices
        ]
    return told


def _print_memory(needs: dict[str, Any], *, can_quantize: bool) -> None:
    for name in [name for name in needs if name in (*_NEEDS, *_OF_DEVICE, "adapters")]:
        click.echo(f"{name:<16} {needs[name]:>16,} bytes {_mebibytes(needs[name]):>12}")
    for part in needs.get("devices", ()):
        click.echo(
            f"gpu {part['number']} ({part['name']}): {part['layers']} layers, {part['nbytes']:,} of"
            f" {part['available']:,} bytes"
        )
    too_full = [p["number"] for p in needs.get("devices", ()) if p["nbytes"] > p["available"]]
    if needs["fits"]:
        click.echo("it fits")
    elif too_full:
        click.echo(f"it does not fit into gpu {too_full[0]}: take fewer --gpu-layers")
    elif needs["weights"] + needs["tokenizer"] > needs["available"]:
        fewer = "--quantize q8_0 or fewer bits, or " if can_quantize else ""
        click.echo(f"it does not fit, whatever the context: take {fewer}a smaller model")
    else:
        click.echo("it does not fit: take a smaller -c or --cache-type q8_0")


def _contents(checkpoint: formats.Checkpoint) -> dict[str, Any]:
    tensors = [
        {
            "name": t.name,
            "type": t.dtype,
            "supported": t.supported,
            "shape": list(t.shape),
            "strides": list(t.strides),
            "contiguous": t.contiguous,
            "made": t.made,
            "compact": t.compact,
            "nbytes": t.nbytes,
            "file": Path(t.source).name,
            "offset": t.offset,
        }
        for t in checkpoint.tensors
    ]
    native = checkpoint.native
    version = {"version": native.version} if isinstance(native, _core.GgufFile) else {}
    asked = {"globals": _globals(native.globals)} if isinstance(native, _core.TorchFile) else {}
    return {
        "format": checkpoint.format,
        **version,
        "files": [Path(file).name for file in native.files],
        "nbytes": checkpoint.nbytes,
        "n_params": sum(math.prod(t.shape) for t in checkpoint.tensors),
        "types": dict(Counter(t.dtype for t in checkpoint.tensors)),
        **asked,
        "metadata": {key: _plain(value) for key, value in checkpoint.metadata.items()},
        "tensors": tensors,
    }


def _plain(value: Any) -> Any:
    """A value as JSON can hold it, long arrays by their length and first items."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        items = [_plain(item) for item in value[:_ITEMS]]
        return items if len(value) <= _ITEMS else {"length": len(value), "first": items}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _print_contents(path: str, contents: dict[str, Any]) -> None:
    version = f" version {contents['version']}" if "version" in contents else ""
    files = f" in {len(contents['files'])} files" if len(contents["files"]) > 1 else ""
    click.echo(f"{path}: {contents['format']}{version}, {contents['nbytes']:,} bytes{files}")
    click.echo(
        f"{contents['n_params']:,} parameters in {len(contents['tensors'])} tensors: ", nl=False
    )
    click.echo(", ".join(f"{n} of {kind}" for kind, n in contents["types"].items()))
    click.echo("\nmetadata")
    metadata = [(_text(key), _text(value)) for key, value in contents["metadata"].items()]
    width = max((len(key) for key, _ in metadata), default=0)
    for key, value in metadata:
        click.echo(f"  {key:<{width}}  {value}")
    if "globals" in contents:
        click.echo()
        _print_globals([(g["name"], g["known"], g["runs_code"]) for g in contents["globals"]])
    click.echo("\ntensors")
    names = [_text(t["name"]) for t in contents["tensors"]]
    width = max(map(len, names), default=0)
    for name, t in zip(names, contents["tensors"], strict=True):
        shape = " x ".join(map(str, t["shape"])) or "scalar"
        note = "" if t["supported"] else "  (this build cannot run this type)"
        note += "" if t["contiguous"] else f"  strides {' x '.join(map(str, t['strides']))}"
        note += "  made of other tensors" if t["made"] else ""
        note += f"; {t['compact']} in products" if t["compact"] else ""
        click.echo(f"  {name:<{width}}  {t['type']:<8} {shape:<16} {t['nbytes']:>13,}{note}")


def _text(value: Any) -> str:
    """One line for the screen."""
    if isinstance(value, dict):
        first = ", ".join(_text(item) for item in value["first"])
        return f"[{first}, ...] ({value['length']:,} items)"
    text = value if isinstance(value, str) else json.dumps(value)
    text = text if len(text) <= _CHARS else f"{text[:_CHARS]}... ({len(text):,} characters)"
    return printable(text)


def _mebibytes(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
