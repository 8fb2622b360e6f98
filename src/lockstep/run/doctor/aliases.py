"""Names under which other libraries log the same numbers."""

from dataclasses import dataclass
from functools import cache

POLICY = "policy"
"""The role that the numbers of a foreign log are put under."""
RETURN = f"episode/{POLICY}/return_mean"
MADE = "train/n_updates"
"""What a foreign log says of its updates, which for ours is the axis itself."""


@dataclass(frozen=True, kw_only=True)
class Alias:
    """One of our keys, and what others call it."""

    ours: str
    names: tuple[str, ...]
    factor: float = 1.0
    """What theirs is multiplied by to be ours."""


ONLY_READ = (
    Alias(ours="step", names=("global_step", "step", "total_timesteps")),
    Alias(ours=RETURN, names=("episode_return",)),
    Alias(ours=f"train/{POLICY}/approx_kl", names=("kl",)),
    Alias(ours=f"train/{POLICY}/k1", names=("losses/old_approx_kl",)),
    Alias(ours=f"train/{POLICY}/ratio_mean", names=("ratio_mean", "ratio")),
    Alias(ours=f"train/{POLICY}/entropy", names=("policy_entropy",)),
)
"""Names that are known here beside those under which our own numbers are written to TensorBoard."""


@cache
def aliases() -> tuple[Alias, ...]:
    """Every name that is read, with the factors by which they are written."""
    from lockstep.run.metrics import (
        ALIASES,
    )  # imports torch: seconds that our own runs can do without

    found: list[Alias] = []
    for alias in ALIASES:
        ours = MADE if alias.key == "update" else alias.key.replace("<role>", POLICY)
        names = () if alias.cleanrl is None else (alias.cleanrl,)
        if alias.sb3_factor == 1.0:
            found.append(Alias(ours=ours, names=(alias.sb3, *names)))
            continue
        found.append(Alias(ours=ours, names=(alias.sb3,), factor=1 / alias.sb3_factor))
        found += [Alias(ours=ours, names=names)] if names else []
    return (*found, *ONLY_READ)


@cache
def foreign_names() -> dict[str, Alias]:
    """Every foreign name; the last part of one alone is good enough for a plain table."""
    whole = {name: alias for alias in aliases() for name in alias.names}
    bare = {name.rpartition("/")[2]: alias for name, alias in whole.items()}
    return bare | whole


def alias_table() -> str:
    """The table of names in the documentation."""
    how = {1.0: "", -1.0: ", with a minus", 0.5: ", halved"}
    rows = [
        f"| `{alias.ours.replace(f'/{POLICY}/', '/<role>/')}` | "
        + ", ".join(f"`{name}`" for name in alias.names)
        + f"{how[alias.factor]} |"
        for alias in aliases()
    ]
    return "\n".join(["| number | names elsewhere |", "|---|---|", *rows])
