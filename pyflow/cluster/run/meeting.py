"""The handshake of members: a stage is shared only by those that have the same plan."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec

from pyflow import _core
from pyflow.errors import PyflowError

_HOST = "host"


def meet(link: _core.Link, plan: Mapping[str, object]) -> None:
    """The first thing that members do: waits until all are there. plan: what a member has that must
    be the same for all, by names for people.

    PyflowError, on the member that differs from member 0, for the first difference.
    """
    link.meet(b"")
    own = {name: str(value) for name, value in {_HOST: socket.gethostname(), **plan}.items()}
    if link.number == 0:
        link.say(msgspec.json.encode(own))
        return
    first = msgspec.json.decode(link.hear(), type=dict[str, str])
    for name, found in own.items():
        expected = first.get(name, "none")
        if name != _HOST and found != expected:
            raise PyflowError(
                f"member {link.number} on {own[_HOST]}: {name}: expected {expected}, as member 0 "
                f"on {first.get(_HOST, '?')} has, found {found}; give all ranks the same pyflow, "
                "model and options"
            )
