"""How texts are cut: llama.cpp's chunks, and strided windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyflow.quant.measure.windows import Cut, cut

from pyflow.errors import ShapeError


def scored(whole: Cut) -> list[int]:
    """The predicted tokens; a text of arange tells where they were."""
    return [t for w in whole.windows for t in w.tokens[w.first + 1 :].tolist()]


@pytest.mark.parametrize(("n_ctx", "n_scored"), [(4, 1), (5, 2), (512, 255), (513, 256)])
def test_half_a_chunk_less_one_is_scored(n_ctx: int, n_scored: int) -> None:
    windows = cut(np.zeros(2 * n_ctx, np.int32), n_ctx).windows
    assert [(w.first, w.n_scored) for w in windows] == [(n_ctx // 2, n_scored)] * 2


def test_bos_replaces_the_first_token_of_every_chunk_and_nothing_else() -> None:
    tokens = np.arange(1, 17, dtype=np.int32)
    whole = cut(tokens, 8, bos=99)
    assert [w.tokens.tolist() for w in whole.windows] == [
        [99, 2, 3, 4, 5, 6, 7, 8],
        [99, 10, 11, 12, 13, 14, 15, 16],
    ]
    assert tokens[0] == 1


def test_the_remainder_of_chunks_is_dropped() -> None:
    windows = cut(np.arange(35, dtype=np.int64), 8).windows
    assert [w.tokens.tolist() for w in windows] == [list(range(b, b + 8)) for b in range(0, 32, 8)]
    assert windows[0].tokens.dtype == np.int32


@given(st.data())
def test_strided_windows_score_every_token_but_the_first_once_with_enough_context(
    data: st.DataObject,
) -> None:
    n_ctx = data.draw(st.integers(4, 20))
    n = data.draw(st.integers(2 * n_ctx, 100))
    stride = data.draw(st.integers(1, n_ctx - 1))
    whole = cut(np.arange(n), n_ctx, method="strided", stride=stride)
    assert scored(whole) == list(range(1, n))
    assert all(len(w.tokens) <= n_ctx for w in whole.windows)
    assert all(w.first >= n_ctx - stride - 1 for w in whole.windows[1:])


def test_without_overlap_the_first_token_of_each_window_is_not_scored() -> None:
    whole = cut(np.arange(17), 8, method="strided", stride=8)
    assert scored(whole) == [*range(1, 8), *range(9, 16)]
    assert [len(w.tokens) for w in whole.windows] == [8, 8]


def test_facts_tell_texts_and_methods_apart() -> None:
    tokens = np.arange(32)
    facts = [
        cut(tokens, 8).facts,
        cut(tokens[::-1], 8).facts,
        cut(tokens, 8, bos=1).facts,
        cut(tokens, 16).facts,
        cut(tokens, 8, method="strided").facts,
        cut(tokens, 8, method="strided", stride=3).facts,
    ]
    assert all(a != b for i, a in enumerate(facts) for b in facts[:i])
    assert cut(tokens.astype(np.int64), 8).facts == facts[0]


def test_fewer_than_two_contexts_are_refused_with_both_lengths() -> None:
    with pytest.raises(ShapeError, match=r"1,024 .*1,023"):
        cut(np.zeros(1023, np.int32), 512)


@pytest.mark.parametrize("n_ctx", [3, 0, -8])
def test_senseless_sizes_are_refused(n_ctx: int) -> None:
    with pytest.raises(ValueError, match=f"^n_ctx: .*{n_ctx}"):
        cut(np.zeros(64, np.int32), n_ctx)


@pytest.mark.parametrize(("method", "stride"), [("strided", 0), ("strided", 9), ("llama.cpp", 4)])
def test_senseless_strides_are_refused(method: str, stride: int) -> None:
    with pytest.raises(ValueError, match=f"^stride: .*1 to 8.*{stride}"):
        cut(np.zeros(64, np.int32), 8, method=method, stride=stride)  # type: ignore[arg-type]
