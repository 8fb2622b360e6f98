"""Running reward statistics of each member and role."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.core.actions import write
from lockstep.core.company import ALONE, Company

_FIRST_COUNT = 1e-4


@dataclass(frozen=True)
class Moments:
    """Statistics of a reward, each `[P]` in float64."""

    mean: Tensor
    var: Tensor
    count: Tensor


class RunningReward:
    """Mean and variance of a role's reward, by member.

    A step of a lane contributes one sample, the mean over its agents; the spread between agents is
    ignored, as in the reference implementation. With `centre` off rewards are scaled alone, so
    that none changes its sign.
    """

    def __init__(
        self, members: int, device: torch.device | str = "cpu", *, centre: bool = True
    ) -> None:
        mean = torch.zeros(members, dtype=torch.float64, device=device)
        self.moments = Moments(mean, torch.ones_like(mean), torch.full_like(mean, _FIRST_COUNT))
        self._centre = centre

    def normalise(self, reward: Tensor, company: Company = ALONE) -> tuple[Tensor, Moments]:
        """Rewards `[T, L, A]` by the statistics up to and including their own step.

        They are of the lanes of all processes. The statistics after the last step come beside them;
        nothing changes here until `take`.
        """
        T, L, _ = reward.shape
        before = self.moments
        sample = reward.double().mean(dim=-1).view(T, len(before.mean), -1)  # [T, P, N]
        steps = torch.arange(1, T + 1, device=reward.device).unsqueeze(-1)  # [T, 1]
        total, squares = company.sums([sample.sum(dim=-1), (sample**2).sum(dim=-1)])  # [T, P]
        count = before.count + steps * (sample.shape[-1] * company.size)  # [T, P]
        mean = (before.count * before.mean + total.cumsum(dim=0)) / count
        square = before.count * (before.var + before.mean**2)
        square = square + squares.cumsum(dim=0)
        var = (square / count - mean**2).clamp(min=0.0)  # [T, P]

        def of_lanes(x: Tensor) -> Tensor:
            return x.unsqueeze(-1).expand_as(sample).reshape(T, L, 1)

        centred = reward - of_lanes(mean) if self._centre else reward
        scaled = centred / (of_lanes(var.sqrt()) + 1e-8)
        return scaled.to(reward.dtype), Moments(mean[-1], var[-1], count[-1])

    def take(self, after: Moments) -> None:
        """Takes over, in place, what `normalise` returned."""
        for name, own in vars(self.moments).items():
            own.copy_(getattr(after, name))

    def state_dict(self) -> dict[str, Tensor]:
        """Mean, variance and count."""
        return {name: x.clone() for name, x in vars(self.moments).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes them up again in place."""
        for name, own in vars(self.moments).items():
            write(own, state[name], f"the reward's {name}")
