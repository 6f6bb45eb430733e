"""A message comes back as it was, and no other bytes decode to it."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyflow.cluster.wire import codec as wire
from pyflow.cluster.wire.codec import WireError, decode, encode, frame_nbytes
from pyflow.cluster.wire.messages import (
    Cancel,
    Failure,
    Frame,
    Goodbye,
    Message,
    Result,
    Run,
    Share,
)

from .samples import (
    DRAFTED,
    EPOCHS,
    FRAME,
    GOODBYE,
    HIDDEN,
    I32_MAX,
    OPS,
    RESULT,
    RUN,
    SAMPLES,
    STRATEGIES,
    assert_same,
    samples,
    sealed,
    words,
)

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
    payload = struct.pack("<q", 7) + words(2, 13, 14) + words(1) + words(0)
    assert encode(Result(5, 7, (13, 14), skipped=True)) == sealed(RESULT, payload, epoch=5)
    assert encode(Goodbye(6)) == sealed(GOODBYE, b"", epoch=6)
    ops = words(3) + words(0, 0, 3, 98, 100) + words(1, 2, 99, 2**32 - 1) + words(2, 2, 11, 12)
    run = (
        struct.pack("<q", 7) + words(3, 100) + words(2, 5, 6) + words(3, 8, 9, 10) + words(2, 0, 0)
    )
    frame = struct.pack("<q", 40) + ops + words(1) + run + words(0) + words(1, 2, 5)
    expected = sealed(FRAME, frame + HIDDEN.astype("<f4").tobytes(), epoch=1)
    assert encode(SAMPLES["frame"]) == expected
    asks = words(1) + struct.pack("<q", 3) + words(3, 7, 8, 9)
    asks += words(3, 2**32 - 1, 0, 2**32 - 1) + words(3, 2, 2**32 - 1, 2)
    payload = struct.pack("<q", 9) + words(0, 0) + asks
    assert encode(SAMPLES["drafted, asking"]) == sealed(DRAFTED, payload, epoch=1)


def test_the_format_has_not_changed_without_a_new_version() -> None:
    digest = hashlib.sha256(b"".join(map(encode, SAMPLES.values()))).hexdigest()
    assert (wire.VERSION, digest[:16]) == (9, "826258edc6547610")


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
        decode(b"PFWM\3\0" * begins_well + data)


@given(st.integers(0, 15), st.binary(max_size=80), EPOCHS)
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
