"""A batch whose callers do anything in any order: each text is what it is alone."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.pyflow.batch.virtual import EOS, Served, VirtualContext, next_token, request

N_POSITIONS = 60


class AnyOrder(RuleBasedStateMachine):
    """Requests come, are cancelled, changed or ended between any two steps."""

    @initialize(
        n_ctx=st.integers(N_POSITIONS, 4 * N_POSITIONS),
        n_parallel=st.integers(1, 5),
        window=st.sampled_from([0, 8]),
    )
    def begin(self, n_ctx: int, n_parallel: int, window: int) -> None:
        context = VirtualContext(n_ctx, n_seq_max=8, n_batch=32, window=window)
        self.served = Served(context, n_parallel=n_parallel)
        self.running: dict[int, list[int]] = {}

    @rule(
        n_common=st.integers(1, 30),
        rest=st.lists(st.integers(0, 9), max_size=12),
        n_predict=st.integers(0, 30),
        key=st.sampled_from(["", "one", "two"]),
        watched=st.booleans(),
    )
    def add(self, n_common: int, rest: list[int], n_predict: int, key: str, watched: bool) -> None:
        tokens = [*range(n_common), *rest]
        asked = request(tokens, n_predict, limit=N_POSITIONS, key=key, watched=watched)
        self.running[self.served.add(asked)] = tokens

    @precondition(lambda self: self.running)
    @rule(n=st.integers(1, 3))
    def steps(self, n: int) -> None:
        for _ in range(n):
            self.see()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.served.batch.cancel(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.changeable())
    @rule(data=st.data(), token=st.integers(0, 9))
    def replace(self, data: st.DataObject, token: int) -> None:
        number = data.draw(st.sampled_from(self.changeable()))
        self.served.batch.commit(number, token)
        self.running[number][-1] = token

    @precondition(lambda self: self.changeable())
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.served.batch.commit(data.draw(st.sampled_from(self.changeable())), None)

    def changeable(self) -> list[int]:
        """Requests that run and have drawn a token."""
        running = self.served.batch._running
        return [n for n in self.running if n in running and running[n].answer.tokens]

    def see(self) -> None:
        """A step, whose every token is the one that follows what its text has been made."""
        for event in self.served.batch.step():
            assert event.error is None
            seen = self.running[event.number]
            if event.chunk is not None and event.chunk.token not in (None, EOS):
                assert event.chunk.token == next_token(seen)
                seen.append(event.chunk.token)
            if (done := event.completion) is not None:
                n_given = len(self.served.asked[event.number].view.tokens)
                assert done.tokens == seen[n_given:]
                if done.stop_reason == "eos":
                    assert next_token(seen) == EOS
                del self.running[event.number]

    def teardown(self) -> None:
        if hasattr(self, "served"):
            for _ in range(1000):
                self.see()
            assert not self.served.batch.is_busy
            assert not self.running
            self.served.check_nothing_is_left()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
