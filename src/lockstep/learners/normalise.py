"""Running reward statistics of each member and role."""

import torch
from torch import Tensor

from lockstep.core.actions import write

_FIRST_COUNT = 1e-4


class RunningReward:
    """Mean and variance of a role's reward, by member.

    A step of a lane contributes one sample, the mean over its agents; the spread between agents is
    ignored, as in the reference implementation.
    """

    def __init__(self, members: int, device: torch.device | str = "cpu") -> None:
        self.mean = torch.zeros(members, dtype=torch.float64, device=device)
        self.var = torch.ones_like(self.mean)
        self.count = torch.full_like(self.mean, _FIRST_COUNT)

    def normalise(self, reward: Tensor) -> Tensor:
        """Rewards `[T, L, A]` by the statistics up to and including their own step."""
        T, L, _ = reward.shape
        sample = reward.double().mean(dim=-1).view(T, len(self.mean), -1)  # [T, P, N]
        steps = torch.arange(1, T + 1, device=reward.device).unsqueeze(-1)  # [T, 1]
        count = self.count + steps * sample.shape[-1]  # [T, P]
        mean = (self.count * self.mean + sample.sum(dim=-1).cumsum(dim=0)) / count
        square = self.count * (self.var + self.mean**2) + (sample**2).sum(dim=-1).cumsum(dim=0)
        var = (square / count - mean**2).clamp(min=0.0)  # [T, P]
        self.mean.copy_(mean[-1])
        self.var.copy_(var[-1])
        self.count.copy_(count[-1])
        centre, deviation = (
            x.unsqueeze(-1).expand_as(sample).reshape(T, L, 1) for x in (mean, var.sqrt())
        )
        return ((reward - centre) / (deviation + 1e-8)).to(reward.dtype)

    def state_dict(self) -> dict[str, Tensor]:
        """Mean, variance and count."""
        return {name: getattr(self, name).clone() for name in ("mean", "var", "count")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes them up again in place."""
        for name in ("mean", "var", "count"):
            write(getattr(self, name), state[name], f"the reward's {name}")
