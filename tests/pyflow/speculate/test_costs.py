"""What steps cost is learned from the steps that are made."""

from __future__ import annotations

import numpy as np
import pytest

from pyflow.speculate.controller import Controller
from pyflow.speculate.costs import StepCosts
from pyflow.speculate.tree import DraftTree


def test_ratios_become_what_is_measured() -> None:
    costs = StepCosts()
    truth = {1: 0.010, 4: 0.011, 8: 0.014}
    for _ in range(40):
        for n_rows, seconds in truth.items():
            costs.observe(n_rows, seconds)
    assert costs.seconds(1) == pytest.approx(0.010, rel=0.01)
    assert costs.ratio(4) == pytest.approx(1.1, rel=0.02)
    assert costs.ratio(8) == pytest.approx(1.4, rel=0.02)
    assert 1.1 < costs.ratio(6) < 1.4
    assert costs.ratio(16) > 1.4


def test_more_rows_never_cost_less_and_outliers_do_not_count() -> None:
    costs = StepCosts()
    for n_rows, seconds in ((1, 0.01), (8, 0.03), (12, 0.02)) * 20:
        costs.observe(n_rows, seconds)
    ratios = [costs.ratio(n) for n in range(1, 64)]
    assert ratios == sorted(ratios)
    assert ratios[0] == 1
    assert costs.ratio(8) == costs.ratio(12) == pytest.approx(2)


def test_a_first_step_that_was_held_up_is_forgotten() -> None:
    costs = StepCosts()
    costs.observe(1, 0.1)
    assert costs.stale(1)
    for _ in range(300):
        if costs.stale(1):
            costs.observe(1, 0.01)
        costs.observe(5, 0.014)
    assert costs.ratio(5) > 1.2
    assert not costs.stale(1)


def test_rows_that_looked_dear_are_tried_again_some_time() -> None:
    costs = known({1: 0.01, 2: 0.04})
    assert costs.ratio(2) > 2
    for _ in range(StepCosts.FORGOTTEN + 1):
        costs.observe(1, 0.01)
    assert costs.ratio(2) < 1.1


def known(ratio: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    for n_rows, seconds in ratio.items():
        for _ in range(StepCosts.SAMPLES):
            costs.observe(n_rows, seconds)
    return costs


def test_a_tree_gains_what_its_best_part_brings() -> None:
    controller = Controller(known({1: 1.0, 2: 1.0, 3: 1.5, 4: 2.0}))
    tree = DraftTree()
    tree.insert([7, 8, 9], score=0.9)
    # Two rows: 1.9 tokens; three: 2.71 / 1.5; four: 3.44 / 2.
    assert controller.gain("a", tree) == pytest.approx(1.9, rel=0.01)
    tree.scores = [0.02, 0.02, 0.02]
    assert controller.gain("a", tree) == 0
    tree.asked = [0]
    assert controller.gain("a", tree) > 100


def test_a_method_is_known_by_what_it_has_brought_with_its_drafting() -> None:
    controller = Controller(known({1: 1.0, 2: 1.0, 3: 1.0}))
    tree = DraftTree()
    tree.insert([7, 8], score=0.9)
    assert controller.usual("heads") == 0
    for _ in range(30):
        controller.observe("heads", tree, [0, 1], draft_cost=0.5)
    assert controller.usual("heads") == pytest.approx(3 / 1.5)
    for _ in range(60):
        controller.spent("heads", 0.5)
    assert controller.usual("heads") < 1


def test_a_method_is_off_when_it_has_lost_a_few_steps() -> None:
    """Not by bad luck alone: one that pays a fifth stays on, one that loses a sixth does not."""
    rng = np.random.default_rng(0)
    tree = DraftTree([7], [-1], scores=[0.5])
    for right, least, most in ((0.5, 900, 1000), (0.06, 20, 250)):
        controller = Controller(known({1: 1.0, 2: 1.2}))
        asked = 0
        for _ in range(1000):
            if controller.wants("heads"):
                asked += 1
                controller.observe("heads", tree, [0] * (rng.random() < right), draft_cost=0.05)
        assert least <= asked <= most


def test_rows_beside_many_others_are_not_free() -> None:
    """Rows beyond those that are told apart cost what a row costs."""
    controller = Controller(known({n: n / 1000 for n in (1, 4, 16, 64, 256)}))
    draft = DraftTree([1, 2], [-1, 0], scores=[0.1, 0.1])
    for n_others in (0, 2 * StepCosts.MOST_ROWS):
        chosen = controller.choose([("any", draft)] * 300, n_others)
        assert not any(map(len, chosen))
