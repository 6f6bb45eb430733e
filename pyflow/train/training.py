"""A training from the first answer to the last figure, in a folder that it can go on from.

    OUT/config.json, model.safetensors     the speculator with the best held-out loss so far
    OUT/training.json                      figures, at the end
    OUT/training/                          answers, plan and state until then

Every file appears complete, so a training that is killed leaves a speculator that loads, and goes
on from the last state. What it computes depends on the number of the step alone.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.errors import PyflowError
from pyflow.formats.replacing import replacing
from pyflow.quant.convert import check_disk
from pyflow.train.base import base_of
from pyflow.train.data.answers import AnswerFiles, Stored
from pyflow.train.data.collect import Collector
from pyflow.train.data.feeds import HeadsFeed, TextsFeed, Words
from pyflow.train.data.prompts import passages_of
from pyflow.train.folder import WEIGHTS, read_weights, write_config, write_weights
from pyflow.train.kinds.head import Head
from pyflow.train.kinds.kangaroo import Kangaroo
from pyflow.train.kinds.mlp import Mlp, with_gains
from pyflow.train.library import Floats, library, product_type
from pyflow.train.measure import acceptance
from pyflow.train.pace import Pace, Tell, check_stop
from pyflow.train.plan import Plan, draft_vocabulary, first_answers, read_plan, texts_hash
from pyflow.train.settings import Settings, kind_of, n_rounds, token_nbytes
from pyflow.train.trainer import Check, Facts, Trainer

if TYPE_CHECKING:
    from pyflow.engine.loaded import LoadedModel

FIGURES, WORK = "training.json", "training"
_PLAN, _STATE = "plan.json", "state.safetensors"
# One answer of so many, the fifth first; the number has no factor in common with the temperatures'.
_HELD_OUT, _FIRST_HELD_OUT = 21, 5
_LOSS_PLACES, _MEASURED_PLACES = 4096, 8192
_N_CHECKS, _LEAST_INTERVAL = 20, 20  # evaluations of a training, and steps between them
_PATIENCE = 3
"""Evaluations without a better loss after which a training ends."""
_READING, _COLLECTING = 0.1, 0.6
"""Shares of --minutes after which texts are read and answers written: more answers help more than
more epochs."""
_TIMED_STEPS = 10
_SAMPLE = 4096


class Training:
    """One training. `tell` is called often; `stop` is asked after each step."""

    def __init__(
        self,
        model: LoadedModel,
        texts: Sequence[str],
        settings: Settings,
        folder: Path,
        *,
        resume: bool = False,
        tell: Tell = lambda *_: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """PyflowError: the folder has files, or with `resume` no training with these settings."""
        self._dtype = product_type(settings.device)
        self._model, self._texts, self._tell, self._stop = model, texts, tell, stop
        self._folder, self._work = folder, folder / WORK
        self._base = base_of(model)
        self.settings = settings.of(model.spec)
        about = {
            "settings": self.settings,
            "base": self._base.facts,
            "fingerprint": model.fingerprint,
            "texts": texts_hash(texts),
        }
        if resume:
            self._plan = read_plan(self._work / _PLAN, about, model.spec.n_vocab)
        else:
            if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
                more = ", or --resume to go on" if (self._work / _PLAN).exists() else ""
                raise PyflowError(f"{folder}: is there already; give another name{more}")
            if self.settings["init"] is not None:
                try:
                    self._given()  # refused before anything is written
                except PyflowError as error:
                    raise type(error)(f"init: {error}") from None
            self._work.mkdir(parents=True, exist_ok=True)
            self._plan = Plan(about=about)
            self._keep_plan()
        self._begin = time.monotonic()
        self._facts = Facts()
        self._rounds = n_rounds(self.settings, model.spec.n_embd)

    def run(self) -> dict[str, Any]:
        """Trains and returns the figures. CancelledError: `stop` said so; the state is saved."""
        there = sum(path.stat().st_size for path in self._work.glob("*/*.bin"))
        most = min(self.settings["cache_nbytes"], self._expected_nbytes())
        check_disk(self._work, max(0, most - there))
        with self._files("texts") as texts, self._files("held-out") as self._held_out:
            self._read_texts(texts)
            for number in range(self._rounds):
                with self._files(f"answers-{number}") as files:
                    self._collect(files, number)
                    if number == 0:
                        n_text = self._prepare(files, texts)
                        self._learn(texts, texts.answers, 0, n_text)
                    self._learn(files, self._own(files, number), number + 1, self._ends(number))
                    if number + 1 < self._rounds:
                        self._forget(number)
            figures = self._figures()
        shutil.rmtree(self._work)
        return figures

    def _keep_plan(self) -> None:
        self._plan.save(self._work / _PLAN)

    # ---- answers

    def _files(self, name: str) -> AnswerFiles:
        has_features = bool(self.settings["exit_layer"])
        return AnswerFiles(self._work / name, self._base.n_embd, has_features=has_features)

    def _expected_nbytes(self) -> int:
        n_tokens = self.settings["n_tokens"] + self.settings["text_tokens"]
        return int(n_tokens * token_nbytes(self.settings, self._base.n_embd))

    def _collector(self) -> Collector:
        return Collector(
            self._model,
            passages_of(self._texts),
            seed=self.settings["seed"],
            n_parallel=self.settings["n_parallel"],
            exit_layer=self.settings["exit_layer"],
        )

    def _read_texts(self, files: AnswerFiles) -> None:
        if self._plan.n_texts is not None:
            return
        wanted = self.settings["text_tokens"]
        pace = self._pace("reading texts", wanted, _READING)
        for piece in self._collector().texts(self._texts, wanted, len(files.answers), pace):
            files.add(piece)
        self._plan.n_texts = len(files.answers)
        self._keep_plan()

    def _collect(self, files: AnswerFiles, number: int) -> None:
        """Writes the answers of a round, up to what is there already."""
        if number < len(self._plan.answers):
            return
        first = self._plan.answers[-1] if number else 0
        wanted = -(-self.settings["n_tokens"] // self._rounds)
        held_out = self._held_out if number == 0 else files
        both = [*files.answers, *(held_out.answers if number == 0 else ())]
        there = {answer.number: len(answer.drawn) for answer in both}

        pace = self._pace("writing answers", wanted, _COLLECTING)
        for answer in self._collector().answers(wanted, there, first, pace):
            is_kept_back = answer.number % _HELD_OUT == _FIRST_HELD_OUT
            (held_out if is_kept_back else files).add(answer)
        both = [*files.answers, *(held_out.answers if number == 0 else ())]
        end = max((a.number for a in both), default=-1) + 1
        if both and not pace.is_over:
            end = first_answers(both, wanted, first)
        kept = [[a for a in some.answers if a.number < end] for some in (files, held_out)]
        if not all(any(len(a.drawn) > 1 for a in some) for some in kept):
            shutil.rmtree(self._work)  # it could not go on with other settings
            with suppress(OSError):
                self._folder.rmdir()
            raise PyflowError(
                f"answers: expected {_FIRST_HELD_OUT + 2} or more, of several tokens, found "
                f"{min(len(both), end)}; take more tokens or minutes, or longer texts"
            )
        self._plan.answers.append(end)
        self._keep_plan()

    def _pace(self, what: str, wanted: int, share: float) -> Pace:
        """share: of --minutes, at which it ends."""
        minutes = self.settings["minutes"]
        end = None if minutes is None else self._begin + 60 * share * minutes
        return Pace(what=what, wanted=wanted, tell=self._tell, stop=self._stop, end=end)

    def _own(self, files: AnswerFiles, number: int) -> list[Stored]:
        """The answers of a round, by number."""
        end = self._plan.answers[number]
        return sorted((a for a in files.answers if a.number < end), key=lambda a: a.number)

    def _forget(self, number: int) -> None:
        """Deletes the answers of a round, once the state is past it."""
        self._save()
        for name in ("answers", "hidden", "features"):
            (self._work / f"answers-{number}" / f"{name}.bin").write_bytes(b"")

    # ---- steps

    def _prepare(self, files: AnswerFiles, texts: AnswerFiles) -> int:
        """Draft vocabulary, network and trainer; the state that was saved, if there is one.

        Returns the steps over the texts: an epoch, but no more than a half of all steps.
        """
        settings, base = self.settings, self._base
        own = self._own(files, 0)
        state = self._work / _STATE
        if not state.exists():
            among = None if settings["init"] is None else self._given()[1]
            size = settings["draft_vocab"]
            token_map, self._facts.covered = draft_vocabulary(own, base.n_vocab, size, among)
            self._plan.token_map = token_map.tolist()
            self._facts.n_tokens = sum(len(answer.drawn) for answer in own)
        device = settings["device"]
        token_map = np.array(self._plan.token_map, np.int32)
        self._head = Head(base, token_map, device, self._dtype)
        self._scale = 1 / base.embedding.rms() if settings["kind"] == "mlp" else 1.0
        self.kind = kind_of(settings, self._model.spec, base, self._scale)
        self._trainer = self._new_trainer(self._initial(files, own))
        if state.exists():
            self._facts = self._trainer.restore(state)
        kept = _up_to(self._own(self._held_out, 0), _LOSS_PLACES)
        self._check = self._feed(self._held_out, kept)
        n_text = self._text_batches(texts)
        if not self._plan.n_steps:
            self._plan.n_steps = self._count_steps(files, own, n_text)
        self._keep_plan()
        write_config(self._folder, self.kind, base, len(token_map))
        if not self._facts.history:
            self._evaluate()
        return min(n_text, self._plan.n_steps // 2)

    def _given(self) -> tuple[dict[str, Floats], NDArray[np.int32]]:
        """Of the speculator that this training goes on from."""
        kind = kind_of(self.settings, self._model.spec, self._base, 1.0)
        return read_weights(Path(self.settings["init"]), kind, self._base.n_vocab)

    def _initial(self, files: AnswerFiles, own: list[Stored]) -> dict[str, Floats]:
        if self.settings["init"] is not None:
            return self._given()[0]
        initial = self.kind.initial(np.random.default_rng([self.settings["seed"], 3]))
        if isinstance(self.kind, Mlp) and own:  # none in later rounds, which have a state
            feed = self._feed(files, _up_to(own, _SAMPLE), has_words=False)
            z, _ = feed.examples(np.arange(feed.n_items))
            initial = with_gains(initial, z.square().mean(0).sqrt().cpu().numpy())
        if isinstance(self.kind, Kangaroo) and self._base.final_norm is not None:
            initial["norm.weight"] = self._base.final_norm
        return initial

    def _new_trainer(self, initial: dict[str, Floats]) -> Trainer:
        rate, decay = self.settings["rate"], self.settings["decay"]
        return Trainer(self.kind, self._head, initial, rate=rate, decay=decay)

    def _feed(
        self, files: AnswerFiles, answers: Sequence[Stored], *, has_words: bool = True
    ) -> Any:
        """Batches of answers, which come by number. has_words: with embeddings of tokens."""
        n_batch = self.settings["batch"]
        if isinstance(self.kind, Kangaroo):
            return TextsFeed(files, answers, self._head, n_batch)
        words = self._words(answers) if has_words else None
        return HeadsFeed(files, answers, self._head, words, self.kind.n_heads, n_batch)

    def _words(self, answers: Sequence[Stored]) -> Words | None:
        if not isinstance(self.kind, Mlp):
            return None
        tokens = np.concatenate([answer.drawn for answer in answers])
        return Words(self._base, self._scale, tokens, self._head)

    def _count_steps(self, files: AnswerFiles, own: list[Stored], n_text: int) -> int:
        """Of all rounds and of the texts."""
        settings = self.settings
        feed = self._feed(files, own)
        n_own = feed.n_batches * settings["epochs"] * self._rounds
        n_steps: int = settings["n_steps"] or n_own + n_text
        if settings["minutes"] is not None:
            trial = self._new_trainer(self._trainer.values())
            order = feed.order(settings["seed"], 0)
            begin = time.monotonic()
            for i in range(_TIMED_STEPS):
                trial.step(feed.nth(order, i % feed.n_batches), i, _TIMED_STEPS)
            step_s = (time.monotonic() - begin) / _TIMED_STEPS
            left = 60 * settings["minutes"] - (time.monotonic() - self._begin)
            n_steps = max(_LEAST_INTERVAL, min(n_steps, int(left / step_s)))
        return n_steps

    def _text_batches(self, texts: AnswerFiles) -> int:
        if not texts.answers:
            return 0
        n_batches: int = self._feed(texts, texts.answers, has_words=False).n_batches
        return n_batches

    def _ends(self, number: int) -> int:
        """The step at which a round ends; the last one takes what is left."""
        return self._plan.n_steps * (number + 1) // self._rounds

    def _learn(self, files: AnswerFiles, answers: Sequence[Stored], part: int, end: int) -> None:
        """Steps over some answers up to the step `end`. part: 0 is the texts."""
        if self._facts.step >= end or not answers or self._is_over():
            return
        feed = self._feed(files, answers)
        begin = self._facts.begins.setdefault(str(part), self._facts.step)
        n_steps, epoch, order = self._plan.n_steps, -1, np.empty(0, np.int64)
        while self._facts.step < end and not self._is_over():
            at, i = divmod(self._facts.step - begin, feed.n_batches)
            if at != epoch:
                epoch, order = at, feed.order(self.settings["seed"], 1000 * part + at)
            losses = self._trainer.step(feed.nth(order, i), self._facts.step, n_steps)
            self._facts.step += 1
            note = " ".join(f"{float(loss):.2f}" for loss in losses)
            self._tell("training", self._facts.step, n_steps, f"loss {note}")
            if self._facts.step % self._interval() == 0 or self._facts.step == n_steps:
                self._evaluate()
            if self._stop():
                self._save()
            check_stop(self._stop)

    def _interval(self) -> int:
        return max(_LEAST_INTERVAL, self._plan.n_steps // _N_CHECKS)

    def _is_over(self) -> bool:
        return self._facts.bad >= _PATIENCE

    def _evaluate(self) -> None:
        """The held-out loss; keeps the parameters if it is the best one, and the state."""
        feed, facts = self._check, self._facts
        total, n = np.zeros(self.kind.n_heads), 0
        for i in range(feed.n_batches):
            items = np.arange(i * feed.n_batch, min((i + 1) * feed.n_batch, feed.n_items))
            total += len(items) * self._trainer.losses(feed.batch(items)).cpu().numpy()
            n += len(items)
        losses = [round(float(loss), 5) for loss in total / n]
        facts.history.append(Check(step=facts.step, losses=losses))
        if facts.best is None or sum(losses) < facts.best:
            facts.best, facts.best_step, facts.bad = sum(losses), facts.step, 0
            values, token_map = self._trainer.values(), np.array(self._plan.token_map, np.int32)
            write_weights(self._folder, self.kind, values, token_map)
        else:
            facts.bad += 1
        self._save()

    def _save(self) -> None:
        self._trainer.save(self._work / _STATE, self._facts)

    # ---- the end

    def _figures(self) -> dict[str, Any]:
        """Measures the best parameters, and writes all figures."""
        self._tell("measuring", 0, 1, "")
        checkpoint = formats.open(self._folder / WEIGHTS)
        torch = library()
        parameters = {
            name: torch.from_numpy(np.array(checkpoint.array(name))).to(self._head.device)
            for name in self.kind.shapes()
        }
        chosen = _up_to(self._own(self._held_out, 0), _MEASURED_PLACES)
        feed, words = self._feed(self._held_out, chosen), self._words(chosen)
        facts = self._facts
        figures = {
            "path": str(self._folder),
            "settings": self.settings,
            "base": self._base.facts,
            "n_parameters": sum(p.numel() for p in parameters.values()),
            "draft_vocab": len(self._plan.token_map),
            "covered": round(facts.covered, 4),
            "n_tokens": facts.n_tokens,
            "n_steps": self._facts.step,
            "best_step": facts.best_step,
            "losses": msgspec.to_builtins(facts.history),
            "held_out": acceptance(self.kind, parameters, self._head, feed, words, chosen),
            "seconds": round(time.monotonic() - self._begin, 1),
        }
        with replacing(self._folder / FIGURES) as file:
            file.write((json.dumps(figures, indent=2, ensure_ascii=False) + "\n").encode())
        self._tell("measuring", 1, 1, "")
        return figures


def _up_to(answers: Sequence[Stored], n_places: int) -> list[Stored]:
    """The first answers that have so many places, at least one."""
    found, n = [], 0
    for answer in answers:
        if n >= n_places:
            break
        found.append(answer)
        n += max(0, len(answer.drawn) - 1)
    return found
