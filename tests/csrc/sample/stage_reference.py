"""The stages of decoding strategies in plain float64 numpy: what their headers say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]


def single(value: float) -> float:
    """As the sampler has it."""
    return float(np.float32(value))


def softmax(x: Row, tokens: Sequence[int], temperature: float = 1.0) -> NDArray[np.float64]:
    z = x[list(tokens)].astype(np.float64) / temperature
    w = np.exp(z - z.max())
    return np.asarray(w / w.sum(), np.float64)


def by_likelihood(x: Row, tokens: Sequence[int]) -> list[int]:
    return sorted((t for t in tokens if x[t] > -np.inf), key=lambda t: (-x[t], t))


def top_n_sigma(x: Row, kept: list[int], n: float) -> list[int]:
    z = x[x > -np.inf].astype(np.float64)
    return [t for t in kept if float(x[t]) >= z.max() - single(n) * z.std()]


def top_k(x: Row, kept: list[int], k: int) -> list[int]:
    return by_likelihood(x, kept)[:k]


def tail_free(x: Row, kept: list[int], z: float) -> list[int]:
    order = by_likelihood(x, kept)
    if len(order) <= 2:
        return order
    w = np.exp(x[order].astype(np.float64) - float(x[order[0]]))
    curvature = np.abs(np.diff(w, 2))
    if curvature.sum() == 0:
        return order
    sums = np.cumsum(curvature)
    beyond = [i for i in range(1, len(sums)) if sums[i] > single(z) * sums[-1]]
    return order[: beyond[0]] if beyond else order


def smallest_mass(x: Row, order: list[int], p: float) -> list[int]:
    units = (np.exp(x[order].astype(np.float64) - float(x[order].max())) * 2.0**40).astype(np.int64)
    reached = np.cumsum(units) >= np.ceil(single(p) * float(units.sum()))
    return order[: int(np.argmax(reached)) + 1]


def typical(x: Row, kept: list[int], p: float) -> list[int]:
    q = softmax(x, kept)
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    z = x[kept].astype(np.float64)
    surprise = -(z - z.max() - np.log(np.exp(z - z.max()).sum()))
    far = dict(zip(kept, np.abs(surprise - entropy), strict=True))
    return smallest_mass(x, sorted(kept, key=lambda t: (far[t], -x[t], t)), p)


def top_p(x: Row, kept: list[int], p: float) -> list[int]:
    return smallest_mass(x, by_likelihood(x, kept), p)


def min_p(x: Row, kept: list[int], p: float) -> list[int]:
    least = float(x[kept].max()) + np.log(single(p))
    return [t for t in kept if float(x[t]) >= least]


def exclude_top(x: Row, kept: list[int], threshold: float) -> list[int]:
    order = by_likelihood(x, kept)
    n = int((softmax(x, order) >= single(threshold)).sum())
    return order[max(0, n - 1) :]


def dynamic_temperature(x: Row, kept: list[int], given: float, how: dict[str, Any]) -> float:
    spread = single(how.get("dynatemp_range", 0))
    if spread == 0 or len(kept) < 2:
        return given
    q = softmax(x, kept)
    entropy = -(q[q > 0] * np.log(q[q > 0])).sum()
    least, most = max(0.0, given - spread), given + spread
    share = min(1.0, entropy / np.log(len(kept)))
    return float(least + (most - least) * share ** single(how.get("dynatemp_exponent", 1)))


def chain(x: Row, how: dict[str, Any], has_xtc: bool) -> list[int]:
    kept = by_likelihood(x, range(len(x)))
    if how.get("top_n_sigma", 0) > 0:
        kept = top_n_sigma(x, kept, how["top_n_sigma"])
    if how.get("top_k", 0):
        kept = top_k(x, kept, how["top_k"])
    if how.get("tfs_z", 1) < 1:
        kept = tail_free(x, kept, how["tfs_z"])
    if how.get("typical_p", 1) < 1:
        kept = typical(x, kept, how["typical_p"])
    if how.get("top_p", 1) < 1:
        kept = top_p(x, kept, how["top_p"])
    if how.get("min_p", 0) > 0:
        kept = min_p(x, kept, how["min_p"])
    return exclude_top(x, kept, how["xtc_threshold"]) if has_xtc else kept


def surprises(x: Row, temperature: float) -> NDArray[np.float64]:
    """Bits, of all tokens."""
    z = x.astype(np.float64) / temperature
    return np.asarray(-(z - z.max() - np.log(np.exp(z - z.max()).sum())) / np.log(2), np.float64)


def mirostat(x: Row, version: int, temperature: float, mu: float) -> list[int]:
    order = by_likelihood(x, range(len(x)))
    if version == 2:
        bits = surprises(x, temperature)
        return [t for t in order if bits[t] <= mu] or order[:1]
    z = x[order[:100]].astype(np.float64) / temperature
    i = np.arange(1, len(z))
    t = np.log((i + 1) / i)
    b = z[:-1] - z[1:]
    s = float((t * b).sum() / (t * t).sum()) if len(z) > 1 else 0.0
    n = float(len(x))
    if s <= 0:
        return order if 2.0**mu > n - 1 else order[:1]
    eps = s - 1
    quotient = eps / (1 - n**-eps) if abs(eps) > 1e-9 else 1 / np.log(n)
    log_k = (np.log(quotient) + mu * np.log(2)) / s
    return order[: max(1, round(float(np.exp(min(log_k, np.log(n))))))]


def anti_probability(text: Sequence[int], token: int, n: int, beta: float) -> float:
    """Of the authors' n-gram model: from the longest context on."""
    if len(text) < n - 1:
        return 0.0
    q, left = 0.0, 1.0
    for m in range(n - 1, -1, -1):
        context = tuple(text[len(text) - m :])
        follows = [text[i] for i in range(m, len(text)) if tuple(text[i - m : i]) == context]
        found = Counter(follows)[token]
        if found == 0:
            continue
        q += left * (found / len(follows) if m == 0 else beta * found / (len(follows) + 1))
        left -= left * beta
    return q


def fsd_scores(x: Row, text: Sequence[int], how: dict[str, Any]) -> dict[int, float]:
    """By token, of the k likeliest."""
    alpha, beta = single(how["fsd_alpha"]), single(how["fsd_beta"])
    order = by_likelihood(x, range(len(x)))
    q = dict(zip(order, softmax(x, order), strict=True))
    return {
        t: (1 - alpha) * q[t] - alpha * anti_probability(text, t, how["fsd_n"], beta)
        for t in order[: how["fsd_k"]]
    }


def dry(text: Sequence[int], how: dict[str, Any], breakers: Sequence[Sequence[int]]) -> Any:
    """What to take off the logits of tokens."""
    last_n, allowed = how["dry_penalty_last_n"], how["dry_allowed_length"]
    seen = list(text) if last_n < 0 else list(text)[max(0, len(text) - last_n) :]
    most = len(seen)
    for i in range(len(seen) - 1, -1, -1):
        ends = [len(b) for b in breakers if seen[i : i + len(b)] == list(b)]
        if ends:
            most = len(seen) - i - max(ends)
            break
    longest: dict[int, int] = {}
    for i in range(1, len(seen)):  # seen[i] follows seen[:i]
        n = 0
        while n < min(i, most) and seen[i - 1 - n] == seen[len(seen) - 1 - n]:
            n += 1
        if n >= allowed:
            longest[seen[i]] = max(longest.get(seen[i], 0), n)
    singles = {b[0] for b in breakers if len(b) == 1}
    return {
        t: single(how["dry_multiplier"]) * single(how["dry_base"]) ** (n - allowed)
        for t, n in longest.items()
        if t not in singles and most >= allowed
    }
