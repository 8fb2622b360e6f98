"""Rules about whether anything happens: steps, updates, episodes, replay, hardware."""

import numpy as np

from lockstep.run.doctor.findings import Evidence, Rule
from lockstep.run.doctor.log import RECENT_UPDATES, View, first_of

FINISHED = "episode/finished"
RATES = ("train/lr_actor", "train/lr_critic")
MADE = "train/n_updates"
TAKEN = "train/minibatches"
FILL = "replay/fill"
GPU = "res/gpu_percent"
COLLECT_S, LEARN_S, ENV_S = "perf/collect_s", "perf/learn_s", "perf/env_s"
FILL_LEAST, FILL_AFTER = 0.05, 100
UNFINISHED_AFTER = 50
IDLE = 5.0
ENV_SHARE, COLLECT_SHARE = 0.95, 0.9


def replay_stays_empty(view: View) -> Evidence | None:
    """D13."""
    update, fill = view.rows(FILL)
    if fill[-1] >= FILL_LEAST:
        return None
    return Evidence(
        text=f"the replay is {fill[-1]:.1%} full after update {update[-1]:.0f}",
        first=int(update[0]),
        values={"fill": float(fill[-1])},
    )


def steps_stand_still(view: View) -> Evidence | None:
    """D14."""
    update, step = view.rows("step")
    still = np.diff(step) <= 0
    if not still.any():
        return None
    at = int(still.argmax())
    return Evidence(
        text=f"the step counter stays at {step[at]:.0f} or falls after update {update[at]:.0f}, in "
        f"{int(still.sum())} of {len(still)} updates",
        first=int(update[at]),
        values={"share": float(still.mean()), "step": float(step[at])},
    )


def no_episode_ends(view: View) -> Evidence | None:
    """D15."""
    update, finished = view.rows(FINISHED)
    if finished[-1] > 0 or update[-1] < UNFINISHED_AFTER:
        return None
    return Evidence(
        text=f"no episode has finished in {update[-1]:.0f} updates",
        first=int(update[-1]),
        values={"finished": 0.0, "updates": float(update[-1])},
    )


def nothing_changes(view: View) -> Evidence | None:
    """D16."""
    world = [key for key in view.log.columns if key.startswith("world/")]
    spread = [column.std() for key in world if len(column := view.rows(key)[1]) >= RECENT_UPDATES]
    if not spread or max(spread) > 0:
        return None
    return Evidence(
        text=f"none of the world's {len(world)} numbers has changed over {len(view.log.update)} "
        "updates",
        first=int(view.log.update[0]),
        values={"metrics": float(len(world))},
    )


def gpu_idles(view: View) -> Evidence | None:
    """D17."""
    if view.log.facts.device not in ("cuda", None):
        return None
    (busy,) = view.perf(GPU)
    if busy.mean() >= IDLE:
        return None
    return Evidence(
        text=f"the GPU is busy {busy.mean():.1f} % of the time, over {len(busy)} samples",
        values={"gpu_percent": float(busy.mean()), "samples": float(len(busy))},
    )


def waits_for_the_world(view: View) -> Evidence | None:
    """D18."""
    what, part, limit = "collecting", COLLECT_S, COLLECT_SHARE
    if view.has(ENV_S):
        what, part, limit = "the world", ENV_S, ENV_SHARE
    waited, collect, learn = view.perf(part, COLLECT_S, LEARN_S)
    share = float(waited.sum() / max((collect + learn).sum(), 1e-9))
    if share <= limit:
        return None
    return Evidence(
        text=f"{what} takes {share:.0%} of the time of {len(waited)} updates",
        values={"share": share},
    )


def no_learning_rate(view: View) -> Evidence | None:
    """D19."""
    for key in RATES:
        if not view.reads(key):
            continue
        update, rate = view.rows(key)
        zero = rate <= 0
        # A schedule may end at 0; a rate that is 0 for longer trains nothing.
        if zero.sum() >= 3 and zero.mean() > 0.05:
            return Evidence(
                text=f"{key} is 0 in {int(zero.sum())} of {len(rate)} updates",
                first=first_of(update, zero),
                values={"share": float(zero.mean())},
            )
    return None


def updates_without_a_step(view: View) -> Evidence | None:
    """D20."""
    update, taken = view.rows(TAKEN)
    none = taken < 1
    if none.sum() < 3:
        return None
    return Evidence(
        text=f"{int(none.sum())} of {len(taken)} updates took no step at all",
        first=first_of(update, none),
        values={"updates": float(none.sum()), "share": float(none.mean())},
    )


def counter_of_updates_stands(view: View) -> Evidence | None:
    """D21."""
    update, made = view.rows(MADE)
    if made[-1] > made[0]:
        return None
    return Evidence(
        text=f"the counter of updates stays at {made[-1]:.0f} over {len(made)} rows",
        first=int(update[0]),
        values={"n_updates": float(made[-1])},
    )


RULES = (
    Rule(
        id="D13",
        name="replay never fills",
        severity="warn",
        needs=(FILL,),
        condition=f"less than {FILL_LEAST:.0%} full after {FILL_AFTER} updates",
        cause="a capacity far above what the run collects, or rows that are not pushed",
        knob="the replay's capacity; where rows are pushed",
        check=replay_stays_empty,
        skip=FILL_AFTER,
    ),
    Rule(
        id="D14",
        name="steps stand still",
        severity="fail",
        needs=("step",),
        condition="an update after which the step counter is no higher",
        cause="nothing is collected, or two runs write to one log",
        knob="the collector; one folder for each run",
        check=steps_stand_still,
        least=2,
    ),
    Rule(
        id="D15",
        name="no episode finishes",
        severity="warn",
        needs=(FINISHED,),
        condition=f"none after {UNFINISHED_AFTER} updates",
        cause="episodes longer than the training, or an end that is never reported",
        knob="the world's horizon, its terminated and truncated",
        check=no_episode_ends,
    ),
    Rule(
        id="D16",
        name="nothing changes in the world",
        severity="warn",
        needs=("world/*",),
        condition=f"every number of the world the same over {RECENT_UPDATES} updates or more",
        cause="actions do not reach the world, or it is not stepped",
        knob="the world's act and advance",
        check=nothing_changes,
        least=RECENT_UPDATES,
    ),
    Rule(
        id="D17",
        name="GPU idle",
        severity="warn",
        needs=(GPU,),
        condition=f"busy less than {IDLE:g} % on average over 20 samples or more, on cuda",
        cause="batches too small for the device, or it waits for the world",
        knob="lanes, members in a pack, graphs; or device=cpu",
        check=gpu_idles,
        least=20,
    ),
    Rule(
        id="D18",
        name="waiting for the world",
        severity="warn",
        needs=(COLLECT_S, LEARN_S),
        also=(ENV_S,),
        condition=f"the world takes over {ENV_SHARE:.0%} of collecting and learning; where it has "
        f"no clock of its own (cuda), collecting takes over {COLLECT_SHARE:.0%}",
        cause="the world, or loading its data, sets the pace",
        knob="lanes, the world's workers, compile, graphs",
        check=waits_for_the_world,
        least=20,
    ),
    Rule(
        id="D19",
        name="learning rate zero",
        severity="fail",
        needs=("train/lr_*",),
        condition="a rate of 0 in at least 3 updates and over 5 % of them",
        cause="a schedule that ends before the training does, or a rate never set",
        knob="lr_actor, lr_critic and their schedule; total_steps",
        check=no_learning_rate,
        least=5,
    ),
    Rule(
        id="D20",
        name="updates skipped",
        severity="fail",
        needs=(TAKEN,),
        condition="at least 3 updates that took no minibatch",
        cause="the first minibatch already exceeds the KL limit, which before any step should be 0",
        knob="audit the replay; kl_stop_minibatch",
        check=updates_without_a_step,
    ),
    Rule(
        id="D21",
        name="counter of updates stands still",
        severity="fail",
        needs=(MADE,),
        condition="no higher in the last row than in the first",
        cause="the learner is never called, for instance because it waits to start learning",
        knob="learning starts, the size of a rollout",
        check=counter_of_updates_stands,
        least=5,
    ),
)
