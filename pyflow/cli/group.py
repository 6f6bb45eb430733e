"""Commands below one name, and what goes with all that a command prints."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import click


@dataclass(slots=True)
class Told:
    """What goes with all that a command prints; the `obj` of its contexts."""

    json: bool = False
    """Whether it has printed JSON."""
    inexact: str = ""
    """The device whose results are not the CPU's, if one is in use."""


def of_command() -> Told | None:
    """That of the command that runs; None where none does."""
    context = click.get_current_context(silent=True)
    return context.obj if context is not None and isinstance(context.obj, Told) else None


def tell_inexact(device: str) -> None:
    """Has all that the command prints say that this device computes for it; "": none does."""
    if device and (told := of_command()):
        told.inexact = device


class PipeClosedError(Exception):
    """A BrokenPipeError, which click would otherwise turn into its own exit code."""


class Group(click.Group):
    """Commands below one name. The name alone prints help, or is a command itself."""

    def __init__(self, *, is_command: bool = False, **options: Any) -> None:
        super().__init__(invoke_without_command=True, **options)
        self._is_command = is_command

    def invoke(self, ctx: click.Context) -> object:
        try:
            found = super().invoke(ctx)
        except BrokenPipeError as error:
            raise PipeClosedError from error
        except click.UsageError as error:
            if error.ctx is None and ctx.invoked_subcommand:
                # An option of the subcommand lacks its value.
                error.ctx = click.Context(self, parent=ctx, info_name=ctx.invoked_subcommand)
            raise
        if ctx.invoked_subcommand is None and not self._is_command:
            click.echo(ctx.get_help())
        return found

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        names = self.list_commands(ctx)
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names)}"
            raise click.UsageError(f"no command is called {name!r}; {hint}", ctx)
        return super().get_command(ctx, name)
