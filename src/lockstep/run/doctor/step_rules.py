"""Rules about the policy's steps: KL, clipping, ratio."""

import math

import numpy as np

from lockstep.run.doctor.choice_rules import ENTROPY, pinned_at
from lockstep.run.doctor.findings import WARM_UP, Evidence, Rule
from lockstep.run.doctor.log import RECENT_UPDATES, SCORE, View, first_of

KL = "train/<role>/approx_kl"
CLIP = "train/<role>/clip_fraction"
RATIO = "train/<role>/ratio_mean"
RATIO_MAX = "train/<role>/ratio_max"
K1 = "train/<role>/k1"
SHIFT = "train/<role>/behaviour_shift"
CORRELATION = "train/<role>/advantage_corr"
TAKEN = "train/minibatches"
RATE = "train/lr_actor"
CLIP_BAND = (0.05, 0.30)
KL_BAND = (0.003, 0.03)
PATIENCE = 50
"""Updates before small steps are held against a training whose score stands still."""
RATIO_BAND, RATIO_LIMIT, RATIO_SHARE = (0.9, 1.1), 10.0, 0.05
SPIKE, SPIKE_KL, SPIKE_CLIP = 5.0, 0.1, 0.4
ALL_CLIPPED, SURELY_OFF = 0.9, 1.3
NO_SHIFT = 1e-7


def share_of_skipped(view: View) -> Evidence | None:
    """G7."""
    update, taken = view.rows(TAKEN)
    planned = view.log.facts.minibatches or float(taken.max())
    if planned < 1:
        return None
    hit = taken < planned / 2
    if hit.mean() <= 0.5:
        return None
    return Evidence(
        text=f"{hit.mean():.0%} of {len(hit)} updates took fewer than half of their {planned:g} "
        f"minibatches (median {np.median(taken):g}): the belts never let go",
        first=first_of(update, hit),
        values={"share": float(hit.mean()), "taken": float(np.median(taken)), "planned": planned},
    )


def clip_out_of_band(view: View) -> Evidence | None:
    """G8."""
    return _out_of_band(view, CLIP, CLIP_BAND, "clip fraction")


def kl_out_of_band(view: View) -> Evidence | None:
    """G9."""
    return _out_of_band(view, KL, KL_BAND, "KL of an update")


def ratio_off_one(view: View) -> Evidence | None:
    """G12."""
    update, ratio = view.rows(RATIO)
    off = (ratio < RATIO_BAND[0]) | (ratio > RATIO_BAND[1])
    if off.sum() >= 3 and off.mean() > RATIO_SHARE:
        worst = ratio[np.abs(np.log(np.maximum(ratio, 1e-12))).argmax()]
        return Evidence(
            text=f"the mean ratio is outside {RATIO_BAND[0]}..{RATIO_BAND[1]} in {off.mean():.0%} "
            f"of {len(ratio)} updates, {worst:.3g} at worst",
            first=first_of(update, off),
            values={"share": float(off.mean()), "worst": float(worst)},
        )
    if not view.reads(RATIO_MAX):
        return None
    update, largest = view.rows(RATIO_MAX)
    off = largest >= RATIO_LIMIT
    if off.sum() < 3 or off.mean() <= RATIO_SHARE:
        return None
    return Evidence(
        text=f"a ratio of {RATIO_LIMIT:g} or more in {off.mean():.0%} of {len(largest)} updates, "
        f"{largest.max():.3g} at worst",
        first=first_of(update, off),
        values={"share": float(off.mean()), "worst": float(largest.max())},
    )


def behaviour_stands_still(view: View) -> Evidence | None:
    """G14."""
    update, shift, kl = view.rows(SHIFT, KL)
    still = (shift <= NO_SHIFT) & (kl > 0)
    if not still.all():
        return None
    return Evidence(
        text=f"decisions on a fixed probe have not moved in {len(shift)} looks although the "
        f"updates report a KL of {np.median(kl):.2g}: rollouts use other weights?",
        first=int(update[0]),
        values={"behaviour_shift": float(shift.max()), "approx_kl": float(np.median(kl))},
    )


def steps_that_overshoot(view: View) -> Evidence | None:
    """D1."""
    update, kl, clip = view.rows(KL, CLIP)
    usual = float(np.median(kl))
    spike = (kl > max(SPIKE * usual, SPIKE_KL)) & (clip > SPIKE_CLIP)
    if not spike.any():
        return None
    at = int(np.where(spike, kl, -1).argmax())
    return Evidence(
        text=f"a KL of {kl[at]:.3g} (usually {usual:.2g}) with a clip fraction of {clip[at]:.2f} "
        f"at update {update[at]:.0f}, the worst of {int(spike.sum())}",
        first=first_of(update, spike),
        values={"approx_kl": float(kl[at]), "usual": usual, "clip_fraction": float(clip[at])},
    )


def ratio_of_two_sizes(view: View) -> Evidence | None:
    """D4."""
    signs = [key for key in (K1, RATIO) if view.reads(key)][:1]
    update, kl, clip, *sign = view.rows(KL, CLIP, *signs)
    if not len(clip) or (clip >= ALL_CLIPPED).mean() < 0.8:
        return None
    if signs == [K1]:
        ratio, source = np.exp(-np.clip(sign[0], -30, 30)), "the signed KL"
    elif signs == [RATIO]:
        ratio, source = sign[0], "the mean ratio"
    else:
        ratio, source = np.array([ratio_behind(value) for value in kl]), "the KL alone"
    hit = (clip >= ALL_CLIPPED) & (ratio >= SURELY_OFF)
    steady = ratio.std() <= 0.5 * ratio.mean()
    if hit.mean() < 0.8 or not steady:
        return None
    size = float(np.median(ratio))
    k = pinned_at(view.rows(ENTROPY)[1]) if view.reads(ENTROPY) else None
    named = "" if k is None else f"; with k = {k[0]} from the entropy, K is about {size * k[0]:.1f}"
    return Evidence(
        text=f"a clip fraction of {np.median(clip):.2f} and a KL of {np.median(kl):.2f} in "
        f"{hit.mean():.0%} of {len(kl)} updates: the ratio looks like K/k = {size:.2f} "
        f"(from {source}){named}",
        first=first_of(update, hit),
        values={"ratio": size, "approx_kl": float(np.median(kl))}
        | ({} if k is None else {"k": float(k[0]), "K": size * k[0]}),
    )


def kl_deaf_to_the_rate(view: View) -> Evidence | None:
    """D5."""
    update, kl, rate = view.rows(KL, RATE)
    fit = (kl > 0) & (rate > 0)
    if fit.sum() < RECENT_UPDATES or rate[fit].max() < 2 * rate[fit].min():
        return None
    if np.median(kl[fit]) <= KL_BAND[1]:
        return None  # quiet steps are noise
    slope = float(np.polyfit(np.log(rate[fit]), np.log(kl[fit]), 1)[0])
    if abs(slope) >= 0.1:
        return None
    return Evidence(
        text=f"the KL stays at {np.median(kl[fit]):.3g} while the learning rate goes from "
        f"{rate[fit].max():.1e} to {rate[fit].min():.1e} (slope of the logarithms {slope:+.3f})",
        first=int(update[0]),
        values={"slope": slope, "approx_kl": float(np.median(kl[fit]))},
    )


def steps_against_the_advantage(view: View) -> Evidence | None:
    """D8."""
    update, correlation = view.rows(CORRELATION)
    recent = correlation[-RECENT_UPDATES:]
    if np.median(recent) > 0:
        return None
    return Evidence(
        text=f"log ratio and advantage correlate by {np.median(recent):+.3f} over the last "
        f"{len(recent)} updates; a policy that learns makes good decisions likelier",
        first=int(update[-len(recent)]),
        values={"advantage_corr": float(np.median(recent))},
    )


def ratio_behind(kl: float) -> float:
    """The ratio r above 1 that every sample must have had for this KL: r - 1 - ln r = kl."""
    low, high = 1.0, 2.0 * max(kl, 0.0) + 3.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if middle - 1 - math.log(middle) < kl else (low, middle)
    return low


def _out_of_band(view: View, key: str, band: tuple[float, float], what: str) -> Evidence | None:
    """Above the band at any time; below it only where the score shows that nothing comes of it."""
    update, x = view.rows(key)
    level = float(np.median(x))
    if level > band[1]:
        side, hit = "above", x > band[1]
    elif level < band[0] and len(x) >= PATIENCE and view.moved is False:
        side, hit = "below", x < band[0]
    else:
        return None
    tail = " while the score is where it started" if side == "below" else ""
    return Evidence(
        text=f"the {what} is {level:.3g} (median of {len(x)} updates), {side} "
        f"{band[0]}..{band[1]}{tail}",
        first=first_of(update, hit),
        values={"median": level, "low": band[0], "high": band[1]},
    )


RULES = (
    Rule(
        id="G7",
        name="KL stops take the update away",
        severity="fail",
        needs=(TAKEN,),
        condition="more than half of the updates skipped more than half of their minibatches",
        cause="the KL limit is hit at once: replayed log-probs differ from stored ones, or the "
        "steps are far too large",
        knob="audit the replay first; then lower lr_actor or raise kl_stop_minibatch and "
        "kl_stop_update",
        check=share_of_skipped,
        least=5,
    ),
    Rule(
        id="G8",
        name="clip fraction out of its band",
        severity="warn",
        needs=(CLIP,),
        also=(SCORE,),
        condition=f"median above {CLIP_BAND[1]}; or below {CLIP_BAND[0]} over {PATIENCE} updates "
        "while the score is where it started",
        cause="steps too large, or too small to change anything",
        knob="lr_actor, epochs, minibatches, clip_ratio",
        check=clip_out_of_band,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="G9",
        name="KL of an update out of its band",
        severity="warn",
        needs=(KL,),
        also=(SCORE,),
        condition=f"median above {KL_BAND[1]}; or below {KL_BAND[0]} over {PATIENCE} updates "
        "while the score is where it started",
        cause="steps too large, or too small to change anything",
        knob="lr_actor, epochs, kl_stop_update",
        check=kl_out_of_band,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="G12",
        name="ratio off 1",
        severity="warn",
        needs=(RATIO,),
        also=(RATIO_MAX,),
        condition=f"mean outside {RATIO_BAND[0]}..{RATIO_BAND[1]}, or a maximum of "
        f"{RATIO_LIMIT:g} or more, in over {RATIO_SHARE:.0%} of updates and at least 3",
        cause="the update normalises over other choices than the sampler did (mask, number of "
        "candidates), or steps are far too large",
        knob="audit the replay; then lr_actor, epochs, kl_stop_minibatch",
        check=ratio_off_one,
        least=5,
    ),
    Rule(
        id="G14",
        name="behaviour does not move",
        severity="fail",
        needs=(SHIFT, KL),
        condition="no shift on the fixed probe in any look while the updates report KL above 0",
        cause="rollouts use other weights than those that learn",
        knob="where the acting network is made and when it is refreshed",
        check=behaviour_stands_still,
        least=5,
    ),
    Rule(
        id="D1",
        name="KL spike with clipping",
        severity="warn",
        needs=(KL, CLIP),
        condition=f"an update with KL above {SPIKE_KL} and {SPIKE:g} times the median, and a clip "
        f"fraction above {SPIKE_CLIP}",
        cause="a few steps that overshoot: an outlier in rewards or advantages, or too high a rate",
        knob="kl_stop_minibatch, max_grad_norm, lr_actor",
        check=steps_that_overshoot,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D4",
        name="ratio looks like K/k",
        severity="fail",
        needs=(KL, CLIP),
        also=(K1, RATIO, ENTROPY),
        condition=f"clip fraction of {ALL_CLIPPED} or more and a steady ratio above {SURELY_OFF} "
        "in 80 % of updates; the ratio is that of k1, the mean ratio, or r - 1 - ln r = KL",
        cause="sampled among K choices, replayed among k: the ratio is K/k before any step",
        knob="store mask or candidates with every transition and replay with them",
        check=ratio_of_two_sizes,
        least=3,
    ),
    Rule(
        id="D5",
        name="KL independent of the learning rate",
        severity="warn",
        needs=(KL, RATE),
        condition=f"KL above {KL_BAND[1]} whose logarithm follows that of the rate with a slope "
        "below 0.1, while the rate varies twofold",
        cause="the KL is not of the steps taken: bookkeeping differs between sampling and update",
        knob="audit the replay; no learning rate will help",
        check=kl_deaf_to_the_rate,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D8",
        name="steps go against the advantage",
        severity="warn",
        needs=(CORRELATION,),
        condition=f"median correlation of log ratio and advantage over the last {RECENT_UPDATES} "
        "updates is 0 or less",
        cause="advantages do not line up with their decisions (order, sign, a shape that "
        "broadcasts every row against every other)",
        knob="shapes at the loss, the sign of the loss, the order of rows",
        check=steps_against_the_advantage,
        skip=WARM_UP,
        least=RECENT_UPDATES,
    ),
)
