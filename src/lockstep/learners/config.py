"""Settings of the learners; imports no torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation; with several roles and a central critic it is MAPPO."""

    kind: ClassVar[str] = "ppo"
    imitates: ClassVar[bool] = True
    """Whether it can learn what somebody else decided."""
    variable: ClassVar[tuple[str, ...]] = (
        *("lr_actor", "lr_critic", "discount", "gae_lambda", "clip_ratio", "entropy_weight"),
        *("temperature", "epsilon", "max_grad_norm", "value_clip"),
        *("kl_stop_minibatch", "kl_stop_update"),
    )
    """Numbers that may differ from member to member of a pack."""

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
    discount: float | None = None
    """Discount of every role; by default each role's own, which the world names."""
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
        if self.discount is not None and not 0 <= self.discount <= 1:
            raise ValueError(f"discount must lie in 0..1, got {self.discount}")
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
class MADDPGConfig:
    """Deterministic policies and a central critic, learned from a replay (Lowe et al. 2017)."""

    kind: ClassVar[str] = "maddpg"
    imitates: ClassVar[bool] = False
    variable: ClassVar[tuple[str, ...]] = (
        *("lr_actor", "lr_critic", "discount", "tau", "max_grad_norm"),
        *("sigma", "sigma_decay", "sigma_floor", "epsilon"),
    )

    actor: Literal["scorer", "mlp"] = "scorer"
    """Score entity rows with shared weights where the world offers them, or a plain MLP."""
    reward: Literal["own", "team"] = "own"
    """What Q foretells: every agent's own reward, or the team's, which is the mean over roles."""
    hidden: int = 128
    """Width of the policies' hidden layers."""
    hidden_critic: int = 256
    """Width of the two hidden layers of Q."""

    lanes: int = 5
    """Lanes of a member (N)."""
    steps: int = 60
    """Steps of a rollout (T); policies act unchanged for lanes * steps environment steps."""
    updates_per_step: float = 1.0
    """Gradient steps for each environment step, made when the rollout is over."""
    replay: int = 20_000
    """Transitions of a member that are kept, rounded down to whole rows of its lanes."""
    warm_up: int = 2_000
    """Transitions that must be there before the first gradient step."""
    batch: int = 256
    """Transitions that a gradient step learns from."""

    lr_actor: float = 3e-4
    """Adam step size of the policies."""
    lr_critic: float = 3e-4
    """Adam step size of Q."""
    discount: float = 0.95
    """Discount of the rewards that Q foretells; the roles' own discounts are not used."""
    tau: float = 0.005
    """Share of the weights that the target networks take over after each gradient step."""
    max_grad_norm: float = 10.0
    """Gradient norm limit of each network, for each member by itself."""
    sigma: float = 0.5
    """First deviation of the noise on numbers; on probabilities it is a quarter of that."""
    sigma_decay: float = 0.99995
    """Factor on the deviation for each environment step, applied when a rollout is over."""
    sigma_floor: float = 0.05
    """Least deviation of the noise."""
    epsilon: float = 0.0
    """Share of agents that decide uniformly at random while training, each step anew."""

    audit: bool = True
    """Rebuild every action before it enters the replay and stop the run if one differs."""
    precision: Literal["fp32", "tf32"] = "fp32"
    """Arithmetic of matrix products; everything else stays in fp32."""

    def __post_init__(self) -> None:
        for name in ("hidden", "hidden_critic", "lanes", "steps", "warm_up", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("lr_actor", "lr_critic", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("discount", "tau", "sigma_decay", "epsilon"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in 0..1, got {getattr(self, name)}")
        if not 0 <= self.sigma_floor <= self.sigma:
            raise ValueError(
                f"sigma_floor ({self.sigma_floor}) must lie in 0..sigma ({self.sigma}), "
                "since the noise only shrinks"
            )
        self._check_counts()

    def _check_counts(self) -> None:
        collected = self.lanes * self.steps
        least = max(collected, self.warm_up)
        if self.rows * self.lanes < least:
            raise ValueError(
                f"replay ({self.replay}) must hold a rollout of lanes * steps ({collected}) and "
                f"warm_up ({self.warm_up}) transitions in whole rows of its lanes ({self.lanes}); "
                f"try {-(-least // self.lanes) * self.lanes}"
            )
        if self.gradient_steps < 1 or abs(self.updates_per_step * collected % 1 - 0.5) < 0.5 - 1e-6:
            nearest = max(1, self.gradient_steps) / collected
            raise ValueError(
                f"updates_per_step ({self.updates_per_step}) must make a whole number of gradient "
                f"steps out of lanes * steps ({collected}), at least 1; try {nearest:.6g}"
            )

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return round(self.updates_per_step * self.lanes * self.steps)

    @property
    def rows(self) -> int:
        """Rows of all lanes that the replay can draw from."""
        return self.replay // self.lanes


@dataclass(frozen=True, kw_only=True)
class RandomizedConfig:
    """Uniformly random decisions; it learns nothing and is the floor to beat."""

    kind: ClassVar[str] = "randomized"
    imitates: ClassVar[bool] = False
    variable: ClassVar[tuple[str, ...]] = ()

    lanes: int = 5
    """Lanes of a member (N)."""
    steps: int = 60
    """Steps of a rollout (T)."""


LearnerConfig = PPOConfig | MADDPGConfig | RandomizedConfig

LEARNERS: dict[str, LearnerConfig] = {
    "ab-mappo": PPOConfig(),
    "ppo": PPOConfig(),
    "b-mappo": PPOConfig(critic="state"),
    "ag-mappo": PPOConfig(unit_head="gaussian_clip"),
    "g-mappo": PPOConfig(unit_head="gaussian_clip", critic="state"),
    "maddpg": MADDPGConfig(),
    "randomized": RandomizedConfig(),
}
"""Names of the paper are configurations: Beta or Gaussian heads, attention or state critic.

`ppo` is what `ab-mappo` is, by a name that fits worlds without Beta heads or many agents.
"""
