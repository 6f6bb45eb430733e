"""Grammars over the vocabulary of a model: which tokens may come next, as bit sets."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.constrain.grammar import Calls, Constraint
from pyflow.constrain.habits import Habits
from pyflow.constrain.library import llguidance
from pyflow.errors import ConstraintError, MatcherError, UnsupportedError
from pyflow.tokenizer import Tokenizer

Masks = NDArray[np.uint32]
_N_KEPT = 64  # compiled grammars
_N_GUESSED = 16  # tokens of a draft
_MAX_GUESSING_S = 2e-3  # a draft is a hint, and this is time of all texts in the step
_MAX_CERTAIN = 4096  # bytes of certain text that are tokenized for it, which takes 0.6 ms


class Grammars:
    """Compiles constraints for one vocabulary, and keeps the latest. Safe to share by threads."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        """n_vocab: tokens of the model, the tokenizer's and those that pad its embedding.

        UnsupportedError: llguidance is not installed, or no token of the model ends a text.
        """
        known = range(min(n_vocab, tokenizer.n_vocab))
        self._stops = sorted(token for token in tokenizer.stop_ids if token in known)
        if not self._stops:
            raise UnsupportedError(
                "structured output needs a token that ends a text; there is none"
            )
        control = [token for token in known if tokenizer.is_control(token)]
        self._control = {tokenizer.token_text(token): token for token in control}
        self._text = _bits(sorted({*known}.difference(control, self._stops)), n_vocab)
        self._ends = _bits(self._stops, n_vocab)
        self._tokenizer = _library_tokenizer(tokenizer, n_vocab, control, self._stops)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[Constraint, Matcher] = OrderedDict()

    def matcher(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of a text. ConstraintError: this vocabulary cannot write it.

        Takes up to a second for a large grammar.
        """
        with self._lock:
            found = self._compiled.get(constraint)
        if found is None:
            found = self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = found
            self._compiled.move_to_end(constraint)
            while len(self._compiled) > _N_KEPT:
                self._compiled.popitem(last=False)
            return found.copy()

    def _compile(self, constraint: Constraint) -> Matcher:
        library = llguidance()
        native = library.LLMatcher(
            self._tokenizer,
            constraint.grammar(self._control.get),
            log_level=0,
            limits=library.LLParserLimits(verbose_errors=False),
        )
        if native.is_error():
            raise ConstraintError(f"{constraint.name}: {' '.join(native.get_error().split()):.300}")
        text = self._text
        if isinstance(constraint.source, Calls):
            trigger = self._control.get(constraint.source.trigger)
            if trigger is not None:
                text = text | _bits([trigger], 32 * text.size)
        matcher = Matcher(native, text, self._ends, frozenset(self._stops))
        try:  # much that is too complex fails at the beginning, or after a token
            (row,) = matcher.masks()
            first = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[:8]
            matcher.copy().masks(first.tolist(), [-1] * first.size)
            if first.size and not matcher.allowed(first.tolist(), [-1] * first.size):
                raise MatcherError("no token of the vocabulary begins the text that is wanted")
        except MatcherError as error:
            reason = str(error).removeprefix("constraint: ")
            raise ConstraintError(f"{constraint.name}: {reason}") from None
        return matcher


class Matcher:
    """Where one text stands in its grammar. One thread at a time.

    Methods raise MatcherError once the grammar has become too complex, and from then on.
    """

    def __init__(self, native: Any, text: Masks, ends: Masks, stops: frozenset[int]) -> None:
        """text, ends: the tokens that may come inside a text, and those that end it."""
        self._native = native
        self._text = text
        self._ends = ends
        self._stops = stops
        self._ended = False
        self._habits = Habits()
        self.mask_s = 0.0

    @property
    def is_done(self) -> bool:
        """Whether the text may end here."""
        return bool(self._native.is_accepting())

    def masks(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> Masks:
        """(1 + n, ceil(n_vocab / 32)) uint32: what may come next, and after each of n drafts.

        Node i is tokens[i] after node parents[i], which is below i, or -1. Bit t % 32 of word
        t / 32 is token t. After a node that may not come itself, everything may: it is never taken.
        """
        begin = time.monotonic()
        out = np.full((1 + len(tokens), self._text.size), 0xFFFFFFFF, np.uint32)
        self._walk(tokens, parents, out)
        self._habits.look(out, tokens, parents)
        self.mask_s += time.monotonic() - begin
        return out

    def allowed(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes that may come if all before them do, ascending."""
        return self._walk(tokens, parents, None)

    def accept(self, tokens: Sequence[int]) -> None:
        """Goes on by tokens that the masks allow; nothing follows one that ends the text."""
        for token in tokens:
            if self._ended or (token in self._stops and not self.is_done):
                raise MatcherError(f"constraint: token {token} is not allowed here")
            self._habits.learn(token)
            if token in self._stops:
                self._ended = True
            elif not self._native.try_consume_tokens([token]):
                self._check()
                raise MatcherError(f"constraint: token {token} is not allowed here")

    def take(self, token: int) -> None:
        """Goes on by one token."""
        self.accept([token])

    def forced(self) -> list[int]:
        """A guess at the next tokens, where the grammar or the text so far leaves little choice.

        Certain text comes first, in the tokens that would spell it best; other tokens may come.
        """
        guessed: list[int] = []
        row = np.zeros((1, self._text.size), np.uint32)
        end = time.monotonic() + _MAX_GUESSING_S
        while not self._ended and len(guessed) < _N_GUESSED and time.monotonic() < end:
            certain = []
            if len(self._native.compute_ff_bytes()) <= _MAX_CERTAIN:
                certain = [int(token) for token in self._native.compute_ff_tokens()]
            if not certain:
                self._fill(row, 0)
                token = self._habits.guess(row[0])
                certain = [] if token is None or token in self._stops else [token]
            n = self._native.try_consume_tokens(certain) if certain else 0
            guessed += certain[:n]
            if n == 0:
                break
        if guessed and not self._native.rollback(len(guessed)):
            raise MatcherError("constraint: the grammar cannot step back")
        self._check()
        return guessed

    def copy(self) -> Matcher:
        """One that goes on by itself."""
        other = Matcher(self._native.deep_copy(), self._text, self._ends, self._stops)
        other._ended = self._ended
        return other

    def _walk(self, tokens: Sequence[int], parents: Sequence[int], out: Masks | None) -> list[int]:
        """Visits the nodes that may come, depth first, and fills the masks after them."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            children.setdefault(parent, []).append(node)
        allowed: list[int] = []
        self._fill(out, 0)
        # Nodes to visit; ~node: its subtree is done.
        stack = [] if self._ended else children.get(-1, [])[::-1]
        while stack:
            node = stack.pop()
            if node < 0:
                self._back()
            elif tokens[node] in self._stops:
                if self.is_done:
                    allowed.append(node)
            elif self._native.try_consume_tokens([tokens[node]]):
                allowed.append(node)
                self._fill(out, 1 + node)
                stack += [~node, *children.get(node, [])[::-1]]
            else:
                self._check()
        return sorted(allowed)

    def _back(self) -> None:
        if not self._native.rollback(1):
            self._check()
            raise MatcherError("constraint: the grammar cannot step back")

    def _fill(self, out: Masks | None, row: int) -> None:
        """One row; of what the library allows, text, and ends where the grammar does."""
        if out is None:
            return
        words = out[row]
        if self._ended:
            words[:] = self._ends
            return
        self._native.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()  # after an error the library allows the text to end
        words &= self._text
        if self._native.is_accepting():
            words |= self._ends

    def _check(self) -> None:
        if self._native.is_error():
            raise MatcherError(f"constraint: {_reason(self._native.get_error())}")


def _reason(told: str) -> str:
    """Why the library gives up, without names of its own."""
    if "NoExtensionBias" in told or "ff_tokens" in told:  # nothing may come, or it has no end
        return (
            "expected a text that ends, found none that the vocabulary can write; add a way to end"
        )
    if re.search("Too many items|Current row has", told):
        return "the text may go on in too many ways; write fewer alternatives or optional parts"
    told = " ".join(told.replace("<non-verbose/>", "").split())
    return f"too complex for this text: {told:.100}; simplify its patterns"


def _bits(tokens: Sequence[int], n_vocab: int) -> Masks:
    flags = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    flags[list(tokens)] = 1
    return np.packbits(flags, bitorder="little").view(np.uint32)


def _library_tokenizer(
    tokenizer: Tokenizer, n_vocab: int, control: Sequence[int], stops: Sequence[int]
) -> Any:
    """The vocabulary as the library wants it; tokens that pad it have no bytes."""
    library = llguidance()

    class Vocabulary:
        def __init__(self, greedy: Callable[[str], list[int]] | None = None) -> None:
            self.eos_token_id = stops[0]
            self.bos_token_id = tokenizer.bos_id
            self.tokens = [b""] * n_vocab
            for token in range(min(n_vocab, tokenizer.n_vocab)):
                self.tokens[token] = tokenizer.token_bytes(token)
            self.special_token_ids = sorted({*control, *stops})
            self._greedy = greedy

        def __call__(self, text: bytes) -> list[int]:
            ids = tokenizer.encode(text, add_special=False)
            if self._greedy is None or b"".join(self.tokens[token] for token in ids) == text:
                return ids
            spelled, at = [], 0  # up to the first byte that no token has
            for token in self._greedy(text.decode("utf-8", "replace")):
                if not text.startswith(self.tokens[token], at):
                    break
                spelled.append(token)
                at += len(self.tokens[token])
            return spelled

    def made(vocabulary: Vocabulary) -> Any:
        return library.LLTokenizer(library.TokenizerWrapper(vocabulary), eos_token=list(stops))

    native = made(Vocabulary())
    # SentencePiece puts a blank before a text, and the library wants tokens that spell it exactly.
    spelled = map(tokenizer.token_bytes, tokenizer.encode("a", add_special=False))
    return native if b"".join(spelled) == b"a" else made(Vocabulary(native.greedy_tokenize))
