"""Members get each other's bytes over every link, whoever comes first; nobody waits for ever."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyflow import _core
from pyflow.errors import LinkError, ResourceError, ShapeError


def shared(n: int) -> list[_core.Link]:
    fd = os.memfd_create("board")
    os.ftruncate(fd, _core.Link.shared_nbytes(n))
    links = [_core.Link.shared(fd, m, n) for m in range(n)]
    os.close(fd)
    return links


def sockets(n: int) -> list[_core.Link]:
    ends = [[-1] * n for _ in range(n)]
    for a in range(n):
        for b in range(a):
            one, other = socket.socketpair()
            ends[a][b], ends[b][a] = one.detach(), other.detach()
    return [_core.Link.sockets(ends[m], m) for m in range(n)]


def tcp(n: int) -> list[_core.Link]:
    ends = [[-1] * n for _ in range(n)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for a in range(n):
            for b in range(a):
                one = socket.create_connection(server.getsockname())
                ends[a][b], ends[b][a] = one.detach(), server.accept()[0].detach()
    return [_core.Link.sockets(ends[m], m) for m in range(n)]


Make = Callable[[int], list[_core.Link]]
KINDS = [_core.Link.threads, shared, sockets, tcp]


@pytest.fixture(params=KINDS, ids=["threads", "shared", "sockets", "tcp"])
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def each(links: list[_core.Link], call: Callable[[_core.Link], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(links)) as threads:
        return list(threads.map(call, links))


@pytest.mark.parametrize("n", [2, 3, 5])
def test_all_hear_what_the_first_says_in_its_order(make: Make, n: int) -> None:
    sizes = [0, 1, 24, 65_535, 65_536, 65_537, 300_001, 7]
    texts = [random.Random(size).randbytes(size) for size in sizes]

    def talk(link: _core.Link) -> list[bytes]:
        rng, heard = random.Random(link.number), []
        link.meet(b"a plan")
        for i, text in enumerate(texts):
            time.sleep(rng.choice([0, 0, 0.001, 0.004]))  # who comes first differs
            if link.number == 0:
                link.say(text)
                heard.append(text)
            else:
                heard.append(link.hear())
            assert link.agree(i % 2 == 1 if link.number == 0 else i % 2 == 0) == (i % 2 == 1)
        return heard

    assert each(make(n), talk) == [texts] * n


def caught(call: Callable[[], object]) -> str:
    with pytest.raises(LinkError) as error:
        call()
    return str(error.value)


def test_members_with_other_plans_or_other_calls_do_not_go_on(make: Make) -> None:
    def other_plan(link: _core.Link) -> str:
        return caught(lambda: link.meet(bytes([link.number])))

    errors = each(make(2), other_plan)
    assert all("has another plan" in error for error in errors)

    def differ(link: _core.Link) -> str:
        return caught(lambda: link.agree(True) if link.number else link.meet(b""))

    errors = each(make(2), differ)
    assert any("run the same pyflow" in error for error in errors)


def test_nobody_waits_for_a_member_that_has_ended(make: Make) -> None:
    links = make(3)
    links.pop()
    errors = each(links, lambda link: caught(lambda: link.agree(True)))
    assert all(re.search(r"member \d (has ended|cannot be reached)", error) for error in errors)


def test_waiting_ends_at_the_deadline_or_when_aborted(make: Make) -> None:
    links = make(2)
    links[0].set_deadline(30)
    assert "has not answered for 30 ms" in caught(lambda: links[0].agree(True))
    assert "has not answered" in caught(lambda: links[0].agree(True))  # at once, from then on

    links = make(2)
    timer = threading.Timer(0.02, links[1].abort)
    timer.start()
    assert re.search("closed|has ended", caught(links[1].hear))
    timer.join()


def test_links_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ShapeError):
        _core.Link.threads(0)
    with pytest.raises(ShapeError):
        _core.Link.sockets([-1, -1], 2)
    fd = os.memfd_create("small")
    with pytest.raises(ResourceError):
        _core.Link.shared(fd, 0, 2)
    os.close(fd)
