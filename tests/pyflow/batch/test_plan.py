"""How many rows each text gets: plain functions."""

from hypothesis import given
from hypothesis import strategies as st

from pyflow.batch.costs import BatchCosts
from pyflow.batch.fair import Shares
from pyflow.batch.plan import Budget, Reader, read_rows


def known(per_row: float = 0.003, per_step: float = 0.02) -> BatchCosts:
    costs = BatchCosts()
    for n in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        for _ in range(3):
            costs.observe(n, 0, per_step + per_row * n)
    return costs


READERS = st.lists(
    st.builds(
        Reader,
        n_left=st.integers(1, 9000),
        n_cells=st.integers(0, 9000),
        watched=st.booleans(),
        counter=st.floats(0, 1e6),
        waited_s=st.floats(0, 100),
    ),
    min_size=1,
    max_size=9,
)
COSTS = known()


@given(READERS, st.lists(st.integers(0, 9000), max_size=16), st.floats(0.01, 2))
def test_a_step_keeps_to_its_rows_and_seconds_and_always_goes_on(
    readers: list[Reader], writers: list[int], itl_s: float
) -> None:
    rows = read_rows(readers, writers, Budget(512, itl_s), COSTS)
    assert all(0 <= n <= reader.n_left for n, reader in zip(rows, readers, strict=True))
    assert 0 < sum(rows) <= 512
    most = max(itl_s, 1.25 * COSTS.seconds(len(writers))) if writers else Budget.IDLE_S
    if sum(rows) > Budget.TILE:
        assert COSTS.seconds(len(writers) + sum(rows)) <= most + 1e-9
    # All but the last reader in turn are read to their end.
    assert sum(0 < n < reader.n_left for n, reader in zip(rows, readers, strict=True)) <= 2


def test_without_a_limit_as_many_rows_are_read_as_fit() -> None:
    readers = [Reader(n_left=300, n_cells=0), Reader(n_left=900, n_cells=0)]
    assert read_rows(readers, [5] * 8, Budget(504), COSTS) == [300, 204]


def test_least_served_go_first_then_the_shortest_but_whoever_has_waited_long_before_all() -> None:
    def first(*readers: Reader) -> int:
        rows = read_rows(readers, [1], Budget(16, 0.01), COSTS)
        return next(i for i, n in enumerate(rows) if n)

    assert first(Reader(99, 0, counter=9.0), Reader(999, 0, counter=8.0)) == 1
    assert first(Reader(999, 0), Reader(99, 0)) == 1
    assert first(Reader(99, 0, watched=False), Reader(999, 0)) == 1
    assert first(Reader(99, 0, counter=9.0, waited_s=9.0), Reader(99, 0, counter=8.0)) == 0


def test_cells_cost_what_they_were_seen_to_cost() -> None:
    costs = known()
    for _ in range(200):
        costs.observe(16, 160_000, 0.02 + 0.003 * 16 + 160_000 * 1e-7)
    assert abs(costs.per_cell / 1e-7 - 1) < 0.1
    assert abs(costs.seconds(16) / (0.02 + 0.003 * 16) - 1) < 0.05
    assert abs(costs.seconds(512) / (0.003 * 512 + 0.02) - 1) < 0.05


def test_rows_of_prompts_cost_what_their_own_arithmetic_does() -> None:
    costs = BatchCosts(has_prefill=True)
    costs.observe(64, 0, 0.02 + 64 * 0.0003, n_read=64)
    assert costs.seconds(1) > 0  # the best guess so far
    for n in (1, 2, 4, 8, 16, 32):
        costs.observe(n, 0, 0.02 + 0.003 * n)
    for n in (32, 64, 128, 256):  # beside eight texts that are written
        costs.observe(8 + n, 0, 0.04 + 8 * 0.003 + n * 0.0003, n_read=n)
    assert abs(costs.seconds(8) - 0.044) < 1e-3
    assert abs(costs.seconds(264, n_read=256) - 0.1408) < 1e-3
    budget = Budget(512, 0.1)
    prompt, drawn = Reader(n_left=900, n_cells=0), Reader(900, 0, is_prompt=False)
    assert read_rows([prompt], [0] * 8, budget, costs) == [96]  # three panels
    assert read_rows([drawn], [0] * 8, budget, costs) == [16]
    assert read_rows([prompt], [], Budget(2000, 0.1), costs) == [900]


def test_who_comes_back_has_saved_nothing_up() -> None:
    shares = Shares()
    shares.activate(["a", "b"])
    shares.add("a", written=100)
    shares.add("b", written=50)
    shares.activate(["a"])
    shares.add("a", written=100)
    shares.activate(["a", "b", "c"])
    assert shares.counter("a") == shares.counter("b") == shares.counter("c") == 800
