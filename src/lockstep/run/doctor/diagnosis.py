"""What kind of fault makes stored and replayed log-probs differ in the way they do."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.run.doctor.log import Array, Flags

MOST = 0.99
"""Share of rows that an explanation must fit."""
LOOSE = 10.0
"""An explanation fits a row if it misses by less than this many limits: it is itself estimated."""
BETTER = 0.1
"""What an explanation may leave of the mean difference."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Stored decisions beside what the policy makes of them now."""

    log_p: Array  # [N, C], -inf where there is no choice
    stored: Array  # [N]
    new: Array  # [N]
    index: NDArray[np.int64]  # [N]
    choices: NDArray[np.int64]  # [N]
    valid: Flags  # [N]
    outside: Flags  # [N]
    mass: Array  # [N]: probability inside the choice set
    changed: Flags | None  # [N]: whether the observation is another than when it was made
    deterministic: bool
    limit: float

    @property
    def gap(self) -> Array:
        """Log ratio of every row; not finite where a row is not valid."""
        with np.errstate(invalid="ignore"):
            return self.new - self.stored


def diagnose(replay: Replay) -> tuple[str, str]:
    """A short name of the likely fault, and where to look; the most telling sign first."""
    for sign in (
        _nothing_valid,
        _explored_as_certain,
        _too_few_choices,
        _outside,
        _mask_not_applied,
        _not_deterministic,
        _nothing_differs,
        _no_log_prob,
        _one_number,
        _support,
        _order,
        _observation,
    ):
        found = sign(replay)
        if found is not None:
            return found
    return _weights(replay)


def _nothing_valid(replay: Replay) -> tuple[str, str] | None:
    if replay.valid.any():
        return None
    return (
        "nothing can be replayed",
        "no row has a choice inside its set and finite log-probs of 0 or less: look at how "
        "transitions are stored, and at what the policy answers",
    )


def _no_log_prob(replay: Replay) -> tuple[str, str] | None:
    """Where the valid rows agree, the others are all there is to say."""
    bad = ~replay.valid & ~replay.outside
    if not bad.any() or (np.abs(replay.gap[replay.valid]) > replay.limit).any():
        return None
    return (
        "log-prob is none",
        f"{int(bad.sum())} rows have a log-prob that is not finite or above 0, stored or replayed, "
        "and all others agree: look at what was written there",
    )


def _outside(replay: Replay) -> tuple[str, str] | None:
    if not replay.outside.any():
        return None
    return (
        "choice outside its set",
        f"{replay.outside.mean():.1%} of choices are not in the set stored with them: look at the "
        "mask, or at what enumerates the candidates anew",
    )


def _too_few_choices(replay: Replay) -> tuple[str, str] | None:
    """Over its own set a policy's mean surprise cannot exceed ln K; more means a larger set."""
    usable = np.isfinite(replay.stored) & (replay.choices > 0)
    if not usable.any():
        return None
    excess = -replay.stored[usable] - np.log(replay.choices[usable])
    error = excess.std() / math.sqrt(len(excess))
    if excess.mean() < max(0.05, 5 * error):
        return None
    implied = float(np.exp(-replay.stored[usable]).mean())
    sizes = np.unique(replay.choices[usable])
    k = f"a fixed K = {sizes[0]}" if len(sizes) == 1 else f"K = {sizes[0]}..{sizes[-1]}"
    return (
        "choice set cut",
        f"stored log-probs are of larger sets than the stored ones: they look like {implied:.0f} "
        f"choices on average, the sets say {k}: store the set that was sampled from",
    )


def _mask_not_applied(replay: Replay) -> tuple[str, str] | None:
    if np.nanmin(replay.mass) > 0.999:
        return None
    return (
        "mask not applied",
        f"the policy leaves {1 - np.nanmean(replay.mass):.0%} of its probability outside the "
        "choice set: apply the stored mask before normalising",
    )


def _explored_as_certain(replay: Replay) -> tuple[str, str] | None:
    sure = (replay.stored > -replay.limit) & (replay.choices > 1) & (replay.gap < -0.1)
    if sure[replay.valid].mean() < 0.02:
        return None
    return (
        "explored choices logged as certain",
        f"{sure.mean():.0%} of rows have a stored probability of 1 among several choices: log the "
        "probability with which the choice was made, exploration included",
    )


def _not_deterministic(replay: Replay) -> tuple[str, str] | None:
    if replay.deterministic:
        return None
    return (
        "policy is not a function",
        "the policy answers the same batch differently: look for fresh noise among its inputs, "
        "dropout, or statistics that move while it is asked",
    )


def _nothing_differs(replay: Replay) -> tuple[str, str] | None:
    """Log-probs agree, so it was another gate."""
    if not replay.valid.all() or (np.abs(replay.gap) > replay.limit).any():
        return None
    if replay.changed is not None and replay.changed.any():
        return (
            "observation changed",
            "log-probs agree, yet stored observations are not those that were seen: look at what "
            "rewrites them",
        )
    return (
        "rows out of place",
        "log-probs agree, but order, policy version or keys do not: sort by (episode, time, agent) "
        "and keep every field of a row together",
    )


def _support(replay: Replay) -> tuple[str, str] | None:
    """Over one support the ratio's mean is 1 whatever the two distributions are."""
    ratio = np.exp(np.clip(replay.gap[replay.valid], -30, 30))
    error = ratio.std() / math.sqrt(len(ratio))
    if abs(ratio.mean() - 1) < max(0.02, 5 * error):
        return None
    more = "more" if ratio.mean() < 1 else "fewer"
    return (
        "support differs",
        f"the mean ratio is {ratio.mean():.3f}, which only another set of choices can do: the "
        f"replay normalises over {more} of them than the sampler did; look at the mask",
    )


def _one_number(replay: Replay) -> tuple[str, str] | None:
    """Whether a temperature or a share of exploration explains every row.

    Near uniform the two look alike, so the better fit has it.
    """
    power, scaled = _temperature(replay)
    share, mixed = _mixture(replay)
    gap = np.abs(replay.gap[replay.valid])
    if _explains(scaled, gap, replay.limit) and scaled.mean() <= mixed.mean():
        return (
            "temperature differs",
            f"stored log-probs are those of the replayed logits times {power:.3f}: sampler and "
            "update divide by different temperatures; put it inside the policy",
        )
    if _explains(mixed, gap, replay.limit) and 0 < share < 1 + 1e-3:
        return (
            "exploration outside the policy",
            f"stored probabilities are a mixture with {share:.2f} of uniform choice: sampling "
            "explores, the update does not know; put exploration inside the policy",
        )
    return None


def _temperature(replay: Replay) -> tuple[float, Array]:
    """The factor on the logits that fits best, and what it misses in the valid rows."""
    rows = np.flatnonzero(replay.valid)
    log_p, index, stored = replay.log_p[rows], replay.index[rows], replay.stored[rows]

    def miss(power: float) -> Array:
        scaled = power * log_p
        top = scaled.max(axis=1, keepdims=True)
        total = np.log(np.exp(scaled - top).sum(axis=1)) + top[:, 0]
        off: Array = np.abs(scaled[np.arange(len(rows)), index] - total - stored)
        return off

    powers = np.geomspace(0.05, 20.0, 31)
    best = float(powers[int(np.argmin([miss(power).mean() for power in powers]))])
    low, high = best / 1.5, best * 1.5
    for _ in range(40):
        third = (high - low) / 3
        if miss(low + third).mean() < miss(high - third).mean():
            high -= third
        else:
            low += third
    power = 0.5 * (low + high)
    return power, miss(power)


def _mixture(replay: Replay) -> tuple[float, Array]:
    """The share e for which stored probabilities are nearest (1 - e) p + e / K, and the misses."""
    rows = replay.valid
    p, uniform = np.exp(replay.new[rows]), 1 / np.maximum(replay.choices[rows], 1)
    apart = uniform - p
    share = float((apart * (np.exp(replay.stored[rows]) - p)).sum() / max((apart**2).sum(), 1e-30))
    mixed = np.log(np.maximum((1 - share) * p + share * uniform, 1e-30))
    return share, np.abs(mixed - replay.stored[rows])


def _explains(miss: Array, gap: Array, limit: float) -> bool:
    """Whether an explanation fits nearly every row, and much better than no explanation."""
    fits = (miss < LOOSE * limit).mean() >= MOST
    return bool(fits and miss.mean() < BETTER * gap.mean())


def _order(replay: Replay) -> tuple[str, str] | None:
    """Whether the stored log-prob is that of another candidate of the same set."""
    off = replay.valid & (np.abs(replay.gap) > replay.limit)
    if not off.any():
        return None
    nearest = np.abs(replay.log_p[off] - replay.stored[off, None]).min(axis=1)
    if (nearest < replay.limit).mean() < MOST:
        return None
    return (
        "order of choices changed",
        "stored log-probs belong to other candidates of the same sets: keep the order in which "
        "they were offered, or store keys",
    )


def _observation(replay: Replay) -> tuple[str, str] | None:
    if replay.changed is None or not replay.changed.any():
        return None
    return (
        "observation changed",
        f"{replay.changed.mean():.0%} of observations are not those that were seen: look at the "
        "encoder, a normaliser whose statistics moved, noise among the inputs, or an aliased "
        "buffer",
    )


def _weights(replay: Replay) -> tuple[str, str]:
    worst = float(np.abs(replay.gap[replay.valid]).max(initial=0.0))
    if replay.changed is not None:
        where = "observations are unchanged: look at the weights or the mode (dropout) that acted"
    else:
        where = (
            "the same choices have other probabilities: look at the weights that acted, at inputs "
            "and their normaliser, and at the order of candidates; store fingerprints to tell them "
            "apart"
        )
    rounding = (
        f"; a difference of {worst:.0e} could also be the rounding of a sampler in bf16, in which "
        "case take old log-probs from the learner"
        if worst < 2e-2
        else ""
    )
    return "another distribution over the same choices", where + rounding
