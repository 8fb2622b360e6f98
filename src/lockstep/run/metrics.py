"""Every metric key with its unit, its reduction and its meaning, and its names elsewhere."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from lockstep.core.world import Over, WorldSpec

SCHEMA = 1
"""Version of the table: raised when a key is renamed or removed, since none changes its meaning.

Keys may join without that, so readers take a line as it is and do without what it lacks.
"""

FormOf = Literal["mean", "sum", "last", "max"]


@dataclass(frozen=True, kw_only=True)
class MetricKey:
    """What stands under a key, its unit, and how an update's samples become one number."""

    key: str
    """The key; `<role>` stands for the name of a role, `<name>` for that of a world's metric."""
    unit: str
    reduction: FormOf
    meaning: str


def _table(*rows: tuple[str, str, FormOf, str]) -> tuple[MetricKey, ...]:
    return tuple(MetricKey(key=k, unit=u, reduction=r, meaning=m) for k, u, r, m in rows)


COUNTERS = _table(
    ("update", "1", "last", "updates made so far"),
    ("step", "1", "last", "environment steps of the member"),
    ("member", "1", "last", "position in the pack"),
    ("seed", "1", "last", "the member's seed"),
)

TRAIN = _table(
    ("train/<role>/policy_loss", "1", "mean", "clipped surrogate of PPO, or minus Q of MADDPG"),
    ("train/<role>/imitation_loss", "nat", "mean", "minus the log-prob of what a teacher decided"),
    ("train/<role>/entropy", "nat", "mean", "entropy of a decision"),
    ("train/<role>/approx_kl", "nat", "mean", "KL from the acting policy, estimator k3"),
    (
        "train/<role>/clip_fraction",
        "1",
        "mean",
        "share of samples whose ratio left the clip range",
    ),
    ("train/<role>/grad_norm", "1", "mean", "gradient norm of the policy before clipping"),
    ("train/value_loss", "1", "mean", "half the critic's squared error"),
    ("train/q_loss", "1", "mean", "half the squared temporal-difference error of Q"),
    ("train/q_mean", "1", "mean", "Q of the transitions drawn"),
    ("train/sigma", "1", "last", "deviation of the noise the rollout was collected with"),
    ("train/gradient_steps", "1", "sum", "gradient steps made; none during the warm-up"),
    ("train/critic/grad_norm", "1", "mean", "gradient norm of the critic before clipping"),
    (
        "train/<role>/explained_variance",
        "1",
        "mean",
        "share of the returns' variance that the values explain",
    ),
    (
        "train/max_kl",
        "nat",
        "max",
        "largest KL (k3) of any minibatch and role, those that were stopped included",
    ),
    ("train/minibatches", "1", "sum", "minibatches the member took part in before a KL stop"),
    ("train/stopped_epochs", "1", "sum", "epochs that a KL stop cut short or left out"),
    ("train/lr_actor", "1", "last", "step size of the policies"),
    ("train/lr_critic", "1", "last", "step size of the critic"),
)

HEALTH = _table(
    ("train/<role>/ratio_mean", "1", "mean", "probability ratio of new to acting policy"),
    ("train/<role>/ratio_max", "1", "max", "the largest such ratio of any minibatch"),
    (
        "train/<role>/effective_share",
        "1",
        "mean",
        "1 / mean of the squared ratio: share of the samples that still count",
    ),
    ("train/<role>/k1", "nat", "mean", "KL from the acting policy, estimator k1"),
    ("train/<role>/k2", "nat", "mean", "KL from the acting policy, estimator k2"),
    (
        "train/<role>/advantage_corr",
        "1",
        "last",
        "correlation of log ratio and advantage after the last step taken",
    ),
    (
        "train/<role>/entropy_share",
        "1",
        "mean",
        "entropy of labels over ln K, where there are K > 1 legal choices",
    ),
    ("train/<role>/choices", "1", "mean", "legal choices of a label (K)"),
    ("train/<role>/forced_share", "1", "mean", "share of decisions with one legal choice"),
    ("train/<role>/concentration", "1", "mean", "alpha + beta of the Beta heads"),
    ("train/<role>/concentration_max", "1", "max", "the largest of them"),
    ("train/<role>/std", "1", "mean", "standard deviation of the Gaussian heads"),
    (
        "train/<role>/behaviour_shift",
        "1",
        "last",
        "sqrt(KL / 2) to the policy 20 updates ago, on observations of the first rollout",
    ),
    ("train/<role>/reward_mean", "1", "mean", "reward as the world gives it"),
    ("train/<role>/reward_std", "1", "mean", "its standard deviation"),
    ("train/<role>/value_mean", "1", "mean", "value as collected"),
    ("train/<role>/value_std", "1", "mean", "its standard deviation"),
    ("train/<role>/return_mean", "1", "mean", "the critic's target"),
    ("train/<role>/return_std", "1", "mean", "its standard deviation"),
    (
        "train/<role>/advantage_std",
        "1",
        "mean",
        "standard deviation of the advantage before it is standardised",
    ),
)

EPISODE = _table(
    (
        "episode/<role>/return_mean",
        "1",
        "mean",
        "return of the member's last 100 episodes: rewards summed, mean over agents",
    ),
    ("episode/<role>/return_p10", "1", "last", "10 % of those returns lie below"),
    ("episode/<role>/return_p50", "1", "last", "half of them"),
    ("episode/<role>/return_p90", "1", "last", "90 % of them"),
    ("episode/<role>/return_p99", "1", "last", "99 % of them"),
    ("episode/length_mean", "1", "mean", "steps of the member's last 100 episodes"),
    ("episode/finished", "1", "last", "episodes the member has finished so far"),
)

AUDIT = _table(
    (
        "audit/<role>/log_prob_gap",
        "nat",
        "max",
        "largest difference of a log-probability when it is rebuilt",
    ),
    ("audit/<role>/entropy_gap", "nat", "max", "the same of an entropy"),
    ("audit/<role>/value_gap", "1", "max", "the same of a value"),
    (
        "audit/<role>/action_gap",
        "1",
        "max",
        "largest difference of an action when policy and noise give it again",
    ),
    (
        "audit/first/<role>/approx_kl",
        "nat",
        "mean",
        "KL seen by the loss before the first step: nothing",
    ),
    (
        "audit/first/<role>/clip_fraction",
        "1",
        "mean",
        "clip fraction seen by the loss before the first step: nothing",
    ),
)

REPLAY = _table(
    ("replay/fill", "1", "last", "share of the replay that is filled"),
    ("replay/unique_share", "1", "mean", "share of drawn samples that differ from each other"),
    ("replay/pushed", "1", "last", "transitions stored so far"),
)

WORLD = _table(("world/<name>", "", "mean", "a metric of the world, see `lockstep worlds`"))

PERF = _table(
    ("perf/update_s", "s", "sum", "wall time of the update"),
    ("perf/collect_s", "s", "sum", "of which collecting"),
    ("perf/env_s", "s", "sum", "of which the world; this and the next two on the CPU only"),
    ("perf/act_s", "s", "sum", "of which deciding"),
    ("perf/value_s", "s", "sum", "of which valuing"),
    ("perf/learn_s", "s", "sum", "audit and gradient steps"),
    ("perf/write_s", "s", "sum", "handing the last update's metrics over"),
    ("perf/checkpoint_s", "s", "sum", "the checkpoint after the last update"),
    (
        "perf/steps_per_s",
        "1/s",
        "mean",
        "environment steps of all members per second of wall time",
    ),
    ("perf/env_steps_per_s", "1/s", "mean", "the same per second of the world alone"),
    ("perf/act_steps_per_s", "1/s", "mean", "the same per second of world and deciding"),
)

RESOURCES = _table(
    ("res/cpu_percent", "%", "last", "processor time of this process; 100 is one core"),
    ("res/rss_mb", "MB", "last", "memory of this process"),
    ("res/system_memory_percent", "%", "last", "memory in use on the whole machine"),
    ("res/gpu_percent", "%", "last", "share of time in which the GPU was busy"),
    ("res/gpu_percent_mean", "%", "mean", "its mean over the last 100 samples"),
    ("res/gpu_memory_mb", "MB", "last", "GPU memory in use, by all processes"),
)

METRICS_FILE = COUNTERS + TRAIN + HEALTH + EPISODE + REPLAY + AUDIT + WORLD
"""What a line of metrics.jsonl may hold."""
PERF_FILE = COUNTERS[:1] + PERF + RESOURCES
"""What a line of perf.jsonl may hold."""


@dataclass(frozen=True, kw_only=True)
class Alias:
    """The names under which other libraries write one of our keys to TensorBoard."""

    key: str
    sb3: str
    """Tag of Stable-Baselines3."""
    cleanrl: str | None = None
    """Tag of CleanRL, where it has one; its numbers are ours."""
    sb3_factor: float = 1.0
    """What our number is multiplied by to become the one that SB3 would write."""


ALIASES = (
    Alias(
        key="episode/<role>/return_mean",
        sb3="rollout/ep_rew_mean",
        cleanrl="charts/episodic_return",
    ),
    Alias(key="episode/length_mean", sb3="rollout/ep_len_mean", cleanrl="charts/episodic_length"),
    Alias(
        key="train/<role>/policy_loss",
        sb3="train/policy_gradient_loss",
        cleanrl="losses/policy_loss",
    ),
    Alias(
        key="train/value_loss",
        sb3="train/value_loss",
        cleanrl="losses/value_loss",
        sb3_factor=2.0,  # SB3 logs the squared error, CleanRL and we half of it
    ),
    Alias(
        key="train/<role>/entropy",
        sb3="train/entropy_loss",
        cleanrl="losses/entropy",
        sb3_factor=-1.0,
    ),
    Alias(key="train/<role>/approx_kl", sb3="train/approx_kl", cleanrl="losses/approx_kl"),
    Alias(key="train/<role>/clip_fraction", sb3="train/clip_fraction", cleanrl="losses/clipfrac"),
    Alias(
        key="train/<role>/explained_variance",
        sb3="train/explained_variance",
        cleanrl="losses/explained_variance",
    ),
    Alias(key="train/<role>/std", sb3="train/std"),
    Alias(key="train/lr_actor", sb3="train/learning_rate", cleanrl="charts/learning_rate"),
    Alias(key="perf/steps_per_s", sb3="time/fps", cleanrl="charts/SPS"),
    Alias(key="step", sb3="time/total_timesteps"),
    Alias(key="update", sb3="train/n_updates"),  # SB3 counts epochs of updates
)


def world_keys(spec: WorldSpec) -> tuple[MetricKey, ...]:
    """The keys under which a world's own numbers are written.

    A metric that is a mean is written as the mean over steps and lanes; every other is one number
    of an episode, written as the mean over the episodes that ended in the update.
    """
    return tuple(
        MetricKey(
            key=f"world/{m.name}",
            unit=m.unit,
            reduction="mean",
            meaning=m.meaning if m.over == "mean" else f"{m.meaning}; {m.over} of an episode",
        )
        for m in spec.metrics
    )


def describe(spec: WorldSpec) -> tuple[MetricKey, ...]:
    """Every key that training on a world may write, with roles and the world's metrics by name."""
    keys: list[MetricKey] = []
    for key in (*METRICS_FILE, *PERF_FILE[1:]):
        if key in WORLD:
            keys += world_keys(spec)
        elif "<role>" in key.key:
            keys += [replace(key, key=key.key.replace("<role>", r.name)) for r in spec.roles]
        else:
            keys.append(key)
    return tuple(keys)


def declared(key: str, table: Sequence[MetricKey]) -> MetricKey | None:
    """The row of `table` that speaks of `key`; one that names it whole goes first."""
    fitting = [row for row in table if role_in(key, row.key) is not None]
    return min(fitting, key=lambda row: "<" in row.key, default=None)


def role_in(key: str, pattern: str) -> str | None:
    """The name that `key` has in the place of `<role>` or `<name>`; None if it does not fit.

    A pattern without such a place gives the empty name.
    """
    parts = re.split(r"<role>|<name>", pattern)
    found = re.fullmatch("([^/]+)".join(map(re.escape, parts)), key)
    if found is None:
        return None
    return found.group(1) if found.groups() else ""


def markdown_table(keys: Sequence[MetricKey]) -> str:
    """The table of the documentation."""
    rows = [f"| `{k.key}` | {k.unit} | {k.reduction} | {k.meaning} |" for k in keys]
    return "\n".join(["| key | unit | over an update | meaning |", "|---|---|---|---|", *rows])


def alias_table() -> str:
    """The table of the documentation that gives the names of other libraries."""
    signs = {1.0: "", -1.0: "-", 2.0: "2 x "}
    rows = [
        f"| {signs[a.sb3_factor]}`{a.key}` | `{a.sb3}` | {f'`{a.cleanrl}`' if a.cleanrl else ''} |"
        for a in ALIASES
    ]
    head = "| key | Stable-Baselines3 | CleanRL (without sign or factor) |"
    return "\n".join([head, "|---|---|---|", *rows])


@dataclass(frozen=True, kw_only=True)
class Fold:
    """An episode's number so far, one step after the other; associative, so steps may be paired."""

    start: float
    """What changes nothing: the number before the first step."""
    join: Callable[[Tensor, Tensor], Tensor]


FOLDS: Mapping[Over, Fold] = {
    "mean": Fold(start=0.0, join=torch.add),  # to be divided by the length
    "sum": Fold(start=0.0, join=torch.add),
    "last": Fold(start=math.nan, join=lambda before, now: now),  # noqa: ARG005
    "max": Fold(start=-math.inf, join=torch.maximum),
    "min": Fold(start=math.inf, join=torch.minimum),
}


def per_member(
    metrics: Mapping[str, Tensor], spec: WorldSpec, *, members: int
) -> dict[str, Tensor]:
    """World metrics `[T, L]` that are means, for each member: `world/<name>` to `[P]`.

    Those of whole episodes come from `Episodes`, since an episode may begin in another rollout.
    Sums are taken in float64, so that the bytes written do not hang on the order of addition.
    """
    return {
        f"world/{name}": x.double().reshape(len(x), members, -1).mean(dim=(0, 2))
        for name, x in metrics.items()
        if spec.metric(name).over == "mean"
    }
