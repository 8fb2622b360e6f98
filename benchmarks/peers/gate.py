"""The equality gate: no clock starts for a side whose arithmetic differs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from benchmarks.peers.ours import Ours
from benchmarks.peers.plain import Plain
from benchmarks.peers.report import Record
from benchmarks.peers.task import Seen, Side, Task

TOLERANCE = 1e-4
_BITS = 4  # of such a ratio that may differ
_ROWS = ("log_prob", "entropy", "value", "advantage")
_NUMBERS = ("loss", "actor_grad_norm", "critic_grad_norm")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How far a side is from the reference, relative to the reference's largest number."""

    log_prob: float
    entropy: float
    value: float
    advantage: float
    ratio: float
    """Largest distance of a probability ratio from 1 in the first minibatch."""
    loss: float
    actor_grad_norm: float
    critic_grad_norm: float
    rounding: float
    """What the last bit of the largest log-prob makes of a ratio."""

    @property
    def worst(self) -> str:
        """The quantity that is furthest off."""
        return max((*_ROWS, "ratio", *_NUMBERS), key=self._beyond)

    def _beyond(self, name: str) -> float:
        # A log-prob of thousands, over as many numbers, has few bits left for a ratio near 1.
        bits = _BITS * self.rounding if name in ("ratio", "actor_grad_norm") else 0.0
        gap: float = getattr(self, name)
        return gap / max(TOLERANCE, bits)

    @property
    def passes(self) -> bool:
        """Whether every quantity agrees within the tolerance."""
        return self._beyond(self.worst) <= 1.0

    @property
    def label(self) -> str:
        """What may be said of the side's arithmetic."""
        if not any(getattr(self, name) for name in (*_ROWS, *_NUMBERS)):
            return "identical"
        return "numerically equal" if self.passes else "different"


def judge(side: Seen, reference: Seen) -> Verdict:
    """Compares what two sides made of one stored rollout."""
    rows = {name: _apart(getattr(side, name), getattr(reference, name)) for name in _ROWS}
    numbers = {
        name: _apart(torch.tensor(getattr(side, name)), torch.tensor(getattr(reference, name)))
        for name in _NUMBERS
    }
    last_bit = float(reference.log_prob.abs().max()) * torch.finfo(torch.float32).eps
    return Verdict(**rows, **numbers, ratio=side.ratio, rounding=last_bit)


def _apart(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        raise ValueError(f"the sides' shapes must agree, got {tuple(a.shape)}, {tuple(b.shape)}")
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    scale = b.double().abs().max().clamp(min=1e-12)
    return float((a.double() - b.double()).abs().max() / scale)


class Gate:
    """One rollout taken as one minibatch, as Lockstep sees it; peers are held against that.

    Peers divide advantages by the deviation with n - 1 where Lockstep takes n. The plain loop can
    do both: it must agree with Lockstep in the one form and with the peer in the other.
    """

    def __init__(self, task: Task, *, device: str) -> None:
        self.task, self.device = replace(task, epochs=1, minibatches=1), device
        ours = Ours(self.task, device=device)
        self.weights = ours.weights()
        self.stored = ours.stored()
        self.seen = ours.replay(self.stored)

    def check(self, make: Callable[..., Side], record: Record) -> str:
        """How a peer's arithmetic may be called, or SystemExit; eager."""
        peer = make(self.task, self.weights, device=self.device)
        replayed = peer.replay(self.stored)
        verdicts = {
            "plain loop to lockstep": judge(self._plain(unbiased=False), self.seen),
            "peer to plain loop": judge(replayed, self._plain(unbiased=peer.unbiased)),
            "peer to lockstep": judge(replayed, self.seen),
        }
        for between, verdict in verdicts.items():
            labelled = {"label": verdict.label, **asdict(verdict)}
            record.write("gate", peer=peer.name, between=between, **labelled)
        for between in ("plain loop to lockstep", "peer to plain loop"):
            verdict = verdicts[between]
            if not verdict.passes:
                raise SystemExit(
                    f"{peer.name} does not pass the gate ({between}): {verdict.worst} is off by "
                    f"{getattr(verdict, verdict.worst):.1e}; it was not timed"
                )
        direct = verdicts["peer to lockstep"]
        return direct.label if direct.passes else "numerically equal, advantages / sqrt(1 - 1/n)"

    def _plain(self, *, unbiased: bool) -> Seen:
        plain = Plain(self.task, self.weights, device=self.device, unbiased=unbiased)
        return plain.replay(self.stored)
