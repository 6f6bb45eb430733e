"""The KV cache against a plain model of it: cells with a position and a set of sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyflow_testing
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyflow.errors import ShapeError

from .kv_reference import END, Reference, Row

pytestmark = pytest.mark.slow

HEADS, DIM = 2, 16


def turn(layer: int, k: np.ndarray, delta: int) -> None:
    """The first key of each head stands for the position that the keys were turned to."""
    assert layer >= 0
    k[:, 0] += delta


def content(token: int, position: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values that f16 holds exactly and that name their token and position."""
    k = (np.arange(HEADS * DIM).reshape(HEADS, DIM) * 5 + token) % 2048
    k[:, 0] = position
    return k, (np.arange(HEADS * DIM).reshape(HEADS, DIM) + 3 * token) % 2048


class Store:
    """A layer's keys and values by slot."""

    def __init__(self, cache: Any, layer: int) -> None:
        self.k = cache.keys(layer).view(np.float16).reshape(-1, HEADS, DIM, 16)
        self.v = cache.values(layer).view(np.float16).reshape(-1, HEADS, DIM)

    def write(self, slot: int, token: int, position: int) -> None:
        self.k[slot // 16, :, :, slot % 16], self.v[slot] = content(token, position)

    def token(self, slot: int, position: int) -> int:
        """The token whose keys, turned to `position`, and values lie there, whole."""
        token = (int(self.k[slot // 16, 0, 1, slot % 16]) - 5) % 2048
        k, v = content(token, position)
        assert (self.k[slot // 16, :, :, slot % 16] == k).all()
        assert (self.v[slot] == v).all()
        return token


def make(windows: list[int], n_ctx: int, n_seq_max: int, n_batch: int, **kwargs: Any) -> Any:
    layers = [(HEADS, DIM, DIM, w) for w in windows]
    return pyflow_testing.KvCache(layers, "f16", n_ctx, n_seq_max, n_batch, **kwargs)


SEQUENCES = {1: [0], 3: [0, 1, 2], 256: [0, 255, 63, 64]}
ENDINGS = ["commit", "commit", "path", "abort"]
REMOVALS = [*["end", "start", "range"] * 3, "others", "all"]
positions = st.integers(-1, 30)


class KvMachine(RuleBasedStateMachine):
    @initialize(
        windows=st.lists(st.sampled_from([0, 1, 2, 5, 13]), min_size=1, max_size=4),
        n_ctx=st.sampled_from([7, 30, 100]),
        n_seq_max=st.sampled_from([1, 3, 3, 256]),
        n_batch=st.sampled_from([1, 4, 9]),
    )
    def start(self, windows: list[int], n_ctx: int, n_seq_max: int, n_batch: int) -> None:
        self.ids, self.n_batch = SEQUENCES[n_seq_max], n_batch
        self.cache = make(windows, n_ctx, n_seq_max, n_batch, rotate=turn)
        groups = [(window, capacity) for window, capacity, _ in self.cache.groups()]
        assert [w for w, _ in groups] == sorted(set(windows), key=lambda w: (w != 0, -w))
        self.stores = [Store(self.cache, layer) for layer in range(len(windows))]
        self.model = Reference(groups, n_batch)
        self.n_tokens = 0

    def attempt(self, due: set[type], call: Callable[[], Any]) -> bool:
        """Whether the call went through, as it should if no error is due."""
        if not due:
            call()
            return True
        with pytest.raises(tuple(due)):
            call()
        return False

    def range_of(self, p0: int, p1: int) -> range:
        return range(max(p0, 0), END if p1 < 0 else p1)

    def step(self, rows: list[Row], data: st.DataObject, seq: int, ending: str = "") -> bool:
        due = self.model.why_not_begin(rows)
        if not self.attempt(due, lambda: self.cache.begin(rows)):
            return False
        tokens = [(self.n_tokens + i) % 2048 for i in range(len(rows))]
        self.n_tokens += len(rows)
        self.model.begin(rows, tokens)
        for layer, store in enumerate(self.stores):
            slots = self.cache.slots(layer)
            for slot, token, (p, _) in zip(slots, tokens, rows, strict=True):
                store.write(slot, token, p)
        self.check_views()
        self.cache.check()
        ending = ending or data.draw(st.sampled_from(ENDINGS), "ending")
        if ending == "commit":
            self.cache.commit()
            self.model.finish(self.model.pending)
        elif ending == "abort":
            self.cache.abort()
            self.model.finish([])
        else:
            self.commit_path(rows, data, seq)
        assert self.cache.slots(0) == self.cache.views(0) == []
        return True

    def commit_path(self, rows: list[Row], data: st.DataObject, seq: int) -> None:
        chosen = data.draw(st.sets(st.sampled_from(range(len(rows)))), "accepted")
        path = sorted(chosen, key=lambda i: rows[i][0])
        where = [rows[i][0] for i in path]
        clash = len(set(where)) < len(where) or self.model.positions(seq) & set(where)
        accepted = [(i, seq) for i in path]
        if not self.attempt({ShapeError} if clash else set(), lambda: self.cache.commit(accepted)):
            self.check_views()  # still pending
            self.cache.abort()
            path = []
        kept = [self.model.pending[i] for i in path]
        for c in kept:
            c.sequences = {seq}
        self.model.finish(kept)

    def check_views(self) -> None:
        by_window: dict[int, list[list[tuple[int, int]]]] = {}
        for layer, store in enumerate(self.stores):
            group = self.model.groups[self.cache.group_of(layer)]
            seen = []
            views = self.cache.views(layer)
            for row, (where, slots) in zip(self.model.pending, views, strict=True):
                seen.append([(p, store.token(s, p)) for p, s in zip(where, slots, strict=True)])
                assert seen[-1] == self.model.sees(group, row)
            by_window[group.window] = seen
        # What a ring holds is what a full cache shows through the mask.
        for window, seen in by_window.items() if 0 in by_window else []:
            for row, full, ring in zip(self.model.pending, by_window[0], seen, strict=True):
                reach = row.position - window if window else -1
                assert ring == [(q, token) for q, token in full if q > reach]

    @rule(data=st.data(), n=st.integers(1, 3), gap=st.sampled_from([0, 0, 0, 3]))
    def write(self, data: st.DataObject, n: int, gap: int) -> None:
        """One sequence's text goes on for several steps."""
        s = data.draw(st.sampled_from(self.ids))
        for _ in range(6):
            start = self.model.groups[0].end(s) + gap
            if not self.step([(start + i, [s]) for i in range(n)], data, s, "commit"):
                break
            gap = 0

    @rule(data=st.data(), n=st.integers(1, 10), gap=st.sampled_from([0, 0, 0, 1, 6]))
    def extend(self, data: st.DataObject, n: int, gap: int) -> None:
        """Text goes on, in one sequence or several at once."""
        chosen = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, unique=True), "who")
        starts = {s: self.model.groups[0].end(s) + gap for s in chosen}
        rows = [(starts[s] + i, [s]) for s in chosen for i in range(n)][: self.n_batch + 1]
        if data.draw(st.booleans(), "interleaved"):
            rows = data.draw(st.permutations(rows), "rows")
        self.step(rows, data, chosen[0])

    @rule(data=st.data())
    def scatter(self, data: st.DataObject) -> None:
        """Rows anywhere, of any sequences."""
        who = st.lists(st.sampled_from(self.ids), min_size=1, unique=True)
        row = st.tuples(st.integers(0, 30), who)
        rows = data.draw(st.lists(row, max_size=5), "rows")
        self.step(rows, data, self.ids[0])

    @rule(data=st.data(), n_stages=st.integers(1, 3))
    def drafted_tree(self, data: st.DataObject, n_stages: int) -> None:
        """Trees below the ends of some sequences grow for a while; of each a path is kept."""
        seqs = data.draw(st.lists(st.sampled_from(self.ids), min_size=1, max_size=2, unique=True))
        rows: list[Row] = []
        parents: list[int] = []
        for stage in range(n_stages):
            more = [(self.model.groups[0].end(s), [s]) for s in seqs if stage == 0]
            their = [-1] * len(more)
            for _ in range(data.draw(st.integers(stage > 0, 4), "nodes")):
                parent = data.draw(st.integers(0, len(rows) + len(more) - 1), "parent")
                p, s = (rows + more)[parent]
                more.append((p + 1, s))
                their.append(parent)
            due = self.model.why_not_grow(more)
            if not self.attempt(due, lambda m=more, t=their: self.cache.grow(m, t)):  # type: ignore[misc]
                break
            tokens = [(self.n_tokens + i) % 2048 for i in range(len(more))]
            self.n_tokens += len(more)
            self.model.grow(more, their, tokens)
            for layer, store in enumerate(self.stores):
                slots = self.cache.slots(layer)[len(rows) :]
                for slot, token, (p, _) in zip(slots, tokens, more, strict=True):
                    store.write(slot, token, p)
            rows, parents = rows + more, parents + their
            self.check_views()
            self.cache.check()
        if not rows:
            return
        path: list[int] = []
        for root in range(len(seqs)):
            node = data.draw(st.integers(0, len(rows) - 1), "leaf")
            way = []
            while node >= 0:
                way.append(node)
                node = parents[node]
            path += way[::-1] if way[-1] == root else []
        kept = [self.model.pending[i] for i in path]
        if path or data.draw(st.booleans(), "commit nothing"):
            self.cache.commit([(i, rows[i][1][0]) for i in path])
        else:
            self.cache.abort()
        self.model.finish(kept)

    @rule(data=st.data(), n=st.integers(1, 9))
    def tree(self, data: st.DataObject, n: int) -> None:
        """Branches share a sequence's text; each runs through the ancestors of a node."""
        seq, *branches = data.draw(st.permutations(self.ids), "root and branches")
        for b in branches:
            self.cache.seq_rm(b, 0, -1)
            self.model.rm(b, range(END))
            self.cache.seq_cp(seq, b, 0, -1)
            self.model.cp(seq, b, range(END))
        parents = [data.draw(st.integers(-1, i - 1), "parent") for i in range(n)]
        members: list[list[int]] = [[] for _ in range(n)]
        for b in [seq, *branches]:
            node = data.draw(st.integers(0, n - 1), "leaf")
            while node >= 0:
                members[node].append(b)
                node = parents[node]
        at: list[int] = []
        for parent in parents:
            at.append(at[parent] + 1 if parent >= 0 else self.model.groups[0].end(seq))
        rows = [(p, m) for p, m in zip(at, members, strict=True) if m]
        self.step(rows, data, seq)

    @rule(data=st.data(), p0=positions, p1=positions)
    def cp(self, data: st.DataObject, p0: int, p1: int) -> None:
        src, dst = (data.draw(st.sampled_from(self.ids)) for _ in range(2))
        held = self.model.positions(dst)
        how = data.draw(st.sampled_from(["behind", "before", "range"]))
        if how == "behind":
            p0, p1 = max(held, default=-1) + 1, -1
        elif how == "before":
            p0, p1 = 0, min(held, default=END)
        due = self.model.why_not_cp(dst, within := self.range_of(p0, p1))
        if self.attempt(due, lambda: self.cache.seq_cp(src, dst, p0, p1)):
            self.model.cp(src, dst, within)

    @rule(data=st.data(), what=st.sampled_from(REMOVALS))
    def rm(self, data: st.DataObject, what: str) -> None:
        s = data.draw(st.sampled_from(self.ids))
        if what == "others":
            self.cache.seq_keep(s)
        elif what == "all":
            self.cache.clear()
        else:
            n = data.draw(st.integers(0, 6), "n")
            p0, p1 = 0, min(self.model.positions(s), default=0) + n
            if what == "end":
                p0, p1 = max(0, self.model.groups[0].end(s) - n), -1
            elif what == "range":
                p0, p1 = data.draw(st.tuples(positions, positions), "range")
            self.cache.seq_rm(s, p0, p1)
            self.model.rm(s, self.range_of(p0, p1))
        for other in self.ids if what in {"others", "all"} else []:
            if other != s or what == "all":
                self.model.rm(other, range(END))

    @rule(data=st.data(), p0=positions, p1=positions, delta=st.integers(-12, 12))
    def add(self, data: st.DataObject, p0: int, p1: int, delta: int) -> None:
        s = data.draw(st.sampled_from(self.ids))
        due = self.model.why_not_add(s, within := self.range_of(p0, p1), delta)
        if self.attempt(due, lambda: self.cache.seq_add(s, p0, p1, delta)):
            self.model.add(s, within, delta)

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        groups = self.cache.groups()
        for (window, capacity, used), g in zip(groups, self.model.groups, strict=True):
            assert (window, capacity, used) == (g.window, g.capacity, len(g.cells))
        for layer, store in enumerate(self.stores):
            g = self.model.groups[self.cache.group_of(layer)]
            for s in self.ids:
                held = self.cache.cells(self.cache.group_of(layer), s)
                expected = sorted((p, c.token) for p, c in g.held(s).items())
                assert [(p, store.token(slot, p)) for p, slot in held] == expected
        for s in self.ids:
            there = self.model.groups[0].held(s)
            assert self.cache.seq_pos_min(s) == min(there, default=-1)
            assert self.cache.seq_pos_max(s) == max(there, default=-1)
            for n in (3, 11, END):
                assert self.cache.seq_reusable(s, n) == self.model.reusable(s, n)


TestAgainstReference = KvMachine.TestCase
TestAgainstReference.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, print_blob=True
)
