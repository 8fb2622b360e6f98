"""Rules about what the policy chooses from and how sure it is: entropy, masks, concentration."""

import math

import numpy as np

from lockstep.run.doctor.findings import WARM_UP, Evidence, Rule
from lockstep.run.doctor.log import RECENT_UPDATES, Array, Flags, View, first_of

ENTROPY = "train/<role>/entropy"
SHARE = "train/<role>/entropy_share"
CHOICES = "train/<role>/choices"
FORCED = "train/<role>/forced_share"
STD = "train/<role>/std"
CONCENTRATION = "train/<role>/concentration"
UNIFORM, CERTAIN = 0.998, 0.02
STILL = 1e-4
NEAR_LOG, LARGEST_K = 1e-3, 32
COLLAPSED = 0.05
SHARP, SHARPEST = 1000.0, 1e6
FORCED_SHARE = 0.9


def entropy_at_its_ends(view: View) -> Evidence | None:
    """G10."""
    update, share = view.rows(SHARE)
    recent = share[-RECENT_UPDATES:]
    if (recent > UNIFORM).all():
        return Evidence(
            text=f"entropy is {recent.min():.4f} or more of its maximum in the last {len(recent)} "
            "updates: the choice is still uniform",
            first=int(update[-len(recent)]),
            values={"entropy_share": float(recent.mean())},
        )
    total = view.log.facts.updates
    if total is None:
        return None
    early = (share < CERTAIN) & (update < total / 2)
    if early.sum() < 3:
        return None
    return Evidence(
        text=f"entropy is {share[early].min():.4f} of its maximum at update "
        f"{first_of(update, early)}, before half of {total} updates",
        first=first_of(update, early),
        values={"entropy_share": float(share[early].min())},
    )


def entropy_stands_still(view: View) -> Evidence | None:
    """G11."""
    update, entropy = view.rows(ENTROPY)
    recent = entropy[-RECENT_UPDATES:]
    if recent.std() >= STILL:
        return None
    return Evidence(
        text=f"entropy is {recent.mean():.6f} ± {recent.std():.1e} over the last {len(recent)} "
        "updates: the distribution does not depend on the weights?",
        first=int(update[-len(recent)]),
        values={"entropy": float(recent.mean()), "sd": float(recent.std())},
    )


def entropy_of_a_constant(view: View) -> Evidence | None:
    """D2."""
    if view.reads(STD) or view.reads(CONCENTRATION):
        return None  # numbers, not choices: any level of entropy is as good as another
    update, entropy = view.rows(ENTROPY)
    found = pinned_at(entropy)
    if found is None:
        return None
    k, near = found
    offered = ""
    if view.reads(CHOICES):
        choices = float(np.median(view.rows(CHOICES)[1]))
        if abs(choices - k) < 0.5:
            return None  # uniform over all there is: that is G10
        offered = f", while the agents had {choices:.1f} choices on average"
    return Evidence(
        text=f"entropy is {entropy.mean():.4f} in {near.mean():.0%} of {len(entropy)} updates, "
        f"which is ln {k} = {math.log(k):.4f}{offered}",
        first=first_of(update, near),
        values={"entropy": float(entropy.mean()), "k": float(k)},
    )


def collapse(view: View) -> Evidence | None:
    """D3."""
    key = STD if view.reads(STD) else ENTROPY
    if key == ENTROPY and view.reads(CONCENTRATION):
        return None
    update, level = view.rows(key)
    start, total = float(level[:5].mean()), view.log.facts.updates
    if total is None or start <= 0:
        return None
    gone = (level < COLLAPSED * start) & (update < total / 2)
    if gone.sum() < 3:
        return None
    what = "entropy" if key == ENTROPY else "standard deviation"
    return Evidence(
        text=f"the {what} fell from {start:.3g} to {level[gone].min():.3g} by update "
        f"{first_of(update, gone)} of {total}",
        first=first_of(update, gone),
        values={"start": start, "least": float(level[gone].min())},
    )


def concentration_blows_up(view: View) -> Evidence | None:
    """D6."""
    update, mean = view.rows(CONCENTRATION)
    largest = view.rows(f"{CONCENTRATION}_max")[1] if view.reads(f"{CONCENTRATION}_max") else mean
    if mean[-1] <= SHARP and largest[-1] <= SHARPEST:
        return None
    return Evidence(
        text=f"alpha + beta is {mean[-1]:.3g} on average and {largest[-1]:.3g} at most, from "
        f"{mean[0]:.3g} at update {update[0]:.0f}",
        first=first_of(update, mean > SHARP) if (mean > SHARP).any() else int(update[-1]),
        values={"mean": float(mean[-1]), "max": float(largest[-1]), "start": float(mean[0])},
    )


def one_choice_left(view: View) -> Evidence | None:
    """D7."""
    update, forced = view.rows(FORCED)
    level = float(np.median(forced))
    if level <= FORCED_SHARE:
        return None
    return Evidence(
        text=f"in {level:.1%} of decisions a single choice is legal",
        first=first_of(update, forced > FORCED_SHARE),
        values={"forced_share": level},
    )


def pinned_at(entropy: Array) -> tuple[int, Flags] | None:
    """The whole number k whose logarithm the entropy keeps to, and the updates where it does."""
    k = round(math.exp(min(float(np.median(entropy)), 10.0)))
    if not 2 <= k <= LARGEST_K:
        return None
    near = np.abs(entropy - math.log(k)) < NEAR_LOG
    return (k, near) if near.mean() >= 0.95 else None


RULES = (
    Rule(
        id="G10",
        name="entropy at an end of its range",
        severity="warn",
        needs=(SHARE,),
        condition=f"share of ln K above {UNIFORM} in the last {RECENT_UPDATES} updates, or below "
        f"{CERTAIN} before half of training",
        cause="no gradient reaches the choice (wrong weights, mean advantage), or it was made "
        "too soon",
        knob="at 1: check the replay, lower entropy_weight; near 0: raise entropy_weight, lower "
        "lr_actor",
        check=entropy_at_its_ends,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="G11",
        name="entropy constant",
        severity="warn",
        needs=(ENTROPY,),
        condition=f"standard deviation below {STILL:g} over the last {RECENT_UPDATES} updates",
        cause="the distribution does not depend on the weights that are trained, or they do not "
        "move",
        knob="check which network acts and which learns, lr_actor, and the choice set in the "
        "update",
        check=entropy_stands_still,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D2",
        name="entropy pinned at the log of a constant",
        severity="fail",
        needs=(ENTROPY,),
        also=(CHOICES,),
        condition=f"within {NEAR_LOG:g} of ln k for one whole k up to {LARGEST_K} in 95 % of "
        "updates, where k is not the number of choices",
        cause="the update lost the choice set and normalises over a fixed k",
        knob="store mask or candidates with every transition and replay with them",
        check=entropy_of_a_constant,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D3",
        name="entropy collapse",
        severity="warn",
        needs=(ENTROPY,),
        also=(STD,),
        condition=f"entropy of choices, or the standard deviation of numbers, below "
        f"{COLLAPSED:.0%} of its start before half of training",
        cause="exploration ended before much was seen",
        knob="entropy_weight up, lr_actor down, fewer epochs",
        check=collapse,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D6",
        name="Beta concentration blows up",
        severity="warn",
        needs=(CONCENTRATION,),
        also=(f"{CONCENTRATION}_max",),
        condition=f"mean alpha + beta above {SHARP:g}, or a largest one above {SHARPEST:g}",
        cause="the head has become all but deterministic; log-densities and ratios run away",
        knob="entropy_weight up, lr_actor down, max_grad_norm down",
        check=concentration_blows_up,
        skip=WARM_UP,
        least=5,
    ),
    Rule(
        id="D7",
        name="masks leave one choice",
        severity="warn",
        needs=(FORCED,),
        condition=f"median share of decisions with one legal choice above {FORCED_SHARE}",
        cause="a mask that is too strict, or a world in which nothing can be afforded",
        knob="the world's masks, budgets and candidate filters",
        check=one_choice_left,
        least=5,
    ),
)
