"""The same model with weights that lie on no quantization grid, to compare formats fairly.

usage: python bench/requantize/requantize.py IN OUT.gguf [--shuffle SEED] [--rotate SEED]
           [--type F16]

A file made from a Q4_1 one has all its weights on that grid, and a format with the same blocks
seems to lose nothing on them. --shuffle puts channels into a random order; --rotate turns the
residual stream by a random orthogonal matrix. Neither changes what the model computes. IN is a GGUF
file, a pulled model or a folder; docs/quantization.md says which families can be rotated. Needs
4 bytes of disk per weight meanwhile, twice that with both options or for a folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyflow.quant.convert import convert
from pyflow.quant.plan import Recipe
from rotate import check_rotates, rotate
from shuffle import check_shuffles, shuffle

from pyflow import catalogue, formats
from pyflow.errors import PyflowError
from pyflow.gguf_export import GgufModel, to_gguf

TYPES = ("F32", "F16", "BF16")


def requantize(
    source: str,
    target: Path,
    *,
    shuffle_seed: int | None = None,
    rotate_seed: int | None = None,
    type_name: str = "F16",
) -> None:
    """Writes the model `source` as target, a GGUF file, shuffled first and then rotated.

    UnsupportedError: a model whose channels cannot be moved, before anything is written.
    """
    checkpoint = formats.open(catalogue.resolve(source))
    model = checkpoint if checkpoint.format == "GGUF" else to_gguf(checkpoint)
    writers: list[tuple[Callable[..., None], int]] = []
    if shuffle_seed is not None:
        check_shuffles(model)
        writers.append((shuffle, shuffle_seed))
    if rotate_seed is not None:
        check_rotates(model)
        writers.append((rotate, rotate_seed))
    with tempfile.TemporaryDirectory(prefix=".f32.", dir=target.parent) as folder:
        latest = checkpoint.path
        if isinstance(model, GgufModel):
            latest = Path(folder) / "model.gguf"
            model.write(latest, Recipe("F32", allow_requantize=True))
        for write, seed in writers:
            following = Path(folder) / f"{write.__name__}d.gguf"
            write(latest, following, seed)
            if latest.parent == Path(folder):
                latest.unlink()
            latest = following
        convert(latest, target, Recipe(type_name, allow_requantize=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="IN")
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="put channels in random order")
    parser.add_argument("--rotate", type=int, metavar="SEED", help="turn the residual stream")
    parser.add_argument("--type", choices=TYPES, default="F16", help="of OUT (default: F16)")
    given = parser.parse_args(arguments)
    if given.shuffle is None and given.rotate is None:
        parser.error("expected --shuffle SEED, --rotate SEED or both")
    try:
        requantize(
            given.source,
            given.target,
            shuffle_seed=given.shuffle,
            rotate_seed=given.rotate,
            type_name=given.type,
        )
    except PyflowError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
