"""A message comes back as it was, and no other bytes decode to it."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, cast, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pyflow.cluster.wire import codec as wire
from pyflow.cluster.wire.codec import WireError, decode, encode
from pyflow.cluster.wire.messages import (
    MAX_TEXT,
    MAX_TOKENS,
    Cancel,
    Failure,
    Frame,
    Message,
    Result,
    Run,
    Share,
)
from pyflow.cluster.wire.parts import MAX_ITEMS

from .samples import (
    HIDDEN,
    I32_MAX,
    OPS,
    RUN,
    SAMPLES,
    START,
    STRATEGIES,
    assert_same,
    packed,
    samples,
    sealed,
)

# --- messages come back ---


def test_there_is_a_strategy_and_a_sample_for_every_message() -> None:
    assert set(STRATEGIES) == set(get_args(Message)) == {type(m) for m in SAMPLES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRATEGIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=60)
def test_a_message_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    message = data.draw(STRATEGIES[kind])
    found = decode(encode(message))
    assert_same(found, message)
    assert encode(found) == encode(message)


def test_the_largest_that_is_allowed_comes_back() -> None:
    tokens = tuple(range(MAX_TOKENS))
    run = Run(0, 0, I32_MAX - MAX_TOKENS, tokens, path=tokens, n_draws=MAX_TOKENS)
    for message in (
        Frame(0, 0, run=run, hidden=np.ones((MAX_TOKENS, 1), np.float32)),
        Frame(0, 0, run=Run(0, 0, 0, (1,)), hidden=np.ones((1, wire.MAX_EMBD), np.float32)),
        Frame(0, 0, ops=OPS[:1] * MAX_ITEMS),
        Cancel(0, tuple(range(MAX_ITEMS))),
        Failure(0, 0, "ö" * MAX_TEXT),
    ):
        assert_same(decode(encode(message)), message)


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    run = replace(RUN, tokens=tuple(np.array([5, 6])), position=cast(int, np.int32(100)))
    assert_same(decode(encode(Frame(1, 40, run=run))), Frame(1, 40, run=RUN))


def test_the_bytes_are_those_that_the_format_says() -> None:
    message = msgspec.msgpack.encode(["Result", 5, 7, [13, 14], True, [30], [], []])
    assert len(message) % 4 != 0
    data = encode(Result(5, 7, (13, 14), skipped=True, answers=(30,)))
    assert data == sealed(message, pad=bytes(-len(message) % 4))
    data = encode(SAMPLES["frame"])
    assert data == sealed(packed(SAMPLES["frame"]), HIDDEN.astype("<f4").tobytes(), (2, 5))
    ops = [["Share", 0, 3, 98, 100], ["Remove", 2, 99, -1], ["Accept", [11, 12]]]
    run = [7, 3, 100, [5, 6], [8, 9, 10], 2, "prefill", None, 0]
    found = msgspec.msgpack.decode(packed(SAMPLES["frame"]))
    assert found == ["Frame", 1, 40, ops, run, None, False]


def test_the_format_has_not_changed_without_a_new_version() -> None:
    digest = hashlib.sha256(b"".join(map(encode, SAMPLES.values()))).hexdigest()
    assert (wire.VERSION, digest[:16]) == (17, "3e19242a34142e7a")


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
def test_a_frame_is_little_more_than_its_rows(n_rows: int, n_embd: int) -> None:
    run = Run(1, 2, 3, (I32_MAX,) * n_rows, path=(1, 2, 3))
    hidden = np.zeros((n_rows, n_embd), np.float32)
    frame = Frame(5, 6, (Share(0, 1, 2, 3),), run, hidden)
    assert 0 < len(encode(frame)) - hidden.nbytes - 5 * n_rows < 256


# --- bytes that are no message ---


@samples
def test_every_truncation_is_refused(message: Message) -> None:
    data = bytes(encode(message))
    for n in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:n])
        with pytest.raises(WireError):
            decode(data[len(data) - n :])
    whole = packed(message)
    rows = data[START + len(whole) + -len(whole) % 4 :]
    shape = struct.unpack_from("<I", data, 8) + struct.unpack_from("<H", data, 6)
    assert sealed(whole, rows, shape) == data
    for n in range(len(whole)):  # with a checksum that is right
        with pytest.raises(WireError):
            decode(sealed(whole[:n], rows, shape))
    for n in range(len(rows)):
        with pytest.raises(WireError):
            decode(sealed(whole, rows[:n], shape))


@pytest.mark.slow
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
    data, whole = bytes(encode(message)), packed(message)
    with pytest.raises(WireError, match="bytes after the header"):
        decode(data + b"\0")
    for more in (b"\0", b"\0\0\0\0", b"\xc0"):
        with pytest.raises(WireError):
            decode(sealed(whole + more))
    for n in range(4):
        if bytes(n) != bytes(-len(whole) % 4):
            with pytest.raises(WireError):
                decode(sealed(whole, pad=bytes(n)))
    if n := -len(whole) % 4:
        with pytest.raises(WireError):
            decode(sealed(whole, pad=b"\1" * n))


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
        decode(b"PFWM\3\0" * begins_well + data)


@given(st.binary(max_size=80), st.binary(max_size=16), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=300)
def test_random_messages_are_refused_or_exact(
    message: bytes, rows: bytes, n_rows: int, n_columns: int
) -> None:
    assert_refused_or_exact(sealed(message, rows, (n_rows, n_columns)))


SUSPECT = [0, 1, -1, 255, 4097, 65537, 2**31, 2**32 - 1, 2**63, 0.5, 1e999, None, True, "", b"", []]
PLAIN = st.sampled_from(SUSPECT) | st.lists(st.sampled_from(SUSPECT), max_size=3)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a plain message, with every key that it has."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += places(inner)
    return found


@pytest.mark.slow
@samples
@given(data=st.data())
@settings(max_examples=60)
def test_changed_fields_are_refused_or_make_another_message(
    message: Message, data: st.DataObject
) -> None:
    plain = msgspec.msgpack.decode(packed(message))
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from(places(plain)))
        container[key] = data.draw(PLAIN)
    sent = bytes(encode(message))
    rows = sent[START + -(-len(packed(message)) // 4) * 4 :]
    shape = struct.unpack_from("<I", sent, 8) + struct.unpack_from("<H", sent, 6)
    assert_refused_or_exact(sealed(msgspec.msgpack.encode(plain), rows, shape))


@samples
@given(data=st.data())
@settings(max_examples=60)
def test_changed_bytes_are_refused_or_make_another_message(
    message: Message, data: st.DataObject
) -> None:
    changed = bytearray(packed(message))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    assert_refused_or_exact(sealed(bytes(changed)))
