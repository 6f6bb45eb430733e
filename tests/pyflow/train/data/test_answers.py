"""Files of answers keep what is whole, wherever their writing ended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyflow.errors import UnsupportedError
from pyflow.train.data.answers import Answer, AnswerFiles

D = 4


def answer(number: int, n_prompt: int, n_drawn: int) -> Answer:
    rng = np.random.default_rng(number)
    return Answer(
        number=number,
        temperature=0.5 * number,
        prompt=rng.integers(0, 99, n_prompt).tolist(),
        drawn=rng.integers(0, 99, n_drawn).tolist(),
        hidden=rng.standard_normal((n_drawn, D)),
        features=rng.standard_normal((n_prompt + n_drawn - 1, D)).astype(np.float32),
    )


ANSWERS = [answer(0, 3, 5), answer(2, 1, 1), answer(1, 2, 4)]


@pytest.mark.parametrize("name", ["answers", "hidden", "features"])
def test_what_is_cut_or_changed_is_dropped_and_written_anew(name: str, tmp_path: Path) -> None:
    with AnswerFiles(tmp_path, D, has_features=True) as files:
        for each in ANSWERS:
            files.add(each)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    path = tmp_path / f"{name}.bin"
    for n in (0, 1, len(whole[path.name]) // 2, len(whole[path.name]) - 1):
        for file, raw in whole.items():
            (tmp_path / file).write_bytes(raw)
        damaged = bytearray(whole[path.name])
        damaged[n] ^= 255
        for raw in (whole[path.name][:n], bytes(damaged)):
            path.write_bytes(raw)
            with AnswerFiles(tmp_path, D, has_features=True) as files:
                there = len(files.answers)
                assert there < len(ANSWERS)
                for each in ANSWERS[there:]:
                    files.add(each)
                for stored, each in zip(files.answers, ANSWERS, strict=True):
                    assert (stored.number, stored.n_prompt) == (each.number, len(each.prompt))
                    assert stored.tokens.tolist() == [*each.prompt, *each.drawn]
            assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == whole


def test_rows_are_those_that_were_added(tmp_path: Path) -> None:
    with AnswerFiles(tmp_path, D, has_features=True) as files:
        for each in ANSWERS:
            files.add(each)
        for stored, each in zip(files.answers, ANSWERS, strict=True):
            rows = files.hidden[stored.hidden : stored.hidden + len(each.drawn)]
            np.testing.assert_array_equal(rows, each.hidden.astype(np.float16))
            assert each.features is not None
            rows = files.features[stored.features : stored.features + len(each.features)]
            np.testing.assert_array_equal(rows, each.features)


def test_states_beyond_f16_are_refused(tmp_path: Path) -> None:
    for value in (7e4, float("nan")):
        with AnswerFiles(tmp_path, D) as files, pytest.raises(UnsupportedError, match="65,504"):
            files.add(
                Answer(
                    number=0, temperature=0, prompt=[1], drawn=[2], hidden=np.full((1, D), value)
                )
            )
