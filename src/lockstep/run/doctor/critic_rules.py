"""Rules about values and rewards."""

import numpy as np

from lockstep.run.doctor.findings import WARM_UP, Evidence, Rule
from lockstep.run.doctor.log import RECENT_UPDATES, SCORE, View, first_of

EXPLAINED = "train/<role>/explained_variance"
REWARD_STD = "train/<role>/reward_std"
VALUE = "train/<role>/value_mean"
RETURN = "train/<role>/return_mean"
RETURN_STD = "train/<role>/return_std"
VALUE_LOSS = "train/value_loss"
HARMFUL = -0.1
REWARD_BAND = (1e-4, 100.0)
HUGE_LOSS = 1000.0
DRIFT = 3.0
CRITIC_GAIN = 0.2
FLAT_AFTER = 100
NOT_ALWAYS = ("/behaviour_shift", "/explained_variance", "/entropy_share", "/advantage_corr")


def explains_nothing(view: View) -> Evidence | None:
    """G13."""
    update, explained = view.rows(EXPLAINED)
    recent = explained[-RECENT_UPDATES:]
    level = float(np.median(recent))
    if level > 0 or (level > HARMFUL and view.moved is True):
        return None
    return Evidence(
        text=f"the values explain {level:.3f} of the returns' variance (median of the last "
        f"{len(recent)} updates): no better than a constant",
        first=int(update[-len(recent)]),
        values={"explained_variance": level},
    )


def not_a_number(view: View) -> Evidence | None:
    """G16."""
    for key, broken in view.log.broken.items():
        row = broken[view.member]
        if key.startswith("train/") and not key.endswith(NOT_ALWAYS) and row.any():
            at = int(view.log.update[int(row.argmax())])
            return Evidence(
                text=f"{key} is not a finite number at update {at} and {int(row.sum())} times in "
                "all",
                first=at,
                values={"count": float(row.sum())},
            )
    return None


def reward_scale(view: View) -> Evidence | None:
    """D9."""
    update, spread = view.rows(REWARD_STD)
    level = float(np.median(spread))
    low, high = REWARD_BAND
    if view.log.facts.rewards_scaled or low <= level <= high:
        return None
    return Evidence(
        text=f"the standard deviation of rewards is {level:.3g} (median of {len(spread)} updates), "
        f"outside {low:g}..{high:g}",
        first=int(update[0]),
        values={"reward_std": level},
    )


def value_scale(view: View) -> Evidence | None:
    """D10."""
    update, loss = view.rows(VALUE_LOSS)
    level = float(np.median(loss[-RECENT_UPDATES:]))
    if level <= HUGE_LOSS:
        return None
    return Evidence(
        text=f"the value loss is {level:.3g} (median of the last {RECENT_UPDATES} updates): the "
        "targets are far larger than 1",
        first=first_of(update, loss > HUGE_LOSS),
        values={"value_loss": level},
    )


def values_drift(view: View) -> Evidence | None:
    """D11."""
    update, value, target, spread = view.rows(VALUE, RETURN, RETURN_STD)
    gap = np.abs(value - target) / np.maximum(spread, 1e-8)
    quarter = max(len(gap) // 4, 5)
    before, now = float(np.median(gap[:quarter])), float(np.median(gap[-quarter:]))
    if now <= DRIFT or now <= before:
        return None
    return Evidence(
        text=f"values lie {now:.1f} standard deviations of the return from it (median of the last "
        f"{quarter} updates), {before:.1f} in the first {quarter}",
        first=first_of(update, gap > DRIFT),
        values={"gap": now, "before": before, "value_mean": float(value[-1])},
    )


def flat_while_the_critic_improves(view: View) -> Evidence | None:
    """D12."""
    update, explained = view.rows(EXPLAINED)
    if len(explained) < FLAT_AFTER or view.moved is not False:
        return None
    early, late = explained[:RECENT_UPDATES].mean(), explained[-RECENT_UPDATES:].mean()
    if late - early < CRITIC_GAIN or late <= 0:
        return None
    return Evidence(
        text=f"explained variance rose from {early:.2f} to {late:.2f} over {len(explained)} "
        f"updates while {view.log.score} is where it started, within its noise",
        first=int(update[-1]),
        values={"before": float(early), "now": float(late)},
    )


RULES = (
    Rule(
        id="G13",
        name="critic explains nothing",
        severity="warn",
        needs=(EXPLAINED,),
        also=(SCORE,),
        condition=f"median explained variance of the last {RECENT_UPDATES} updates below "
        f"{HARMFUL}; or 0 or less unless the score has left where it started",
        cause="values of another scale than the returns, a critic that does not see what decides "
        "them, or too slow a one",
        knob="lr_critic, reward_norm, the critic's input",
        check=explains_nothing,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="G16",
        name="not a number",
        severity="fail",
        needs=("train/*",),
        condition="a training number that is NaN or infinite",
        cause="a step that was too large, a log of 0, a reward that is not finite",
        knob="the first update that shows it: lr_actor, lr_critic, max_grad_norm, rewards",
        check=not_a_number,
    ),
    Rule(
        id="D9",
        name="reward scale",
        severity="warn",
        needs=(REWARD_STD,),
        condition=f"standard deviation of rewards outside {REWARD_BAND[0]:g}..{REWARD_BAND[1]:g}, "
        "unless rewards are standardised",
        cause="rewards in raw units (money, joules) or all but constant",
        knob="reward_norm=running, or the world's reward weights",
        check=reward_scale,
        least=5,
    ),
    Rule(
        id="D10",
        name="value targets of a large scale",
        severity="warn",
        needs=(VALUE_LOSS,),
        condition=f"median value loss of the last {RECENT_UPDATES} updates above {HUGE_LOSS:g}",
        cause="rewards in raw units summed over long episodes",
        knob="reward_norm=running, or a smaller reward scale",
        check=value_scale,
        skip=WARM_UP,
        least=5,
    ),
    Rule(
        id="D11",
        name="value drift",
        severity="warn",
        needs=(VALUE, RETURN, RETURN_STD),
        condition=f"values further than {DRIFT:g} standard deviations of the return from it in "
        "the last quarter, and further than in the first",
        cause="a bootstrap that feeds on itself: wrong episode ends, a discount too near 1, or a "
        "critic that lags",
        knob="terminated and truncated of the world, gae_lambda, the discount, lr_critic",
        check=values_drift,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D12",
        name="returns flat while the critic improves",
        severity="warn",
        needs=(EXPLAINED, SCORE),
        condition=f"over {FLAT_AFTER} updates, explained variance up by {CRITIC_GAIN} or more and "
        "the score where it started, within 3 standard errors",
        cause="the critic learns and the policy does not: advantages that do not reach the "
        "decisions, or a head that cannot express them (one that scores positions)",
        knob="advantage_corr, the policy's inputs, entropy_weight, lr_actor",
        check=flat_while_the_critic_improves,
        least=FLAT_AFTER,
    ),
)
