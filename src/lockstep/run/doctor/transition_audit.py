"""An audit of somebody else's transitions: do stored log-probs follow from what was stored?"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lockstep.run.doctor.diagnosis import Replay, diagnose
from lockstep.run.doctor.log import Array
from lockstep.run.doctor.transitions import (
    Columns,
    Policy,
    Transitions,
    batch_of,
    columns_of,
    to_numpy,
)
from lockstep.run.jsonable import Json, encode, finite

LIMIT = 2e-5
"""Largest difference of a log-prob in fp32; rounding was measured at 4e-6."""
CLIP_RATIO = 0.2
"""The clip range in which the share of clipped samples is reported."""
MASS_LIMIT = 1e-4
"""Largest probability that a policy may leave outside the choice set."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One gate and whether it held."""

    id: str
    name: str
    ok: bool | None
    """None: the transitions do not hold what it needs."""
    text: str


@dataclass(frozen=True, kw_only=True)
class Offender:
    """One row that broke a gate."""

    row: int
    episode: int | None
    time: int | None
    agent: int | None
    choices: int
    """K: how many choices its set holds."""
    index: int
    key: str | None
    stored: float
    replayed: float
    observation: str
    """`unchanged` or `CHANGED` since it was made, or `unknown` without a fingerprint."""

    def __str__(self) -> str:
        place = {"row": self.row, "episode": self.episode, "time": self.time, "agent": self.agent}
        where = ", ".join(f"{name} {at}" for name, at in place.items() if at is not None)
        key = "" if self.key is None else f" '{self.key}'"
        return (
            f"{where}: index {self.index}{key} of K={self.choices}, stored log-prob "
            f"{self.stored:.6f}, replayed {self.replayed:.6f}, observation {self.observation}"
        )


@dataclass(frozen=True, kw_only=True)
class TransitionAudit:
    """The result: gates, numbers, the first offender, and what is likely wrong."""

    ok: bool
    rows: int
    valid_share: float
    max_gap: float
    """Largest difference of a log-prob over the rows that could be replayed."""
    limit: float
    ratio_mean: float
    ratio_sd: float
    k3: float
    clip_fraction: float
    entropy: float
    """Mean entropy of the replayed distributions."""
    checks: tuple[Check, ...]
    first: Offender | None
    fault: str | None
    """A short name of the likely fault."""
    hint: str | None

    def to_json(self) -> Json:
        """Everything as plain values; what is not finite becomes null."""
        return finite(encode(self))

    def __str__(self) -> str:
        if self.ok:
            return (
                f"{self.rows} transitions replay: largest difference {self.max_gap:.1e}, limit "
                f"{self.limit:g}"
            )
        broken = "; ".join(f"{c.id} {c.name}: {c.text}" for c in self.checks if c.ok is False)
        return f"{broken}\nfirst: {self.first}\n{self.fault}: {self.hint}"


def audit_transitions(
    policy: Policy,
    transitions: Transitions,
    *,
    limit: float = LIMIT,
    clip_ratio: float = CLIP_RATIO,
    version: int | None = None,
    batch: int = 256,
) -> TransitionAudit:
    """Replays every decision with `policy` and compares; it raises nothing for what it finds."""
    columns = columns_of(transitions)
    log_p, deterministic = _replayed(policy, transitions, columns, batch)
    replay = _compare(columns, log_p, deterministic, limit)
    checks = _checks(transitions, columns, replay, version)
    ok = all(check.ok is not False for check in checks)
    fault, hint = (None, None) if ok else diagnose(replay)
    legal = np.where(columns.mask, log_p, -np.inf)
    p = np.exp(legal)
    ratio = np.exp(replay.gap[replay.valid])
    return TransitionAudit(
        ok=ok,
        rows=len(columns.index),
        valid_share=float(replay.valid.mean()),
        max_gap=float(np.abs(replay.gap[replay.valid]).max(initial=0.0)),
        limit=limit,
        ratio_mean=float(ratio.mean()) if ratio.size else math.nan,
        ratio_sd=float(ratio.std()) if ratio.size else math.nan,
        k3=float((ratio - 1 - np.log(ratio)).mean()) if ratio.size else math.nan,
        clip_fraction=float((np.abs(ratio - 1) > clip_ratio).mean()) if ratio.size else math.nan,
        entropy=float(-(p * np.where(p > 0, legal, 0.0)).sum(axis=1).mean()),
        checks=checks,
        first=None if ok else _first_offender(transitions, columns, replay),
        fault=fault,
        hint=hint,
    )


def _replayed(
    policy: Policy, stored: Transitions, columns: Columns, size: int
) -> tuple[Array, bool]:
    """Log-probs `[N, C]` over every choice set, and whether the policy says the same twice."""
    rows = len(columns.index)
    parts = []
    for start in range(0, rows, size):
        part = batch_of(stored, columns, slice(start, start + size))
        parts.append(to_numpy(policy(part)).astype(np.float64))
    log_p = np.concatenate(parts)
    if log_p.shape != columns.mask.shape:
        raise ValueError(
            f"policy must give log-probs of shape {columns.mask.shape}, got {log_p.shape}"
        )
    again = to_numpy(policy(batch_of(stored, columns, slice(0, size)))).astype(np.float64)
    same = np.array_equal(again, log_p[: len(again)], equal_nan=True)
    return log_p, same


def _compare(columns: Columns, log_p: Array, deterministic: bool, limit: float) -> Replay:
    rows = np.arange(len(columns.index))
    safe = np.clip(columns.index, 0, log_p.shape[1] - 1)
    new = log_p[rows, safe]
    finite = np.isfinite(columns.log_prob) & np.isfinite(new) & (columns.log_prob <= limit)
    mass = np.exp(np.where(columns.mask, log_p, -np.inf)).sum(axis=1)
    return Replay(
        log_p=np.where(columns.mask, log_p, -np.inf),
        stored=columns.log_prob,
        new=new,
        index=columns.index,
        choices=columns.choices,
        valid=finite & columns.chosen_exists & (columns.choices > 0),
        outside=~columns.chosen_exists,
        mass=mass,
        changed=columns.changed,
        deterministic=deterministic,
        limit=limit,
    )


def _checks(
    stored: Transitions, columns: Columns, replay: Replay, version: int | None
) -> tuple[Check, ...]:
    gap = np.abs(replay.gap[replay.valid])
    worst, over = float(gap.max(initial=0.0)), int((gap > replay.limit).sum())
    outside = int(replay.outside.sum())
    lost = float(np.nanmax(np.abs(1 - replay.mass), initial=0.0))
    changed = replay.changed
    return (
        _check("G1", "valid share", bool(replay.valid.all()), f"{replay.valid.mean():.4f} of rows"),
        _order(stored),
        _versions(stored, version),
        _check("G4", "replay", over == 0, f"{over} rows differ, by {worst:.2e} at most"),
        _check("G5", "support", outside == 0, f"{outside} choices lie outside their choice set"),
        _named(stored, columns),
        _check(
            "G5",
            "observation",
            None if changed is None else not changed.any(),
            "no fingerprints" if changed is None else f"{int(changed.sum())} rows have changed",
        ),
        _check(
            "G6",
            "normalisation",
            lost <= MASS_LIMIT,
            f"probabilities over the choice set miss 1 by {lost:.2e} at most",
        ),
        _check(
            "G6",
            "same answer twice",
            replay.deterministic,
            "yes" if replay.deterministic else "the policy answers the same batch differently",
        ),
    )


def _order(stored: Transitions) -> Check:
    given = [x for x in (stored.episode, stored.time, stored.agent) if x is not None]
    if stored.time is None:
        return _check("G2", "order", None, "no times")
    keys = np.stack([to_numpy(x).astype(np.int64) for x in given], axis=1)  # [N, 1..3]
    step = np.diff(keys, axis=0)
    first = (step != 0).argmax(axis=1)
    rising = step[np.arange(len(step)), first] > 0
    at = "" if rising.all() else f", the first at row {int((~rising).argmax()) + 1}"
    text = f"{int((~rising).sum())} rows do not come after the one before{at}"
    return _check("G2", "order", bool(rising.all()), text)


def _versions(stored: Transitions, version: int | None) -> Check:
    if stored.policy_version is None:
        return _check("G3", "policy version", None, "no versions")
    found = np.unique(to_numpy(stored.policy_version).astype(np.int64)).tolist()
    expected = found[:1] if version is None else [version]
    return _check("G3", "policy version", found == expected, f"{found}, expected {expected}")


def _named(stored: Transitions, columns: Columns) -> Check:
    if stored.key is None or stored.keys is None:
        return _check("G5", "key", None, "no keys")
    wrong = [
        not 0 <= index < len(keys) or keys[index] != key
        for index, key, keys in zip(columns.index, stored.key, stored.keys, strict=True)
    ]
    return _check("G5", "key", not any(wrong), f"{sum(wrong)} indices point at another candidate")


def _first_offender(stored: Transitions, columns: Columns, replay: Replay) -> Offender:
    bad = ~replay.valid | (np.abs(replay.gap) > replay.limit)
    if not bad.any() and replay.changed is not None:
        bad = replay.changed
    row = int(bad.argmax())
    changed = "unknown"
    if replay.changed is not None:
        changed = "CHANGED" if replay.changed[row] else "unchanged"

    def at(column: ArrayLike | None) -> int | None:
        return None if column is None else int(to_numpy(column)[row])

    return Offender(
        row=row,
        episode=at(stored.episode),
        time=at(stored.time),
        agent=at(stored.agent),
        choices=int(columns.choices[row]),
        index=int(columns.index[row]),
        key=None if stored.key is None else stored.key[row],
        stored=float(replay.stored[row]),
        replayed=float(replay.new[row]),
        observation=changed,
    )


def _check(id: str, name: str, ok: bool | None, text: str) -> Check:
    return Check(id=id, name=name, ok=ok, text=text)
