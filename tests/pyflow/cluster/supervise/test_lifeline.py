"""Who a rank takes for its supervisor."""

from __future__ import annotations

import os
import secrets
import socket

import pytest

from pyflow.cluster.supervise.lifeline import RankReporter, address, own_process


def test_whoever_is_at_the_other_end_is_known() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        assert own_process(here) == os.getpid()


def test_another_user_s_process_is_no_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    name = secrets.token_hex(16)
    lifeline = RankReporter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address(name))
        listener.listen()
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        with pytest.raises(PermissionError, match=rf"{user + 1}.*{user}"):
            lifeline.join(name, 0)
    assert not lifeline.is_joined


def test_a_supervisor_that_has_gone_is_told() -> None:
    with pytest.raises(ConnectionRefusedError):
        RankReporter().join(secrets.token_hex(16), 0)
