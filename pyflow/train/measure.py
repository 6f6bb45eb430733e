"""How many tokens a speculator would save: its guesses held against answers kept back.

At temperature 0, and above it with the same draws, a step accepts the longest path of the draft
that the answer goes on with, and draws one token more. So tokens per step are exact without running
the model again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyflow.train.data.answers import Stored
from pyflow.train.data.feeds import HeadsFeed, TextsFeed, Words
from pyflow.train.kinds.head import Head
from pyflow.train.kinds.kangaroo import Kangaroo
from pyflow.train.kinds.kind import Heads
from pyflow.train.library import Parameters, Tensor, library

TREES = (4, 7)
"""Nodes of the trees that are tried: the likeliest ones by the heads' own probabilities."""
_CHAIN = 6  # tokens that Kangaroo drafts at most
_BATCH = 256

Counts = NDArray[np.int64]


def acceptance(
    kind: Any,
    parameters: Parameters,
    head: Head,
    feed: HeadsFeed | TextsFeed,
    words: Words | None,
    answers: Sequence[Stored],
) -> dict[str, Any]:
    """For greedy answers, sampled ones and all of them: `top1`, how often each head's best guess is
    right after right tokens, and `tokens_per_step` of a chain and of trees."""
    with library().no_grad():
        if isinstance(kind, Kangaroo):
            assert isinstance(feed, TextsFeed)
            answers = feed.answers
            right, accepted = _of_adapter(kind, parameters, head, feed)
            lengths = [len(answer.drawn) - 1 for answer in answers]
        else:
            assert isinstance(feed, HeadsFeed)
            right, accepted = _of_heads(kind, parameters, head, feed, words)
            lengths = feed.lengths
    found = {}
    for name, wanted in (("greedy", (True,)), ("sampled", (False,)), ("all", (True, False))):
        chosen = [(answer.temperature == 0) in wanted for answer in answers]
        rows = np.repeat(chosen, lengths)
        n_tokens = sum(n for n, is_in in zip(lengths, chosen, strict=True) if is_in)
        if not n_tokens:
            continue
        per_step = {
            what: round(n_tokens / _n_steps(counts, lengths, chosen), 4)
            for what, counts in accepted.items()
        }
        top1 = [round(float(column[rows].mean()), 4) for column in right.T]
        found[name] = {"n_tokens": n_tokens, "top1": top1, "tokens_per_step": per_step}
    return found


def _n_steps(accepted: Counts, lengths: Sequence[int], chosen: Sequence[bool]) -> int:
    """Steps that the chosen answers take. accepted: drafts that stand, at each place."""
    n_steps, first = 0, 0
    for n, is_in in zip(lengths, chosen, strict=True):
        place = 0
        while is_in and place < n:
            place += 1 + int(accepted[first + place])
            n_steps += 1
        first += n
    return n_steps


def _of_heads(
    kind: Heads, parameters: Parameters, head: Head, feed: HeadsFeed, words: Words | None
) -> tuple[NDArray[np.bool_], dict[str, Counts]]:
    """At each place: which heads are right, and how many drafts stand."""
    right, trees = [], []
    for begin in range(0, feed.n_items, _BATCH):
        items = np.arange(begin, min(begin + _BATCH, feed.n_items))
        z, tokens = feed.examples(items)
        right.append(_best_guesses(kind, parameters, head, words, z, tokens))
        trees.append(_in_trees(kind, parameters, head, words, z, tokens))
    found = np.concatenate(right)
    accepted = {"chain": np.cumprod(found, 1).sum(1)}
    for tree, counts in zip(TREES, np.concatenate(trees, 1), strict=True):
        accepted[f"tree_{tree}"] = counts
    return found, accepted


def _best_guesses(
    kind: Heads,
    parameters: Parameters,
    head: Head,
    words: Words | None,
    z: Tensor,
    tokens: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Whether each head's best guess is right after the true tokens, (n, n_heads)."""
    state, right = kind.start(parameters, z), []
    for i in range(kind.n_heads):
        seen = None if words is None else words(tokens[:, i]).to(z.dtype)
        state, x = kind.stage(parameters, i, state, seen, head.dtype)
        best = head.token_map[head.logits(x).argmax(1).cpu().numpy()]
        right.append(best == tokens[:, i + 1])
    return np.stack(right, 1)


def _in_trees(
    kind: Heads,
    parameters: Parameters,
    head: Head,
    words: Words | None,
    z: Tensor,
    tokens: NDArray[np.int32],
) -> Counts:
    """How many true tokens, from the first on, are among the likeliest nodes: (trees, n).

    The likeliest `most` nodes of a depth contain all that can be among the likeliest of the whole
    tree, and so do their children.
    """
    torch = library()
    n, most = len(z), min(max(TREES), head.n_tokens)
    state = kind.start(parameters, z)
    last, width = tokens[:, :1], 1
    score = z.new_zeros(n, 1)
    is_true = torch.ones(n, 1, dtype=torch.bool, device=z.device)
    scores, trues = [], []
    for i in range(kind.n_heads):
        seen = None if words is None else words(last.reshape(-1)).to(z.dtype)
        state, x = kind.stage(parameters, i, state, seen, head.dtype)
        best, columns = head.log_probabilities(x).topk(most)
        children = head.token_map[columns.cpu().numpy()].reshape(n, -1)
        following = torch.from_numpy(children == tokens[:, i + 1, None]).to(z.device)
        total = (score.reshape(-1, 1) + best).reshape(n, -1)
        score, chosen = total.topk(most)
        is_true = is_true.repeat_interleave(most, 1).gather(1, chosen)
        is_true = is_true & following.gather(1, chosen)
        parents = torch.arange(n, device=z.device)[:, None] * width + chosen // most
        state = state[parents.reshape(-1)]
        last, width = np.take_along_axis(children, chosen.cpu().numpy(), 1), most
        scores.append(score)
        trues.append(is_true)
    # The sort is stable, so a parent stands before a child that is as likely.
    ranked = torch.cat(scores, 1).sort(dim=1, descending=True, stable=True).indices
    found = torch.cat(trues, 1).gather(1, ranked)
    return np.stack([found[:, :tree].sum(1).cpu().numpy() for tree in TREES])


def _of_adapter(
    kind: Kangaroo, parameters: Parameters, head: Head, feed: TextsFeed
) -> tuple[NDArray[np.bool_], dict[str, Counts]]:
    """The same of a chain; features of accepted drafts are those of the text."""
    rights, accepted = [], []
    for i, answer in enumerate(feed.answers):
        features, _, rows = feed.batch(np.array([i]))
        x = kind.outputs(parameters, features, head.dtype).reshape(-1, kind.n_embd)[rows]
        best = head.token_map[head.logits(x).argmax(1).cpu().numpy()]
        right = best == answer.drawn[1:]
        padded = np.concatenate([right, np.zeros(_CHAIN, bool)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, _CHAIN)[: len(right)]
        rights.append(right)
        accepted.append(np.cumprod(windows, 1).sum(1))
    return np.concatenate(rights)[:, None], {"chain": np.concatenate(accepted)}
