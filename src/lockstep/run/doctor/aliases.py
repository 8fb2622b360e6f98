"""Names under which other libraries log the same numbers."""

from dataclasses import dataclass

POLICY = "policy"
"""The role that the numbers of a foreign log are put under."""
RETURN = f"episode/{POLICY}/return_mean"


@dataclass(frozen=True, kw_only=True)
class Alias:
    """One of our keys, and what SB3 and CleanRL call it."""

    ours: str
    names: tuple[str, ...]
    factor: float = 1.0
    """What theirs is multiplied by to be ours."""


ALIASES = (
    Alias(ours="step", names=("time/total_timesteps", "global_step", "step", "total_timesteps")),
    Alias(
        ours=RETURN,
        names=("rollout/ep_rew_mean", "charts/episodic_return", "episode_return"),
    ),
    Alias(ours="episode/length_mean", names=("rollout/ep_len_mean", "charts/episodic_length")),
    Alias(ours=f"train/{POLICY}/approx_kl", names=("train/approx_kl", "losses/approx_kl", "kl")),
    Alias(ours=f"train/{POLICY}/k1", names=("losses/old_approx_kl",)),
    Alias(ours=f"train/{POLICY}/clip_fraction", names=("train/clip_fraction", "losses/clipfrac")),
    Alias(ours=f"train/{POLICY}/entropy", names=("losses/entropy",)),
    # SB3 logs what it adds to the loss: the entropy with a minus.
    Alias(ours=f"train/{POLICY}/entropy", names=("train/entropy_loss",), factor=-1.0),
    Alias(
        ours=f"train/{POLICY}/explained_variance",
        names=("train/explained_variance", "losses/explained_variance"),
    ),
    Alias(ours=f"train/{POLICY}/std", names=("train/std",)),
    Alias(
        ours=f"train/{POLICY}/policy_loss",
        names=("train/policy_gradient_loss", "losses/policy_loss"),
    ),
    Alias(ours="train/value_loss", names=("train/value_loss", "losses/value_loss")),
    Alias(ours="train/lr_actor", names=("train/learning_rate", "charts/learning_rate")),
    Alias(ours="train/n_updates", names=("train/n_updates",)),
    Alias(ours="perf/steps_per_s", names=("time/fps", "charts/SPS")),
)


def _table() -> dict[str, Alias]:
    """Every foreign name; the last part of one alone is good enough for a plain table."""
    whole = {name: alias for alias in ALIASES for name in alias.names}
    bare = {name.rpartition("/")[2]: alias for name, alias in whole.items()}
    return bare | whole


FOREIGN = _table()


def alias_table() -> str:
    """The table of names in the documentation."""
    rows = [
        f"| `{alias.ours.replace(f'/{POLICY}/', '/<role>/')}` | "
        + ", ".join(f"`{name}`" for name in alias.names)
        + (", with a minus |" if alias.factor < 0 else " |")
        for alias in ALIASES
    ]
    return "\n".join(["| number | names elsewhere |", "|---|---|", *rows])
