"""A message comes back as it was; what is damaged, too large or contradictory is refused."""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from pyflow.cluster import wire
from pyflow.cluster.messages import (
    Accept,
    Begin,
    Begun,
    Cancel,
    Drafted,
    DraftRequest,
    Failure,
    Frame,
    Goodbye,
    Hello,
    Message,
    Remove,
    Result,
    Run,
    Share,
)
from pyflow.cluster.parameters import to_json
from pyflow.cluster.wire import WireError, decode, encode, frame_nbytes
from pyflow.errors import PyflowError
from pyflow.sampling import SamplingParams

I32_MAX = 2**31 - 1
FRAME, RESULT, CANCEL, DRAFT_REQUEST, DRAFTED, GOODBYE, FAILURE, HELLO, BEGIN = range(9)

HIDDEN = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
RUN = Run(7, 3, 100, (5, 6), path=(8, 9, 10), n_draws=2, regime="prefill")
OPS = (Share(0, 3, 98, 100), Remove(2, 99, -1), Accept((11, 12)))
SAMPLING = SamplingParams(
    temperature=1.2, top_p=0.1, seed=2**64 - 1, logit_bias={3: float("-inf"), 7: -0.25}
)
SAMPLES: dict[str, Message] = {
    "frame": Frame(1, 40, ops=OPS, run=RUN, hidden=HIDDEN),
    "frame, skipped": Frame(1, 41, ops=OPS[:1], run=RUN, skipped=True),
    "frame, empty": Frame(0, 0),
    "result": Result(1, 7, (13, I32_MAX)),
    "result, skipped": Result(2, 8, (), skipped=True),
    "cancel": Cancel(1, (7, 2**40)),
    "draft request": DraftRequest(1, 9, 99, (1, 2, 3), 16, 0.25),
    "drafted": Drafted(1, 9, (4, 5), (1.0, 0.125)),
    "goodbye": Goodbye(2**32 - 1),
    "failure": Failure(3, 2, "rank 2: größer als der Speicher"),
    "hello": Hello(0, 2, "ålesund", 4242, "0.1.0", "0123456789abcdef" * 4, "avx2", 10, 18),
    "begin": Begin(4, SAMPLING, 3, 99),
    "begun": Begun(4, 98),
}
samples = pytest.mark.parametrize("message", SAMPLES.values(), ids=SAMPLES.keys())


def up_to(most: int) -> st.SearchStrategy[int]:
    return st.integers(0, most) | st.sampled_from([0, most])


def tuples_of(item: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(item, min_size=least, max_size=9).map(tuple)


EPOCHS, I32, NUMBERS = up_to(2**32 - 1), up_to(I32_MAX), up_to(2**63 - 1)
TOKENS = tuples_of(I32)
CHANCES = st.floats(0, 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SHARES = st.builds(Share, I32, I32, I32, I32)
REMOVES = st.builds(Remove, I32, I32, st.integers(-(2**31), I32_MAX))
ALL_OPS = tuples_of(SHARES | REMOVES | st.builds(Accept, TOKENS))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    tokens = draw(tuples_of(I32, least=1))
    return Run(
        number=draw(NUMBERS),
        seq=draw(I32),
        position=draw(up_to(I32_MAX - len(tokens))),
        tokens=tokens,
        path=draw(TOKENS),
        n_draws=draw(up_to(len(tokens))),
        regime=draw(st.sampled_from(["prefill", "decode"])),
    )


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    run, hidden = draw(st.none() | runs()), None
    if run is not None and draw(st.booleans()):
        shape = (len(run.tokens), draw(st.integers(1, 7)))
        values = st.floats(width=32)  # NaN and infinities too
        hidden = draw(st_numpy.arrays(np.float32, shape, elements=values))
    skipped = draw(st.booleans())
    return Frame(draw(EPOCHS), draw(NUMBERS), draw(ALL_OPS), run, hidden, skipped)


@st.composite
def drafts(draw: st.DrawFn) -> Drafted:
    pairs = draw(st.lists(st.tuples(I32, CHANCES), max_size=9))
    tokens, probabilities = tuple(t for t, _ in pairs), tuple(p for _, p in pairs)
    return Drafted(draw(EPOCHS), draw(NUMBERS), tokens, probabilities)


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


@st.composite
def hellos(draw: st.DrawFn) -> Hello:
    first, last = sorted((draw(I32), draw(I32)))
    names = draw(NAMES), draw(I32), draw(NAMES), draw(DIGESTS), draw(NAMES)
    return Hello(draw(EPOCHS), draw(I32), *names, first, last)


STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    Frame: frames(),
    Result: st.builds(Result, EPOCHS, NUMBERS, TOKENS, st.booleans()),
    Cancel: st.builds(Cancel, EPOCHS, tuples_of(NUMBERS)),
    DraftRequest: st.builds(
        DraftRequest, EPOCHS, NUMBERS, I32, TOKENS, up_to(wire.MAX_TOKENS), CHANCES
    ),
    Drafted: drafts(),
    Goodbye: st.builds(Goodbye, EPOCHS),
    Failure: st.builds(Failure, EPOCHS, I32, TEXTS),
    Hello: hellos(),
    Begin: st.builds(Begin, EPOCHS, SAMPLINGS, up_to(2**32 - 1), I32),
    Begun: st.builds(Begun, EPOCHS, I32),
}


def assert_same(found: Message, expected: Message) -> None:
    """All fields equal, and of the same types; hidden states bit by bit."""
    if isinstance(found, Frame) and isinstance(expected, Frame):
        for name in ("dtype", "shape"):
            assert getattr(found.hidden, name, None) == getattr(expected.hidden, name, None)
        if found.hidden is not None and expected.hidden is not None:
            assert found.hidden.tobytes() == expected.hidden.tobytes()
        found, expected = replace(found, hidden=None), replace(expected, hidden=None)
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)


def sealed(place: int, payload: bytes, *, epoch: int = 0, version: int = 1) -> bytes:
    """What a peer sends who knows the format and may lie in the payload."""
    start = struct.pack("<4sHHIQ", b"PFWM", version, place, epoch, len(payload))
    return start + struct.pack("<I", zlib.crc32(start + payload)) + payload


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


# --- messages come back ---


def test_there_is_a_strategy_and_a_sample_for_every_message() -> None:
    assert set(STRATEGIES) == set(get_args(Message)) == {type(m) for m in SAMPLES.values()}


@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=60)
def test_a_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(STRATEGIES[kind])
    found = decode(encode(message))
    assert_same(found, message)
    assert encode(found) == encode(message)


def test_the_largest_that_is_allowed_comes_back() -> None:
    tokens = tuple(range(wire.MAX_TOKENS))
    run = Run(0, 0, I32_MAX - wire.MAX_TOKENS, tokens, path=tokens, n_draws=wire.MAX_TOKENS)
    for message in (
        Frame(0, 0, run=run, hidden=np.ones((wire.MAX_TOKENS, 1), np.float32)),
        Frame(0, 0, run=Run(0, 0, 0, (1,)), hidden=np.ones((1, wire.MAX_EMBD), np.float32)),
        Frame(0, 0, ops=OPS[:1] * wire.MAX_ITEMS),
        Cancel(0, tuple(range(wire.MAX_ITEMS))),
        Failure(0, 0, "ö" * (wire.MAX_TEXT_NBYTES // 2)),
    ):
        assert_same(decode(encode(message)), message)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    run = replace(RUN, tokens=tuple(np.array([5, 6])), position=cast(int, np.int32(100)))
    assert_same(decode(encode(Frame(1, 40, run=run))), Frame(1, 40, run=RUN))


def test_the_bytes_are_those_that_the_format_says() -> None:
    payload = struct.pack("<q", 7) + words(2, 13, 14) + words(1)
    assert encode(Result(5, 7, (13, 14), skipped=True)) == sealed(RESULT, payload, epoch=5)
    assert encode(Goodbye(6)) == sealed(GOODBYE, b"", epoch=6)
    ops = words(3) + words(0, 0, 3, 98, 100) + words(1, 2, 99, 2**32 - 1) + words(2, 2, 11, 12)
    run = struct.pack("<q", 7) + words(3, 100) + words(2, 5, 6) + words(3, 8, 9, 10) + words(2, 0)
    frame = struct.pack("<q", 40) + ops + words(1) + run + words(0) + words(1, 2, 5)
    expected = sealed(FRAME, frame + HIDDEN.astype("<f4").tobytes(), epoch=1)
    assert encode(SAMPLES["frame"]) == expected


def test_the_format_has_not_changed_without_a_new_version() -> None:
    digest = hashlib.sha256(b"".join(map(encode, SAMPLES.values()))).hexdigest()
    assert (wire.VERSION, digest[:16]) == (1, "ea80393c99b628f9")


# --- hidden states ---


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_hidden_states_are_a_view_that_cannot_be_written(kind: Any) -> None:
    data = kind(encode(SAMPLES["frame"]))
    hidden = cast(Frame, decode(data)).hidden
    assert hidden is not None
    assert np.shares_memory(hidden, np.frombuffer(data, np.uint8))
    assert hidden.flags.aligned
    assert not hidden.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        hidden[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        hidden.flags.writeable = True


def test_what_was_encoded_does_not_change_with_the_array() -> None:
    hidden = HIDDEN.copy()
    data = encode(Frame(1, 40, ops=OPS, run=RUN, hidden=hidden))
    hidden[:] = 0
    assert_same(decode(data), SAMPLES["frame"])


def test_hidden_states_are_written_row_by_row_however_they_lie() -> None:
    for hidden in (np.asfortranarray(HIDDEN), np.repeat(HIDDEN, 2, axis=1)[:, ::2]):
        assert not hidden.flags.c_contiguous
        message = Frame(1, 40, ops=OPS, run=RUN, hidden=hidden)
        assert encode(message) == encode(SAMPLES["frame"])


@pytest.mark.parametrize(("n_rows", "n_embd"), [(1, 1), (1, 576), (16, 2048), (300, 64)])
def test_the_bytes_of_a_frame_are_known_before_it_is_made(n_rows: int, n_embd: int) -> None:
    run = Run(1, 2, 3, (4,) * n_rows)
    frame = Frame(5, 6, run=run, hidden=np.zeros((n_rows, n_embd), np.float32))
    assert len(encode(frame)) == frame_nbytes(n_rows, n_embd)
    more = replace(frame, run=replace(run, path=(1, 2, 3)), ops=(Share(0, 1, 2, 3),))
    assert len(encode(more)) == frame_nbytes(n_rows, n_embd) + 3 * 4 + 5 * 4


# --- bytes that are no message ---


@samples
def test_every_truncation_is_refused(message: Message) -> None:
    data = bytes(encode(message))
    for n in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:n])
        with pytest.raises(WireError):
            decode(data[len(data) - n :])
    for n in range(24, len(data)):  # of the payload, whose checksum is right
        with pytest.raises(WireError):
            decode(sealed(data[6], data[24:n]))


@samples
def test_every_flipped_byte_is_refused(message: Message) -> None:
    data = encode(message)
    for i in range(len(data)):
        for flips in range(1, 256):
            data[i] ^= flips
            with pytest.raises(WireError):
                decode(data)
            data[i] ^= flips
    assert_same(decode(data), message)


@samples
def test_bytes_after_a_message_are_refused(message: Message) -> None:
    data = bytes(encode(message))
    with pytest.raises(WireError, match="bytes of payload"):
        decode(data + b"\0")
    with pytest.raises(WireError, match="bytes of payload"):
        decode(sealed(data[6], data[24:] + b"\0\0\0\0", epoch=message.epoch))


def assert_refused_or_exact(data: bytes) -> None:
    """No bytes but those of a message decode to it."""
    try:
        message = decode(data)
    except WireError:
        return
    assert encode(message) == data


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=200)
def test_random_bytes_are_refused(data: bytes, begins_well: bool) -> None:
    with pytest.raises(WireError):
        decode(b"PFWM\1\0" * begins_well + data)


@given(st.integers(0, 10), st.binary(max_size=80), EPOCHS)
@settings(max_examples=300)
def test_random_payloads_are_refused_or_those_of_a_message(
    place: int, payload: bytes, epoch: int
) -> None:
    assert_refused_or_exact(sealed(place, payload, epoch=epoch))


SUSPECT = [0, 1, 2, 3, 255, 4096, 4097, 65536, 65537, 2**31 - 1, 2**31, 2**32 - 1, 0x7FF00000]


@samples
@given(data=st.data())
@settings(max_examples=60)
def test_changed_words_are_refused_or_make_another_message(
    message: Message, data: st.DataObject
) -> None:
    sent = bytes(encode(message))
    payload = bytearray(sent[24:])
    n_words = len(payload) // 4
    for _ in range(data.draw(st.integers(1, 3)) if n_words else 0):
        at = 4 * data.draw(st.integers(0, n_words - 1))
        struct.pack_into("<I", payload, at, data.draw(st.sampled_from(SUSPECT)))
    assert_refused_or_exact(sealed(sent[6], bytes(payload), epoch=message.epoch))


ZERO = struct.pack("<q", 0)  # a number of a frame, run or request
RUN_OF_ONE = ZERO + words(0, 0) + words(1, 5) + words(0) + words(1, 1)
WITH_ROWS = ZERO + words(0) + words(1) + RUN_OF_ONE + words(0) + words(1)


def hello(model: str, first: int, last: int) -> bytes:
    names = [struct.pack("<I", len(name)) + name.encode() for name in ("h", "0.1", model, "avx2")]
    return words(1) + names[0] + words(9) + b"".join(names[1:]) + words(first, last)


def begin(json: str) -> tuple[int, bytes, str]:
    return BEGIN, words(len(json)) + json.encode() + words(0, 0), "sampling: "


JSON = to_json(SAMPLING)
LIES: dict[str, tuple[int, bytes, str]] = {
    "ops": (FRAME, ZERO + words(2**32 - 1), "length of Frame.ops: expected 0 to 4096, found 42949"),
    "op": (FRAME, ZERO + words(1, 3), "Frame.ops: expected 0 to 2, found 3"),
    "accepted": (FRAME, ZERO + words(1, 2, 65537), "Accept.tokens: expected 0 to 65536, found 655"),
    "flag": (FRAME, ZERO + words(0, 2), "Frame.run: expected 0 to 1, found 2"),
    "none": (FRAME, ZERO + words(0, 1) + ZERO + words(0, 0, 0), "Run.tokens: expected 1 to 65536"),
    "many": (FRAME, ZERO + words(0, 1) + ZERO + words(0, 0, 65537), "Run.tokens: .* found 65537"),
    "no rows": (FRAME, WITH_ROWS + words(0, 5), "rows of Frame.hidden: expected 1 to .* found 0"),
    "rows": (FRAME, WITH_ROWS + words(65537, 1), "rows of Frame.hidden: expected 1 to 65536"),
    "columns": (FRAME, WITH_ROWS + words(1, 65537), "columns of Frame.hidden: expected 1 to"),
    "16 GiB": (FRAME, WITH_ROWS + words(65536, 65536), "expected 17179869184 more bytes, found 0"),
    "other rows": (FRAME, WITH_ROWS + words(2, 1, 0, 0), "its run's: expected 1, found 2"),
    "no run": (FRAME, ZERO + words(0, 0, 0, 1, 1, 1, 0), "its run's: expected 0, found 1"),
    "token": (RESULT, ZERO + words(1, 2**31) + words(0), "Result.draws: expected 0 to .* found -2"),
    "draws": (RESULT, ZERO + words(65536), "Result.draws: expected 4 more bytes, found 0"),
    "run": (CANCEL, words(1) + b"\xff" * 8, "Cancel.runs: expected 0 to .* found -1"),
    "runs": (CANCEL, words(4097), "length of Cancel.runs: expected 0 to 4096, found 4097"),
    "nan": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", np.nan), "found nan"),
    "inf": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", np.inf), "found inf"),
    "-inf": (DRAFT_REQUEST, ZERO + words(0, 0, 0) + struct.pack("<d", -np.inf), "found -inf"),
    "surely": (DRAFTED, ZERO + words(1, 0, 1) + struct.pack("<d", 1.5), "0 to 1, found 1.5"),
    "uneven": (DRAFTED, ZERO + words(1, 0, 0), "probabilities: expected 1, found 0"),
    "text": (FAILURE, words(0, 4097) + b"x" * 4097, "bytes of Failure.reason: expected 0 to 4096"),
    "half a character": (FAILURE, words(0, 1) + b"\xc3", "Failure.reason: expected UTF-8"),
    "surrogate": (FAILURE, words(0, 3) + b"\xed\xa0\x80", "Failure.reason: expected UTF-8"),
    "digest": (HELLO, hello("0" * 63, 0, 1), "Hello.model: expected a sha256 in hex, found '000"),
    "layers": (HELLO, hello("0" * 64, 2, 1), "Hello.last: expected 2 to 2147483647, found 1"),
    "no json": begin("{"),
    "no parameters": begin("[1,2]"),
    "deep": begin("[" * 100_000),
    "a word": begin(JSON.replace('"top_k":40', '"top_k":"40"')),
    "a flag": begin(JSON.replace('"top_k":40', '"top_k":true')),
    "a biased word": begin(JSON.replace("-0.25", '"-0.25"')),
    "biases of no token": begin(JSON.replace('"7":', '"7.5":')),
    "biases without names": begin(JSON.replace('{"3":-1e999,"7":-0.25}', "[1]")),
    "no seed": begin(JSON.replace(f"{2**64 - 1}", "null")),
    "seed": begin(JSON.replace(f"{2**64 - 1}", f"{2**64}")),
    "digits": begin(JSON.replace(f"{2**64 - 1}", "1" * 5000)),
    "constant": begin(JSON.replace("-1e999", "-Infinity")),
    "other name": begin(JSON.replace("top_k", "top_q")),
    "twice": begin(JSON.replace("{", '{"top_k":40,', 1)),
    "spaces": begin(JSON.replace(",", ", ")),
    "out of range": begin(JSON.replace('"top_p":0.1', '"top_p":1.1')),
    "type": (10, b"", "type of message: expected 0 to 9, found 10"),
}


@pytest.mark.parametrize(("place", "payload", "says"), LIES.values(), ids=LIES.keys())
def test_a_size_or_value_that_lies_is_refused_by_its_name(
    place: int, payload: bytes, says: str
) -> None:
    with pytest.raises(WireError, match=says):
        decode(sealed(place, payload))


def test_a_length_that_is_not_the_messages_is_refused() -> None:
    payload = ZERO + words(0, 0)
    for n in (0, 15, 17, 2**32, 2**64 - 1):
        start = struct.pack("<4sHHIQ", b"PFWM", 1, RESULT, 0, n)
        data = start + struct.pack("<I", zlib.crc32(start + payload)) + payload
        with pytest.raises(WireError, match=f"bytes of payload: expected {n}, found 16"):
            decode(data)


def test_another_version_another_protocol_and_damage_are_told_apart() -> None:
    with pytest.raises(WireError, match="version: expected 1, found 2: run the same pyflow"):
        decode(sealed(GOODBYE, b"", version=2))
    with pytest.raises(WireError, match="magic: expected b'PFWM', found b'GET '"):
        decode(b"GET / HTTP/1.1\r\nHost: 10.0.0.2\r\n\r\n")
    with pytest.raises(WireError, match=r"crc32: expected 0x\w+, found 0x"):
        decode(sealed(GOODBYE, b"")[:-1] + b"\xaa")
    with pytest.raises(WireError, match="header: expected 24 bytes, found 0"):
        decode(b"")


# --- messages that must not be sent ---


def run(**changes: Any) -> Frame:
    return Frame(0, 0, run=replace(RUN, **changes))


def rows(hidden: Any) -> Frame:
    return Frame(0, 0, run=RUN, hidden=hidden)


NO_MATRIX = "Frame.hidden: expected 2 dimensions of float32, found "
BAD: dict[str, tuple[Any, str]] = {
    "epoch": (Goodbye(-1), "epoch: expected 0 to 4294967295, found -1"),
    "late epoch": (Goodbye(2**32), "epoch: expected 0 to 4294967295, found 4294967296"),
    "number": (Frame(0, -1), "Frame.number: expected 0 to"),
    "large number": (Frame(0, 2**63), "Frame.number: expected a number .* found 9223372036854"),
    "share": (Frame(0, 0, ops=(Share(0, -1, 0, 0),)), "Share.dst: expected 0 to .* found -1"),
    "end": (Frame(0, 0, ops=(Share(0, 1, 0, -1),)), "Share.p1: expected 0 to .* found -1"),
    "ops": (Frame(0, 0, ops=OPS[:1] * 4097), "length of Frame.ops: expected 0 to 4096"),
    "op": (Frame(0, 0, ops=(cast(Any, RUN),)), "Frame.ops: expected one of .*'Share'.* .*Run"),
    "no op": (Frame(0, 0, ops=(cast(Any, None),)), "Frame.ops: expected a number .* found None"),
    "tokens": (run(tokens=(0,) * 65537), "length of Run.tokens: expected 1 to 65536, found 65537"),
    "no tokens": (run(tokens=(), n_draws=0), "length of Run.tokens: expected 1 to 65536, found 0"),
    "token": (run(tokens=(1, -1)), "Run.tokens: expected 0 to 2147483647, found -1"),
    "draws": (run(n_draws=3), "Run.n_draws: expected 0 to 2, found 3"),
    "last position": (run(position=I32_MAX - 1), "Run.position: expected 0 to 2147483645"),
    "regime": (run(regime="x"), "Run.regime: expected one of .*'prefill', 'decode'.* found 'x'"),
    "half": (rows(HIDDEN.astype(np.float16)), NO_MATRIX + "2 of float16"),
    "double": (rows(HIDDEN.astype(np.float64)), NO_MATRIX + "2 of float64"),
    "one row": (rows(HIDDEN[0]), NO_MATRIX + "1 of float32"),
    "rows": (rows(HIDDEN[:1]), "rows of Frame.hidden, .*: expected 2, found 1"),
    "no columns": (rows(HIDDEN[:, :0]), "columns of Frame.hidden: expected 1 to 65536, found 0"),
    "no run": (Frame(0, 0, hidden=HIDDEN), "rows of Frame.hidden, .*: expected 0, found 2"),
    "least": (DraftRequest(0, 0, 0, (), 1, float("nan")), "DraftRequest.least: .* found nan"),
    "unlikely": (DraftRequest(0, 0, 0, (), 1, -0.1), "least: expected 0 to 1, found -0.1"),
    "huge": (DraftRequest(0, 0, 0, (), 1, 10**400), "DraftRequest.least: expected a number"),
    "surely": (Drafted(0, 0, (1,), (1.01,)), "Drafted.probabilities: expected 0 to 1, found 1.01"),
    "nan": (Drafted(0, 0, (1,), (float("nan"),)), "Drafted.probabilities: .* found nan"),
    "inf": (Drafted(0, 0, (1,), (float("inf"),)), "Drafted.probabilities: .* found inf"),
    "uneven": (Drafted(0, 0, (1, 2), (0.5,)), "Drafted.probabilities: expected 2, found 1"),
    "reason": (Failure(0, 0, "x" * 4097), "bytes of Failure.reason: expected 0 to 4096"),
    "surrogate": (Failure(0, 0, "\ud800"), "Failure.reason: expected UTF-8"),
    "word": (Result(0, 0, (cast(Any, "a"),)), "Result.draws: expected a number .* found 'a'"),
    "none": (Failure(0, cast(Any, None), ""), "Failure.rank: expected a number .* found None"),
    "no seed": (Begin(0, SamplingParams(), 0, 0), "sampling.seed: expected a number, found None"),
    "stream": (Begin(0, SAMPLING, 2**32, 0), "Begin.stream: expected a number .* found 4294967296"),
    "model": (
        replace(cast(Hello, SAMPLES["hello"]), model="A" * 64),
        "Hello.model: expected a sha",
    ),
    "no message": (Share(0, 0, 0, 0), "message: expected one of .*'Frame'.*, found Share"),
}


@pytest.mark.parametrize(("message", "says"), BAD.values(), ids=BAD.keys())
def test_a_message_that_would_be_refused_is_not_sent(message: Any, says: str) -> None:
    with pytest.raises(WireError, match=says) as caught:
        encode(message)
    assert isinstance(caught.value, PyflowError)
