"""The common task: one controller for a whole uav-mec scene, and what a side must offer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Task:
    """World, network, batch and learner; every side gets these very numbers."""

    n_users: int = 60
    """Mobile users of the scene."""
    n_uavs: int = 10
    """UAVs of the scene."""
    n_slots: int = 60
    """Steps of an episode; it ends by termination, never by a cut from outside."""
    lanes: int = 32
    """Copies of the scene that step together."""
    steps: int = 64
    """Steps of a rollout; not `n_slots`, so that episodes end inside rollouts."""
    hidden: int = 128
    """Width of both hidden layers of actor and critic, with a ReLU after each."""
    epochs: int = 5
    """Passes over the rollout in one update."""
    minibatches: int = 4
    """Parts of the rollout, equal in size, each of which gives one optimiser step."""
    lr: float = 3e-4
    """Step size of Adam, for actor and critic."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    discount: float = 0.95
    """Discount of the controller."""
    gae_lambda: float = 0.95
    """Trace decay of the advantage estimate."""
    clip_ratio: float = 0.2
    """Clipping of the probability ratio."""
    entropy_weight: float = 1e-4
    """Weight of the entropy, summed over action dimensions."""
    value_weight: float = 0.5
    """Weight of the mean squared error of the critic."""
    max_grad_norm: float = 100.0
    """Gradient norm limit; computed by every side and reached by none, since Lockstep limits actor
    and critic apart and the others both together."""

    @property
    def observation_size(self) -> int:
        """Entries of the state vector."""
        return 4 * (self.n_users + self.n_uavs)

    @property
    def action_sizes(self) -> dict[str, tuple[int, int]]:
        """The world's action parts: who decides (how many of them), and numbers for each."""
        K, M = self.n_users, self.n_uavs
        return {
            "assoc": (K, M + 1),
            "relay": (K, 1),
            "rho": (K, 1),
            "motion": (M, 2),
            "bandwidth": (M, K),
            "cpu": (M, K),
        }

    @property
    def action_size(self) -> int:
        """Numbers in [0, 1] that the controller decides in one step."""
        return sum(agents * n for agents, n in self.action_sizes.values())

    @property
    def batch(self) -> int:
        """Environment steps of one update."""
        return self.lanes * self.steps

    @property
    def agents(self) -> int:
        """Agents that the controller decides for: an environment step is so many agent steps."""
        return self.n_users + self.n_uavs


POINTS = {
    "small": Task(n_users=10, n_uavs=2),
    "reference": Task(),
    "wide": Task(lanes=1024),
}


@dataclass(frozen=True, kw_only=True)
class Weights:
    """First weights of both networks, to be copied into every side."""

    actor: Sequence[tuple[Tensor, Tensor]]  # weight and bias of each linear layer, in order
    log_std: Tensor  # [U], the same in every state
    critic: Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One rollout, rows in time."""

    obs: Tensor  # [T, L, D]
    action: Tensor  # [T, L, U], not clipped
    reward: Tensor  # [T, L]
    terminated: Tensor  # [T, L] bool
    last_obs: Tensor  # [L, D] after the last row


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a side makes of a stored rollout before its first optimiser step."""

    log_prob: Tensor  # [T, L] as acting computes it
    entropy: Tensor  # [T, L]
    value: Tensor  # [T, L]
    advantage: Tensor  # [T, L] before standardising
    ratio: float  # largest distance of a probability ratio from 1 in the first minibatch
    loss: float
    actor_grad_norm: float
    critic_grad_norm: float


class Side(Protocol):
    """A library with the task set up in it."""

    name: str
    unbiased: bool  # whether advantages are divided by the deviation with n - 1 instead of n

    def step_world(self) -> None:
        """Steps the world `task.steps` times through the library's own interface, with no agent."""

    def collect(self) -> None:
        """Fills one rollout: world and inference."""

    def train(self) -> None:
        """One whole update: collects a rollout and learns from it."""

    def reward(self) -> float:
        """Mean reward of a step over the last rollout."""

    def replay(self, stored: Stored) -> Seen:
        """The library's own arithmetic on a stored rollout taken as one minibatch; spoils it."""


def mlp(n_in: int, hidden: int, n_out: int) -> nn.Sequential:
    """The network of actor and critic, for sides that are given theirs."""
    return nn.Sequential(
        nn.Linear(n_in, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, n_out),
    )


@torch.no_grad()
def copy_linears(module: nn.Module, weights: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copies weights into the linear layers of `module`, in order."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    for layer, (weight, bias) in zip(layers, weights, strict=True):
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def grad_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Length of the gradients of all `parameters` together."""
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            raise ValueError(f"a parameter of shape {tuple(parameter.shape)} got no gradient")
        gradients.append(parameter.grad.flatten())
    return float(torch.linalg.vector_norm(torch.cat(gradients)))
