"""The file or folder that a command writes, checked before any work is done."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import click

from pyflow.errors import PyflowError


class Name(click.Path):
    """A path; refuses an empty one, which would be the current folder, and -."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("expected a name, found none", param, ctx)
        if value == "-":
            self.fail("expected a name, found '-', which stands for a stream", param, ctx)
        return super().convert(value, param, ctx)


def named(ctx: click.Context, param: click.Parameter, value: str) -> Path:
    """OUT as it was given; refuses an empty name, and a .gguf file with a slash at its end."""
    if not value:
        raise click.BadParameter("expected a name, found none", ctx, param)
    if value.endswith("/") and Path(value).suffix.lower() == ".gguf":
        raise click.BadParameter(
            f"expected {value.rstrip('/')!r} for a file, or for a folder another name than "
            f"{value!r}",
            ctx,
            param,
        )
    return Path(value)


def check(
    target: Path, sources: Iterable[str | Path], *, force: bool, as_folder: bool = False
) -> None:
    """Refuses a target that cannot be written.

    It is one of the sources (- is standard input) by any name; it exists and `force` is not given,
    or is no file or folder as required, or a folder with files that quantize did not write; its
    parent does not exist or is read-only; or it is just ".gguf".
    """
    kind = "folder" if as_folder else "file"
    if str(target) == "-":
        raise click.UsageError(f"OUT: expected the name of a {kind}, found '-'; name one")
    if target.name.lower() == ".gguf":
        raise PyflowError(
            f"{target}: expected a name before .gguf, for a file, or another one, for a folder"
        )
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise PyflowError(f"{target}: there is no folder {target.parent}; make it first")
        _check_writable(target)
        return
    there = _stat(target)
    found = [stat for stat in map(_stat, sources) if stat is not None]
    if there is not None and any(os.path.samestat(there, stat) for stat in found):
        raise PyflowError(f"{target}: expected a {kind} other than the source; give another name")
    if not (target.is_dir() if as_folder else target.is_file()):
        raise PyflowError(
            f"{target}: is there and is no {kind} that could be replaced; give another name"
        )
    if as_folder:
        from pyflow.quant.folder import own_files

        own_files(target)
    if not force:
        raise PyflowError(f"{target}: is there already; --force replaces it")
    _check_writable(target)


def _check_writable(target: Path) -> None:
    """OSError: no file can be made beside the target."""
    from pyflow.formats.replacing import naming

    with naming(target), tempfile.TemporaryFile(dir=target.parent):
        pass


def _stat(source: str | Path) -> os.stat_result | None:
    """None: no file, such as a text that a test passes as standard input."""
    try:
        return os.fstat(sys.stdin.fileno()) if str(source) == "-" else Path(source).stat()
    except OSError:
        return None
