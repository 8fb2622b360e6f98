"""Advantages and value targets from what a rollout recorded; pure functions, no gradients.

Row t is one transition: `next_value[t]` is the value of the observation it led to, before any
reset. A terminated row never bootstraps, a truncated one always does, a row with both flags counts
as terminated, and neither lets anything of the next episode leak into this one.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Reals = Float[Tensor, "T *lanes"]  # lanes: [L] or [L, A]
Flags = Bool[Tensor, "T *lanes"]
Factor = float | Float[Tensor, "..."]  # a tensor broadcasts to [*lanes]: members differ


class Estimates(NamedTuple):
    """What a rollout says of its decisions and states, each `[T, *lanes]`."""

    target: Reals  # what the critic learns
    advantage: Reals  # what the policy gradient weighs by


def gae(
    reward: Reals,
    value: Reals,
    next_value: Reals,
    terminated: Flags,
    truncated: Flags,
    *,
    gamma: Factor,
    lam: Factor,
    elapsed: Reals | None = None,
    acts: Flags | None = None,
) -> Estimates:
    """Generalized advantage estimate (Schulman et al. 2016, eq. 16), by default row by row.

    With `elapsed`, row t discounts by `gamma ** elapsed[t]`. With `acts`, an agent that does not
    decide at a row lets its reward accrue to its last decision (semi-Markov): lam counts decisions,
    the last one open bootstraps from where the rollout stops, rewards before the first decision of
    an episode belong to nobody, and the advantage is 0 wherever the agent does not act. The target
    of such a row is what is earned from there on, as if a decision fell at it.
    """
    discount = gamma if elapsed is None else gamma**elapsed
    bootstrap, same_episode = _boundaries(next_value, terminated, truncated)
    target = reward + discount * bootstrap
    if acts is None:
        advantage = _sum_backward_(target - value, discount * lam * same_episode)
        return Estimates(target=advantage + value, advantage=advantage)

    # A row without a decision takes for its baseline what the row before bootstrapped from, and is
    # passed on whole: the values between two decisions cancel, reward and discount remain. What
    # `roll` wraps around is never used: row 0 has none before it, the last row none after.
    baseline = torch.where(acts, value, bootstrap.roll(1, dims=0))
    passed_on = lam ** acts.to(value.dtype).roll(-1, dims=0)  # lam if the next row acts, else 1
    gained = _sum_backward_(target - baseline, discount * passed_on * same_episode)
    return Estimates(target=gained + baseline, advantage=torch.where(acts, gained, 0.0))


def judged(acts: Flags, terminated: Flags, truncated: Flags) -> Flags:
    """Rows from an agent's first decision of each episode on: those a critic can learn from.

    While a decision is open its agent may wait, and the rollout may stop there and ask the critic.
    Nobody asks about an agent that has decided nothing yet, or never does.
    """
    row = torch.arange(len(acts), device=acts.device).view(-1, *(1 for _ in acts.shape[1:]))
    decision = torch.where(acts, row, -1).cummax(dim=0).values  # the last one, this row included
    ended = torch.where(terminated | truncated, row, -1).cummax(dim=0).values
    before = torch.cat((torch.full_like(ended[:1], -1), ended[:-1]))  # the last end before this row
    return decision > before


def vtrace(
    log_ratio: Reals,
    reward: Reals,
    value: Reals,
    next_value: Reals,
    terminated: Flags,
    truncated: Flags,
    *,
    gamma: Factor,
    lam: Factor = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> Estimates:
    """V-trace (Espeholt et al. 2018, eq. 1 and sec. 4.2) for data of another policy.

    `log_ratio` is log pi(a|s) - log mu(a|s). The paper leaves lam to its remark 2, on the targets;
    here the advantage mixes by lam as well, so that on-policy it is `gae` and `target - value`.
    """
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    bootstrap, same_episode = _boundaries(next_value, terminated, truncated)
    delta = reward + gamma * bootstrap - value
    decay = gamma * lam * same_episode

    correction = _sum_backward_(rho * delta, decay * c)
    later = torch.cat((correction[1:], torch.zeros_like(correction[:1])))
    return Estimates(target=value + correction, advantage=rho * (delta + decay * later))


def _boundaries(next_value: Reals, terminated: Flags, truncated: Flags) -> tuple[Reals, Reals]:
    """What each row bootstraps from, and 1 where the row after it is of the same episode.

    The value after a termination is replaced, not multiplied by 0: it may never have been computed.
    """
    same_episode = (~(terminated | truncated)).to(next_value.dtype)
    return torch.where(terminated, 0.0, next_value), same_episode


def _sum_backward_(term: Reals, decay: Reals) -> Reals:
    """Adds to each row, in place and from the last one back, `decay[t]` times the row after it."""
    for t in reversed(range(term.shape[0] - 1)):
        term[t].addcmul_(decay[t], term[t + 1])
    return term
