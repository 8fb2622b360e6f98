"""Settings of the learners; imports no torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation; with several roles and a central critic it is MAPPO."""

    kind: ClassVar[str] = "ppo"

    unit_head: Literal["beta", "gaussian_clip", "gaussian_sigmoid"] = "beta"
    """Distribution of numbers in [0, 1]: Beta, or a Gaussian clipped by the world or squashed."""
    critic: Literal["attention", "state"] = "attention"
    """Attention across all agents' observations, or an MLP on the global state vector."""
    actor: Literal["scorer", "mlp"] = "scorer"
    """Score entity rows with shared weights where the world offers them, or a plain MLP."""
    candidate_head: Literal["scorer", "positional", "identity"] = "scorer"
    """Score candidates by their features; by position or global id only as baselines."""
    set_context: Literal["none", "pooled", "attention"] = "none"
    """What a row's score knows of the other rows: nothing, their mean and maximum, or attention."""
    memory: Literal["none", "gru"] = "none"
    """Whether policies remember: a gated recurrent cell after the encoder."""
    hidden: int = 128
    """Width of every hidden layer."""
    heads: int = 4
    """Attention heads of the critic."""

    lanes: int = 5
    """Lanes of a member (N)."""
    steps: int = 60
    """Steps of a rollout (T); an update learns from lanes * steps samples."""
    epochs: int = 5
    """Passes over the rollout in one update."""
    minibatches: int = 1
    """Parts of the rollout, split by lanes and never in time; must divide `lanes`."""

    lr_actor: float = 3e-4
    """Adam step size of the policies."""
    lr_critic: float = 3e-4
    """Adam step size of the critic."""
    gae_lambda: float | dict[str, float] = 0.95
    """Trace decay of the advantage estimate; one number, or one for each role."""
    clip_ratio: float = 0.2
    """The surrogate is flat once the probability ratio leaves 1 +- this."""
    entropy_weight: float = 0.01
    """Weight of the entropy bonus."""
    entropy_per: Literal["dimension", "sum", "choices"] = "dimension"
    """The bonus: mean over action dimensions, their sum, or as a share of ln(legal choices)."""
    temperature: float = 1.0
    """Divides the scores of discrete choices, in acting and in learning alike."""
    epsilon: float = 0.0
    """Share of uniform chance mixed into discrete choices, in acting and in learning alike."""
    max_grad_norm: float = 10.0
    """Gradient norm limit of each network, for each member by itself."""
    value_clip: float | None = None
    """Limit of the value's move in one update; sensible only with normalised rewards."""
    reward_norm: Literal["none", "running", "scale"] = "none"
    """Standardise each role's rewards by running statistics, or only divide by their deviation."""
    kl_stop_minibatch: float | None = None
    """A member sits out the rest of the epoch once a minibatch shows more KL (k3) than this."""
    kl_stop_update: float | None = None
    """A member sits out the rest of the update once an epoch's mean KL (k3) exceeds this."""

    audit: bool = True
    """Replay every decision before the first gradient step and stop the run if one differs."""
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    """Arithmetic of the network bodies' matrix products; everything else stays in fp32."""

    def __post_init__(self) -> None:
        for name in ("hidden", "heads", "lanes", "steps", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lanes % self.minibatches:
            fits = max(
                n for n in range(1, self.lanes + 1) if self.lanes % n == 0 and n <= self.minibatches
            )
            raise ValueError(
                f"minibatches ({self.minibatches}) must divide lanes ({self.lanes}), "
                f"since minibatches split lanes and never time; try {fits}"
            )
        if self.hidden % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden ({self.hidden})")
        for name in ("lr_actor", "lr_critic", "clip_ratio", "max_grad_norm", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.epsilon < 1:
            raise ValueError(f"epsilon must be at least 0 and below 1, got {self.epsilon}")
        if self.actor == "mlp" and (self.candidate_head, self.set_context) != ("scorer", "none"):
            raise ValueError(
                "candidate_head and set_context need actor 'scorer', got actor 'mlp', which scores "
                "by position; leave them at 'scorer' and 'none'"
            )

    def decay(self, role: str) -> float:
        """The trace decay of one role."""
        return self.gae_lambda[role] if isinstance(self.gae_lambda, dict) else self.gae_lambda


@dataclass(frozen=True, kw_only=True)
class RandomizedConfig:
    """Uniformly random decisions; it learns nothing and is the floor to beat."""

    kind: ClassVar[str] = "randomized"

    lanes: int = 5
    """Lanes of a member (N)."""
    steps: int = 60
    """Steps of a rollout (T)."""


LearnerConfig = PPOConfig | RandomizedConfig

LEARNERS: dict[str, LearnerConfig] = {
    "ab-mappo": PPOConfig(),
    "ppo": PPOConfig(),
    "b-mappo": PPOConfig(critic="state"),
    "ag-mappo": PPOConfig(unit_head="gaussian_clip"),
    "g-mappo": PPOConfig(unit_head="gaussian_clip", critic="state"),
    "randomized": RandomizedConfig(),
}
"""Names of the paper are configurations: Beta or Gaussian heads, attention or state critic.

`ppo` is what `ab-mappo` is, by a name that fits worlds without Beta heads or many agents.
"""
