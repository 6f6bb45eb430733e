"""Names of cells: of a text and of which tokens were drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyflow.engine.cached_text import still_drawn
from pyflow.engine.origins import cell_names, drawn_in, n_alike, tokens_of, was_drawn

NAMES = st.lists(st.integers(-5, 4), max_size=12)


@given(NAMES)
def test_names_hold_tokens_and_origins(names: list[int]) -> None:
    tokens, drawn = tokens_of(names), drawn_in(names)
    assert cell_names(tokens, drawn) == names
    assert [was_drawn(drawn, i) for i in range(len(names))] == [name < 0 for name in names]


@given(NAMES)
def test_a_run_ends_where_the_origin_changes(names: list[int]) -> None:
    drawn, at, runs = drawn_in(names), 0, []
    while at < len(names):
        runs.append(n_alike(drawn, at, len(names)))
        part = names[at : at + runs[-1]]
        assert len({name < 0 for name in part}) == 1
        at += runs[-1]
        assert at == len(names) or (names[at] < 0) != (part[0] < 0)


def test_tokens_stay_drawn_where_a_text_goes_on_or_has_lost_some() -> None:
    names = [1, 2, ~3, ~4, 5, ~6]
    assert still_drawn(names, [1, 2, 3, 4, 5, 6, 7]) == ((2, 4), (5, 6))
    assert still_drawn(names, [1, 2, 3, 9, 5, 6]) == ((2, 3),)
    assert still_drawn(names, [1, 4, 5, 6, 7], n_dropped=2) == ((1, 2), (3, 4))
    assert still_drawn([], [1, 2]) == ()
