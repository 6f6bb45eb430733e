"""Decides what runs next: a state machine without clock or I/O.

Messages come in, actions go out. The same scheduler serves MPI, threads and virtual time.

Text is the accepted tokens, prompt included; its cells lie in sequence 0 of every stage. The newest
token has been drawn but not run. A chain begins with it and continues with drafted tokens. Drafts
run on a partition, a sequence that shares the text's cells. Accepted drafts are shared back, and
rejected ones removed: both operations travel before the next run, and so reach every stage between
the same two runs.

1. Results come in the order of their runs.
2. A run is skipped only if no live run reads its cells.
3. The newest token's run is never skipped.
4. A draft in flight that agrees with the text is not run again, unless the strategy redrafts.
5. A run is sent only if it has cells.
6. A run is sent only if all cells still to be shared back lie in the window of the next position:
   with sliding windows, a sequence drops cells before it.
7. A drafter's questions travel with a run of the newest token, if there is room. No other row sees
   their rows, and they leave no cells: nothing depends on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from pyflow.cluster.run.job import Action, Done, Emit, EndReason, Job
from pyflow.cluster.run.paths import Chain, Flight
from pyflow.cluster.run.probes import Inquiry, Requests
from pyflow.cluster.run.strategy import Strategy
from pyflow.cluster.wire.messages import (
    Accept,
    Cancel,
    Drafted,
    DraftRequest,
    Frame,
    Op,
    Questions,
    Regime,
    Remove,
    Result,
    Run,
    Share,
)
from pyflow.engine.origins import n_alike, was_drawn
from pyflow.errors import PyflowError, ResourceError, ShapeError
from pyflow.speculate.stats import PipelineStats


class Scheduler:
    """Decides for one job: `start` once, then `on` for every message, results before drafts."""

    def __init__(self, job: Job, strategy: Strategy) -> None:
        """ShapeError: nothing to read. ResourceError: no position is left for an answer."""
        n = len(job.prompt)
        if not 0 <= job.n_past < n + len(job.committed) or not n:
            found = f"{n} and {len(job.committed)} committed" if job.committed else n
            raise ShapeError(
                f"prompt: expected more than the {job.n_past} tokens read, found {found}"
            )
        if n >= job.n_ctx:
            raise ResourceError(
                f"prompt: {n} tokens leave no room for an answer in a context of {job.n_ctx}"
            )
        self.job = job
        self.strategy = strategy
        self.text = [*job.prompt, *job.committed]
        self.counts = PipelineStats()
        self.read = PipelineStats()
        """The share spent on reading the text that the job begins with."""
        self._n_start = len(self.text)
        self._chain = Chain(self._n_start, [])
        self._flights: deque[Flight] = deque()
        self._ops: list[Op] = []
        self._out: list[Action] = []
        self._free = deque(range(1, job.n_partitions + 1))
        self._cells: dict[int, int] = {}  # own rows, by partition in use
        self._n_zero = job.n_past  # positions of sequence 0 once all frames sent are done
        self._n_told = 0  # tokens of the text that samplers know
        self._n_frames = 0
        self._drafts = Requests()
        self._inquiry = Inquiry()
        self._ended: EndReason | None = self._end() if job.committed else None

    @property
    def in_flight(self) -> int:
        """Runs sent and not yet returned."""
        return len(self._flights)

    @property
    def ended(self) -> bool:
        """Whether the text is complete; runs may still be on their way."""
        return self._ended is not None

    @property
    def n_past(self) -> int:
        """Tokens of the text whose cells are in sequence 0, once no run is in flight."""
        return self._n_zero

    def start(self) -> list[Action]:
        """Runs of the text in chunks, each in its regime, and the drafter's first request.

        The last token of a text that has ended is not run: it needs no successor.
        """
        job, ended = self.job, self._ended
        if job.committed:
            self._out.append(Emit(tuple(job.committed)))
        drawn = (*job.drawn, (len(job.prompt), self._n_start))
        begin, end = job.n_past, self._n_start - (ended is not None)
        while begin < end:
            n = min(n_alike(drawn, begin, end), job.n_batch)
            tokens = tuple(self.text[begin : begin + n])
            draws = begin + n == self._n_start
            regime: Regime = "decode" if was_drawn(drawn, begin) else "prefill"
            self._send(0, begin, tokens, n_draws=int(draws), regime=regime)
            begin += n
        self.read = replace(self.counts)
        if ended and not self._flights:
            self._out.append(Done(ended))
        elif self.strategy.n_draft:
            self._ask(0)
        return self._take()

    def on(self, message: Result | Drafted) -> list[Action]:
        """The actions after this message."""
        if message.epoch != self.job.epoch:
            return []
        if isinstance(message, Drafted):
            self._drafted(message)
        else:
            self._result(message)
        self._fill()
        return self._take()

    # What comes in.

    def _drafted(self, drafted: Drafted) -> None:
        if drafted.request != self._drafts.asked:
            return  # for a chain that has been dropped
        self._drafts.asked = 0
        self._inquiry.ask(drafted.questions)
        chain, tokens = self._chain, list(drafted.tokens)
        # Meanwhile the text may have reached the start of the draft, or passed it.
        known = self.text[self._drafts.position : chain.end]
        if tokens[: len(known)] != known[: len(tokens)]:
            return
        new = tokens[len(known) :][: self._room()]
        chain.tokens += new
        self.counts.drafted += len(new)
        if not tokens:
            self._drafts.dry = True
            self._drafts.n_dry += 1
            self.counts.dry += 1

    def _result(self, result: Result) -> None:
        if not self._flights or self._flights[0].run.number != result.run:
            raise PyflowError(f"pipeline: the result of run {result.run} came out of turn")
        flight = self._flights.popleft()
        self._drafts.dry = False
        self._inquiry.hear(flight.run, result)
        if not flight.dead:
            if result.skipped:
                raise PyflowError(f"pipeline: run {result.run} was left out, but is needed")
            before = len(self.text)
            self._verify(flight.run, result.draws)
            if len(self.text) > before:
                self._grown(before)
        self._release()
        if self._ended and not self._flights:
            if self._ops:
                self._frame(None)
            self._out.append(Done(self._ended))

    def _verify(self, run: Run, draws: Sequence[int]) -> None:
        """Appends the draws that continue the text."""
        first = len(run.tokens) - run.n_draws
        for row, token in enumerate(run.tokens):
            position = run.position + row
            if self._ended or position >= len(self.text) or self.text[position] != token:
                return
            if position == self._n_zero:
                self._commit(run.seq, position)
            if row < first:
                continue
            drawn = draws[row - first]
            if position + 1 == len(self.text):
                self.text.append(drawn)
                self._ended = self._end()
            elif self.text[position + 1] != drawn:
                raise PyflowError(
                    f"pipeline: run {run.number} drew {drawn} for position {position + 1}, another "
                    f"one drew {self.text[position + 1]}"
                )

    def _end(self) -> EndReason | None:
        """Why the text has ended; None if it has not."""
        if self.text[-1] in self.job.stops:
            return "stop"
        return "length" if len(self.text) >= self.job.limit else None

    def _commit(self, seq: int, position: int) -> None:
        last = self._ops[-1] if self._ops else None
        if isinstance(last, Share) and (last.src, last.dst, last.p1) == (seq, 0, position):
            self._ops[-1] = Share(seq, 0, last.p0, position + 1)
        else:
            self._ops.append(Share(seq, 0, position, position + 1))
        self._n_zero += 1

    def _grown(self, before: int) -> None:
        """The text has grown: drops the runs and the chain that contradict it."""
        text, chain = self.text, self._chain
        self._out.append(Emit(tuple(text[before:])))
        self._drafts.n_dry = 0
        both = range(before, min(len(text), chain.end))
        right = sum(1 for _ in takewhile(lambda q: chain.tokens[q - chain.start] == text[q], both))
        self.counts.accepted += right
        self.counts.decided += min(right + 1, len(both))
        agrees = right == len(both)
        goes_on = agrees and chain.end >= len(text) and not self._ended
        if goes_on and not self.strategy.redrafts:
            chain.cut(len(text) - 1)
        else:
            if not agrees or self.strategy.redrafts:
                self._drafts.asked = 0
            self._chain = Chain(len(text) - 1, text[-1:])
        for i, flight in enumerate(self._flights):
            # Sequence 0 needs its runs, also when the text has ended.
            unwanted = not flight.agrees(text, before) or self._superfluous(i)
            flight.dead |= flight.seq > 0 and (self._ended is not None or unwanted)
        if self.strategy.cancels:
            dead = [f for f in self._flights if f.dead and not f.told]
            for flight in dead:
                flight.told = True
            if dead:
                self.counts.cancelled += len(dead)
                self._out.append(Cancel(self.job.epoch, tuple(f.run.number for f in dead)))

    def _superfluous(self, i: int) -> bool:
        """Whether all draws of flight i are known already, and no run reads its cells."""
        flight = self._flights[i]
        if flight.seq == 0 or flight.end >= len(self.text) or flight.seq == self._chain.seq:
            return False
        return not any(
            f.seq == flight.seq and not f.dead for j, f in enumerate(self._flights) if j > i
        )

    # What goes out.

    def _fill(self) -> None:
        """Sends all runs that may go now, and requests the next draft."""
        while self._fill_one():
            pass
        chain, strategy, n = self._chain, self.strategy, len(self.text)
        started = n > self._n_start and not self._ended
        if not started or not strategy.n_draft or self._drafts.asked or self._drafts.dry:
            return
        if chain.end > n and not strategy.continuous:
            return
        if self._flights and not strategy.asynchronous:
            return
        if chain.sent_end >= n and strategy.waits:
            return
        unsent = chain.end - max(n, chain.sent_end)
        ahead = chain.end - n
        wanted = min(strategy.n_draft, self._room(), strategy.n_rows * strategy.n_flight - ahead)
        if wanted > 0 and unsent < strategy.n_rows:
            self._ask(wanted)

    def _fill_one(self) -> bool:
        chain, strategy, n = self._chain, self.strategy, len(self.text)
        if self._ended or n == self._n_start:
            return False
        unsent = min(len(chain.tokens) - chain.n_sent, strategy.n_rows, self._reach())
        if chain.sent_end < n:  # the newest token itself
            unsent = max(1, unsent)
            guesses = strategy.n_draft and not self._drafts.dry and self._room() > 0
            if (strategy.waits or not strategy.asynchronous) and chain.end == n and guesses:
                return False
            self._send_chain(unsent if self._has_cells(unsent) else 1)
            return True
        free = strategy.partitioned or not self._flights
        if unsent <= 0 or len(self._flights) >= strategy.n_flight or not free:
            return False
        if not self._has_cells(unsent):
            return False
        self._send_chain(unsent)
        return True

    def _room(self) -> int:
        """How many further drafted tokens could become text."""
        return max(0, self.job.limit - 1 - self._chain.end)

    def _reach(self) -> int:
        """How many tokens of the chain invariant 6 lets through; none if below 1."""
        if self.job.window is None:
            return len(self._chain.tokens)
        return self._n_zero + self.job.window - 1 - self._chain.sent_end

    def _has_cells(self, n: int) -> bool:
        """Whether there are cells for a run of drafts, and for text accepted meanwhile."""
        if not self._chain.seq and not self._free:
            return False
        return self._cells_left(n) >= n

    def _cells_left(self, n: int = 0) -> int:
        """Spare cells once n more tokens of the chain have been sent."""
        # If a drafted token is run again as text, both have cells until the draft is decided.
        ends = [len(self.text) + 1, self._chain.sent_end + n, *(f.end for f in self._flights)]
        return self.job.n_ctx - max(ends) - sum(self._cells.values())

    def _send_chain(self, n: int) -> None:
        chain = self._chain
        position, first = chain.sent_end, chain.n_sent
        if position + n <= len(self.text):  # the newest token alone
            chain.seq = 0
            self._release()
        elif not chain.seq:
            chain.seq = self._free.popleft()
            self._cells[chain.seq] = 0
            self._ops.append(Share(0, chain.seq, 0, position))
        if chain.seq:
            self._cells[chain.seq] += n
        chain.n_sent += n
        tokens = tuple(chain.tokens[first : first + n])
        questions = None
        if position + 1 == len(self.text):
            n_rows = min(self.job.n_batch - n, self._cells_left())
            questions = self._inquiry.send(n_rows, self.job.n_ctx - 1 - position)
        self._send(chain.seq, position, tokens, n_draws=n, questions=questions)

    def _send(
        self,
        seq: int,
        position: int,
        tokens: tuple[int, ...],
        *,
        n_draws: int,
        regime: Regime = "decode",
        questions: Questions | None = None,
    ) -> None:
        known = min(len(self.text), position)
        if known > self._n_told:
            self._ops.append(Accept(tuple(self.text[self._n_told : known])))
            self._n_told = known
        path = tuple(self._chain.tokens[known - self._chain.start :][: position - known])
        self.counts.runs += 1
        n_guesses = self.job.n_guesses if n_draws and self.strategy.n_draft else 0
        run = Run(
            self.counts.runs, seq, position, tokens, path, n_draws, regime, questions, n_guesses
        )
        self.counts.rows += run.n_rows
        self.counts.explored += run.n_rows - len(tokens)
        self._flights.append(Flight(known, [*path, *tokens], run))
        if seq == 0:
            self._n_zero = position + len(tokens)
        self._frame(run)

    def _frame(self, run: Run | None) -> None:
        self._n_frames += 1
        self._out.append(Frame(self.job.epoch, self._n_frames, tuple(self._ops), run))
        self._ops.clear()

    def _ask(self, n: int) -> None:
        """Requests a draft of n tokens after the chain; n = 0 only has the text read."""
        chain, strategy = self._chain, self.strategy
        guesses = chain.tokens[max(0, len(self.text) - chain.start) :]
        keep, new = self._drafts.tell(self.text, guesses)
        least = strategy.least + strategy.recovery * chain.n_asked
        least = min(1.0, max(0.0, least - strategy.decay * self._drafts.n_dry))
        number, inquiry = self._drafts.number, self._inquiry
        told = (len(guesses), inquiry.answers, inquiry.guessed)
        self._out.append(DraftRequest(self.job.epoch, number, keep, new, n, least, *told))
        if n:
            chain.n_asked += 1
            self._drafts.asked, self._drafts.position = number, chain.end

    def _release(self) -> None:
        """Frees the partitions that no live run reads."""
        live = {f.seq for f in self._flights if not f.dead} | {self._chain.seq}
        for seq in [s for s in self._cells if s not in live]:
            self._ops.append(Remove(seq, 0, -1))
            del self._cells[seq]
            self._free.append(seq)

    def _take(self) -> list[Action]:
        out, self._out = self._out, []
        return out
