"""Messages of every type, at random and by hand, and bytes that only claim to be some."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from msgspec import Struct
from msgspec.structs import replace

from pyflow.cluster.wire import codec as wire
from pyflow.cluster.wire.codec import encode
from pyflow.cluster.wire.messages import (
    MAX_TOKENS,
    Accept,
    Adapt,
    Answers,
    Applied,
    Begin,
    Begun,
    Cancel,
    Cut,
    Drafted,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Guessed,
    Hello,
    Message,
    Pulse,
    Questions,
    Read,
    Remove,
    Result,
    Run,
    Setup,
    Share,
)
from pyflow.cluster.wire.surveys import (
    Gather,
    Gathered,
    Group,
    Link,
    Measure,
    Measured,
    Ping,
    Profile,
    RankProfile,
)
from pyflow.sampling import SamplingParams

I32_MAX = 2**31 - 1
START = 20  # bytes of the header
HIDDEN = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
RUN = Run(7, 3, 100, (5, 6), path=(8, 9, 10), n_draws=2, regime="prefill")
QUESTIONS = Questions(3, (7, 8, 9), (-1, 0, -1), (2, -1, 2))
OPS = (Share(0, 3, 98, 100), Remove(2, 99, -1), Accept((11, 12)))
SAMPLING = SamplingParams(
    temperature=1.2, top_p=0.1, seed=2**64 - 1, logit_bias={3: float("-inf"), 7: -0.25}
)
PROFILED = RankProfile(2, "ålesund", (1.5, 1.75), 2**40, embedding_ms=0.0, head_ms=3.25, run_ms=0.5)
SHARED = Setup(0, (0, 30, 30), 4096, 9, 128, "f16", (Group((0, 1), (1000, 250)),), 512)
SAMPLES: dict[str, Message] = {
    "frame": Frame(1, 40, ops=OPS, run=RUN, hidden=HIDDEN),
    "frame, skipped": Frame(1, 41, ops=OPS[:1], run=RUN, skipped=True),
    "frame, empty": Frame(0, 0),
    "frame, reading": Frame(1, 0, (Read((5, 6)),), hidden=HIDDEN),
    "frame, adapting": Frame(1, 0, (Adapt((Applied("größer", "0f", -0.5),)),)),
    "frame, to be read": Frame(1, 0, (Read((5, 6)),)),
    "frame, asking": Frame(
        1, 42, run=replace(RUN, questions=QUESTIONS), hidden=HIDDEN.reshape(5, 2)
    ),
    "result": Result(1, 7, (13, I32_MAX)),
    "result, answering": Result(1, 7, (13,), answers=(5, 0, 6)),
    "result, guessing": Result(1, 7, (13,), guesses=(5, 0), probabilities=(1.0, 0.25)),
    "result, skipped": Result(2, 8, (), skipped=True),
    "cancel": Cancel(1, (7, 2**40)),
    "draft request": DraftRequest(1, 9, 99, (1, 2, 3), 16, 0.25),
    "draft request, guessing": DraftRequest(
        1, 9, 99, (), 4, 0.0, guessed=Guessed(98, (5, 0, 6), (1.0, 0.25))
    ),
    "draft request, answering": DraftRequest(1, 9, 99, (), 0, 1.0, 2, Answers(3, 98, (5, 0, 6))),
    "drafted": Drafted(1, 9, (4, 5), (1.0, 0.125)),
    "drafted, asking": Drafted(1, 9, (), (), QUESTIONS),
    "goodbye": Goodbye(2**32 - 1),
    "failure": Failure(3, 2, "rank 2: größer als der Speicher"),
    "hello": Hello(0, 2, "ålesund", 4242, "0.1.0", "0123456789abcdef" * 4, "avx2", "bf16"),
    "setup, shared": SHARED,
    "gather": Gather(0, 3, (1, 2)),
    "gathered": Gathered(0, (1, 2), (1e-6, 2.5e-6, 0.0)),
    "setup": Setup(0, (0, 10, 10, 30), 4096, 9, 128, "q8_0"),
    "begin": Begin(4, SAMPLING, 3, 99),
    "begin, cut": Begin(4, SAMPLING, 3, 99, Cut(7, 12)),
    "begun": Begun(4, 98, 2**33),
    "pulse": Pulse(0, "prefill, layers 10 to 19"),
    "profile": Profile(0, PROFILED, 1.5e10, 4.5),
    "measure": Measure(0, 3),
    "ping": Ping(0, 2, HIDDEN, is_back=True),
    "measured": Measured(0, 2, 3, Link(0.0001, 1.25e8)),
}
samples = pytest.mark.parametrize("message", SAMPLES.values(), ids=SAMPLES.keys())


def up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most) | st.sampled_from([0, most])


def tuples_of(item: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(item, min_size=least, max_size=9).map(tuple)


EPOCHS, I32, NUMBERS = up_to(2**32 - 1), up_to(I32_MAX), up_to(2**63 - 1)
SIZES, COUNTS = st.integers(1, I32_MAX), up_to(MAX_TOKENS)
TOKENS = tuples_of(I32)
CHANCES = st.floats(0, 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SHARES = st.builds(Share, I32, I32, I32, I32)
REMOVES = st.builds(Remove, I32, I32, st.integers(-(2**31), I32_MAX))
APPLIED = st.builds(Applied, TEXTS, TEXTS, st.floats(-1e6, 1e6))
ADAPTS = st.builds(Adapt, tuples_of(APPLIED))
ALL_OPS = tuples_of(SHARES | REMOVES | st.builds(Accept, TOKENS) | ADAPTS)


@st.composite
def trees(draw: st.DrawFn) -> Questions:
    tokens = draw(tuples_of(I32))
    parents = tuple(draw(st.integers(-1, row - 1)) for row in range(len(tokens)))
    asked = draw(tuples_of(st.integers(-1, len(tokens) - 1)))
    return Questions(draw(NUMBERS), tokens, parents, asked)


ASKS = st.none() | trees()


@st.composite
def runs(draw: st.DrawFn) -> Run:
    tokens, questions = draw(tuples_of(I32, least=1)), draw(ASKS)
    n_rows = len(tokens) + (len(questions.tokens) if questions else 0)
    return Run(
        number=draw(NUMBERS),
        seq=draw(I32),
        position=draw(up_to(I32_MAX - n_rows)),
        tokens=tokens,
        path=draw(TOKENS),
        n_draws=draw(up_to(len(tokens))),
        regime=draw(st.sampled_from(["prefill", "decode"])),
        questions=questions,
        n_guesses=draw(COUNTS),
    )


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    run, hidden, ops = draw(st.none() | runs()), None, draw(ALL_OPS)
    source = draw(tuples_of(I32, least=1)) if run is None and draw(st.booleans()) else ()
    ops = (*ops, Read(source)) if source else ops
    n_rows = len(source) if run is None else run.n_rows
    if n_rows and draw(st.booleans()):
        shape = (n_rows, draw(st.integers(1, 7)))
        values = st.floats(width=32)  # NaN and infinities too
        hidden = draw(st_numpy.arrays(np.float32, shape, elements=values))
    skipped = draw(st.booleans())
    return Frame(draw(EPOCHS), draw(NUMBERS), ops, run, hidden, skipped)


@st.composite
def drafts(draw: st.DrawFn) -> Drafted:
    pairs = draw(st.lists(st.tuples(I32, CHANCES), max_size=9))
    tokens, probabilities = tuple(t for t, _ in pairs), tuple(p for _, p in pairs)
    return Drafted(draw(EPOCHS), draw(NUMBERS), tokens, probabilities, draw(ASKS))


@st.composite
def results(draw: st.DrawFn) -> Result:
    draws = draw(TOKENS)
    pairs = draw(st.lists(st.tuples(I32, CHANCES), max_size=9 if draws else 0))
    tokens, probabilities = tuple(t for t, _ in pairs), tuple(p for _, p in pairs)
    skipped, answers = draw(st.booleans()), draw(TOKENS)
    return Result(draw(EPOCHS), draw(NUMBERS), draws, skipped, answers, tokens, probabilities)


@st.composite
def guesses(draw: st.DrawFn) -> Guessed:
    pairs = draw(st.lists(st.tuples(I32, CHANCES), max_size=9))
    tokens = (draw(I32), *(t for t, _ in pairs))
    return Guessed(draw(I32), tokens, tuple(p for _, p in pairs))


FLOATS = st.floats(0.01, 2)
BIASES = st.dictionaries(I32, FLOATS | st.just(float("-inf")), max_size=4)
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=FLOATS,
    top_k=st.integers(0, 99),
    top_p=st.floats(0.01, 1),
    repeat_penalty=FLOATS,
    logit_bias=BIASES.map(lambda biases: dict(sorted(biases.items()))),
    seed=up_to(2**64 - 1),
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)


MS, RATES = st.floats(0, 1e12), st.floats(1, 1e30)
LAYER_MS = st.lists(st.floats(1e-6, 1e12), min_size=1, max_size=9).map(tuple)
PROFILES = st.builds(RankProfile, I32, NAMES, LAYER_MS, NUMBERS, MS, MS, NAMES, MS)
RANKS = st.lists(I32, min_size=1, max_size=5).map(tuple)
GROUPS = RANKS.flatmap(
    lambda ranks: st.tuples(*[st.integers(1, 1_000_000)] * len(ranks)).map(
        lambda speeds: Group(ranks, speeds)
    )
)
ROWS = st_numpy.arrays(
    np.float32, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.floats(width=32)
)

STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    Frame: frames(),
    Result: results(),
    Cancel: st.builds(Cancel, EPOCHS, tuples_of(NUMBERS)),
    DraftRequest: st.builds(
        DraftRequest,
        EPOCHS,
        NUMBERS,
        I32,
        TOKENS,
        COUNTS,
        CHANCES,
        COUNTS,
        st.none() | st.builds(Answers, NUMBERS, I32, TOKENS),
        st.none() | guesses(),
    ),
    Drafted: drafts(),
    Goodbye: st.builds(Goodbye, EPOCHS),
    Failure: st.builds(Failure, EPOCHS, I32, TEXTS),
    Hello: st.builds(Hello, EPOCHS, I32, NAMES, I32, NAMES, DIGESTS, NAMES),
    Setup: st.builds(
        Setup,
        EPOCHS,
        tuples_of(I32, least=2).map(lambda cuts: tuple(sorted(cuts))),
        SIZES,
        SIZES,
        SIZES,
        st.sampled_from(["f16", "q8_0"]),
        st.lists(GROUPS, max_size=3).map(tuple),
        I32,
    ),
    Begin: st.builds(
        Begin,
        EPOCHS,
        SAMPLINGS,
        up_to(2**32 - 1),
        I32,
        st.none() | st.builds(Cut, I32, I32),
    ),
    Begun: st.builds(Begun, EPOCHS, I32, st.integers(0, 2**63 - 1)),
    Pulse: st.builds(Pulse, EPOCHS, NAMES),
    Profile: st.builds(Profile, EPOCHS, PROFILES, RATES, MS),
    Measure: st.builds(Measure, EPOCHS, I32),
    Ping: st.builds(Ping, EPOCHS, I32, ROWS, st.booleans()),
    Gather: st.builds(Gather, EPOCHS, st.integers(0, 15), RANKS),
    Gathered: st.builds(
        Gathered, EPOCHS, RANKS, st.lists(st.floats(0, 1e12), min_size=1, max_size=4).map(tuple)
    ),
    Measured: st.builds(Measured, EPOCHS, I32, I32, st.builds(Link, st.floats(0, 1e6), RATES)),
}


def assert_same(found: Message, expected: Message) -> None:
    """All fields equal, and of the same types; hidden states bit by bit."""
    assert type(found) is type(expected)
    for name in ("hidden", "rows"):
        rows, expected_rows = getattr(found, name, None), getattr(expected, name, None)
        if isinstance(expected_rows, np.ndarray):
            assert isinstance(rows, np.ndarray)
            assert (rows.dtype, rows.shape) == (expected_rows.dtype, expected_rows.shape)
            assert rows.tobytes() == expected_rows.tobytes()
            found = replace(found, **{name: None})
            expected = replace(expected, **{name: None})
    assert repr(found) == repr(expected)


def packed(message: Message) -> bytes:
    """The MessagePack part of an encoded message."""
    data = bytes(encode(message))
    return data[START : START + struct.unpack_from("<I", data, 12)[0]]


def positions(value: Any, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The path to a field by positions; one that a struct lacks would be its last."""
    found: list[Any] = []
    for key in path:
        if isinstance(value, Struct):
            tag = value.__struct_config__.tag
            names = ["type"] * bool(tag) + list(value.__struct_fields__)
            found.append(names.index(key) if key in names else len(names))
        else:
            found.append(key)
        if isinstance(value, tuple):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    return tuple(found)


def sealed(
    message: bytes,
    rows: bytes = b"",
    shape: tuple[int, int] = (0, 0),
    *,
    pad: bytes | None = None,
    version: int = wire.VERSION,
) -> bytes:
    """What a peer sends who knows the format and may lie in all but the checksum."""
    pad = bytes(-len(message) % 4) if pad is None else pad
    start = struct.pack("<4sHHII", b"PFWM", version, shape[1], shape[0], len(message))
    rest = message + pad + rows
    return start + struct.pack("<I", zlib.crc32(start + rest)) + rest
