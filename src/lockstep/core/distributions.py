"""The distributions a policy chooses from, and `Joint`, the product of an action's parts.

Parameters lead with any dims, usually `[L, A]`, and end in the part's own; densities, entropies and
divergences are summed over that last one. All of it is computed in float32 or wider: half-precision
parameters are upcast. A sample is data: no gradient flows through it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from lockstep.core.actions import Action
from lockstep.core.special import summed_beta_log_prob_entropy
from lockstep.core.streams import Draw

_EDGE = 1e-6  # actions in (0, 1) stay this far inside, where every log-density is finite
_LOG_SQRT_2_PI = 0.5 * math.log(2.0 * math.pi)

Params = Float[Tensor, "*batch n"]
PerRow = Float[Tensor, "*batch"]

Same = TypeVar("Same")  # typing.Self, which the run-time checker of the tests does not know


@runtime_checkable
class Distribution(Protocol):
    """What `Joint` asks of a part; `x` is what `sample` returned."""

    def sample(self, draw: Draw) -> Tensor:
        """An action for each row, from the lane's own numbers; dim 0 is the lane."""

    def mode(self) -> Tensor:
        """The deterministic action."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density or log-probability of x: `[...]`."""

    def entropy(self) -> Tensor:
        """Entropy in nats: `[...]`."""

    def log_prob_and_entropy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both at the price of one where they share work."""

    def kl(self: Same, other: Same) -> Tensor:
        """Divergence KL(self || other) in nats: `[...]`."""


@runtime_checkable
class Discrete(Distribution, Protocol):
    """A choice among alternatives that can be counted."""

    def choices(self) -> Tensor:
        """How many alternatives there are, for several picks at the first: `[...]`."""

    def entropy_share(self) -> Tensor:
        """Entropy as a share of its maximum, for several picks that of the first: `[...]`."""

    def most_entropy(self, x: Tensor) -> Tensor:
        """The entropy that uniform choices from the sets visited by x would have: `[...]`."""


class Beta:
    """Independent Beta numbers in (0, 1), for parameters of at least 1 (so unimodal)."""

    def __init__(self, alpha: Params, beta: Params) -> None:
        self.alpha = at_least_float32(alpha)
        self.beta = at_least_float32(beta)

    def sample(self, draw: Draw) -> Params:
        """Numbers in [1e-6, 1 - 1e-6]."""
        return _inside(draw.beta(self.alpha.detach(), self.beta.detach()))

    def mode(self) -> Params:
        """The mean, not the peak: it is the deterministic action of the UAV paper."""
        return self.alpha / (self.alpha + self.beta)

    def log_prob(self, x: Params) -> PerRow:
        """Log-density, summed over the numbers; finite: 0 and 1 count as the edge."""
        return self.log_prob_and_entropy(x)[0]

    def entropy(self) -> PerRow:
        """Differential entropy, summed over the numbers."""
        return self.log_prob_and_entropy(torch.full_like(self.alpha, 0.5))[1]

    def log_prob_and_entropy(self, x: Params) -> tuple[PerRow, PerRow]:
        """Both from one evaluation of the gamma functions."""
        return summed_beta_log_prob_entropy(self.alpha, self.beta, _inside(x))

    def kl(self, other: "Beta") -> PerRow:
        """Exact divergence, summed over the numbers."""
        total = self.alpha + self.beta
        more_alpha, more_beta = self.alpha - other.alpha, self.beta - other.beta
        divergence = (
            _log_beta(other.alpha, other.beta)
            - _log_beta(self.alpha, self.beta)
            + more_alpha * torch.digamma(self.alpha)
            + more_beta * torch.digamma(self.beta)
            - (more_alpha + more_beta) * torch.digamma(total)
        )
        return divergence.sum(dim=-1)


class _SquaredDistance(torch.autograd.Function):
    """Squared distance of `x` from `mean` in standard deviations, summed over the numbers.

    A formula of tensor operations passes over memory fifteen times, forward and back; this, six.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        inverse = torch.exp(-log_std)
        z = (mean - x).mul_(inverse)  # laid out as the mean is, which is contiguous
        ctx.save_for_backward(z, inverse)
        # A square of norms, since a product of vectors would lose digits where TF32 is on.
        distance: Tensor = torch.linalg.vector_norm(z, dim=-1)
        return distance.square_()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, Tensor]:
        z, inverse = ctx.saved_tensors
        half = z * grad.unsqueeze(-1)
        to_log_std = -2.0 * (half * z).sum_to_size(inverse.shape)
        return None, half.mul_(2.0 * inverse), to_log_std


class _Normal:
    """Independent normal numbers; `log_std` may be any shape that broadcasts to `mean`."""

    def __init__(self, mean: Params, log_std: Float[Tensor, "..."]) -> None:
        self.mean = at_least_float32(mean)
        log_std = at_least_float32(log_std)
        # Expanded over the numbers, not over the rows: what rows share is computed once.
        self.log_std = log_std.expand(*log_std.shape[:-1], self.mean.shape[-1])

    def _sample(self, draw: Draw) -> Tensor:
        noise = draw.normal(*self.mean.shape[1:])
        return self.mean.detach() + self.log_std.detach().exp() * noise

    def _log_prob(self, x: Tensor) -> PerRow:
        """Log-density of the unsquashed numbers, summed."""
        fused = _SquaredDistance.apply
        square: Tensor = fused(x, self.mean, self.log_std)  # type: ignore[no-untyped-call]  # torch's own
        return -0.5 * square - (self.log_std + _LOG_SQRT_2_PI).sum(dim=-1)

    def entropy(self) -> PerRow:
        """Differential entropy of the normal, summed over the numbers."""
        of_row = (self.log_std + (0.5 + _LOG_SQRT_2_PI)).sum(dim=-1)
        return of_row.expand(self.mean.shape[:-1])

    def kl(self, other: "_Normal") -> PerRow:
        """Exact divergence, summed over the numbers; a shared squashing does not change it."""
        spread = torch.exp(2.0 * (self.log_std - other.log_std))
        shift = (self.mean - other.mean) * torch.exp(-other.log_std)
        divergence = 0.5 * (spread + shift * shift - 1.0) - (self.log_std - other.log_std)
        return divergence.sum(dim=-1)


class ClippedGaussian(_Normal):
    """Normal numbers that the world clamps to its bounds: raw sample and density are kept here."""

    def sample(self, draw: Draw) -> Params:
        """The unclamped numbers; store these, for their log-density is the one trained on."""
        return self._sample(draw)

    def mode(self) -> Params:
        """The mean, unclamped."""
        return self.mean

    def log_prob(self, x: Params) -> PerRow:
        """Log-density of the unclamped numbers, summed."""
        return self._log_prob(x)

    def log_prob_and_entropy(self, x: Params) -> tuple[PerRow, PerRow]:
        """The two, one after the other."""
        return self.log_prob(x), self.entropy()


class SigmoidGaussian(_Normal):
    """Normal numbers squashed into (0, 1).

    The entropy is that of the normal before squashing, as in the reference implementation of the
    UAV paper; the squashed one has no closed form.
    """

    def sample(self, draw: Draw) -> Params:
        """Numbers in [1e-6, 1 - 1e-6]."""
        return _inside(torch.sigmoid(self._sample(draw)))

    def mode(self) -> Params:
        """The squashed mean: the median, not the mean, of the numbers."""
        return _inside(torch.sigmoid(self.mean))

    def log_prob(self, x: Params) -> PerRow:
        """Log-density of the squashed numbers, summed; finite: 0 and 1 count as the edge."""
        inside = _inside(x)
        log_slope = torch.log(inside) + torch.log1p(-inside)
        return self._log_prob(torch.logit(inside)) - log_slope.sum(dim=-1)

    def log_prob_and_entropy(self, x: Params) -> tuple[PerRow, PerRow]:
        """The two, one after the other."""
        return self.log_prob(x), self.entropy()


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Deliberate chance in discrete choices, inside the law that is sampled and replayed."""

    temperature: float | Tensor = 1.0
    """Scores are divided by it: above 1 flatter, below 1 sharper."""
    epsilon: float | Tensor = 0.0
    """Share of a uniform choice among the legal ones that is mixed in.

    Tensors, where members differ, broadcast to the batch `[...]` of choices.
    """


AS_IT_IS = Exploration()


class Categorical:
    """One choice among the legal ones; every row has at least one.

    A candidate set is the same thing with `legal` telling which of the padded rows exist.
    """

    def __init__(
        self,
        logits: Float[Tensor, "*batch C"],
        legal: Bool[Tensor, "*batch C"] | None = None,
        explore: Exploration = AS_IT_IS,
    ) -> None:
        logits = at_least_float32(logits)
        if isinstance(explore.temperature, Tensor):
            logits = logits / explore.temperature.unsqueeze(-1)
        elif explore.temperature != 1.0:
            logits = logits / explore.temperature
        self._legal = torch.ones_like(logits, dtype=torch.bool) if legal is None else legal
        if legal is not None:
            logits = logits.masked_fill(~legal, -math.inf)
        self.log_p = functional.log_softmax(logits, dim=-1)  # [*batch, C]
        if isinstance(explore.epsilon, Tensor) or explore.epsilon > 0.0:
            self.log_p = self._mixed(explore.epsilon)

    def _mixed(self, epsilon: float | Tensor) -> Float[Tensor, "*batch C"]:
        """Log-probabilities with a share of uniform choice mixed in."""
        share = epsilon if isinstance(epsilon, Tensor) else self.log_p.new_full((), epsilon)
        share = share.clamp(min=torch.finfo(share.dtype).tiny)  # ln 0 would have no gradient
        uniform = share.log() - self.choices().to(share.dtype).log()
        kept = self.log_p + torch.log1p(-share).unsqueeze(-1)
        mixed = torch.logaddexp(kept, uniform.unsqueeze(-1))
        return mixed.masked_fill(~self._legal, -math.inf)

    def sample(self, draw: Draw) -> Int64[Tensor, "*batch"]:
        """The maximum of log-probabilities plus Gumbel noise: an illegal -inf can never win."""
        gumbel = -torch.log(-torch.log(draw.uniform(*self.log_p.shape[1:])))
        return (self.log_p.detach() + gumbel).argmax(dim=-1)

    def mode(self) -> Int64[Tensor, "*batch"]:
        """The most probable choice."""
        return self.log_p.argmax(dim=-1)

    def log_prob(self, x: Int64[Tensor, "*batch"]) -> PerRow:
        """Log-probability of the choice; -inf for an illegal one."""
        return self.log_p.gather(-1, x.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> PerRow:
        """Entropy over the legal choices."""
        return -self._expect(self.log_p)

    def entropy_share(self) -> PerRow:
        """Entropy as a share of its maximum, ln(legal choices): 0 sure to 1 uniform.

        Where only one choice is legal the share is undefined; it is 0 there.
        """
        n_legal = self.choices()
        share = self.entropy() / n_legal.clamp(min=2).to(self.log_p.dtype).log()
        return torch.where(n_legal > 1, share, 0.0)

    def choices(self) -> Int64[Tensor, "*batch"]:
        """How many choices are legal."""
        return self._legal.sum(dim=-1)

    def most_entropy(self, x: Int64[Tensor, "*batch"]) -> PerRow:  # noqa: ARG002 - as of picks
        """The entropy of a uniform choice, whatever was chosen."""
        return self.choices().to(self.log_p.dtype).log()

    def log_prob_and_entropy(self, x: Int64[Tensor, "*batch"]) -> tuple[PerRow, PerRow]:
        """The two, one after the other."""
        return self.log_prob(x), self.entropy()

    def kl(self, other: "Categorical") -> PerRow:
        """Exact divergence over the legal set; infinite if the other forbids a choice made here."""
        return self._expect(self.log_p - other.log_p)

    def _expect(self, x: Tensor) -> Tensor:
        # The fill keeps 0 * inf out of the sum and out of its gradient.
        return (self.log_p.exp() * x.masked_fill(~self._legal, 0.0)).sum(dim=-1)


class Joint:
    """Independent parts decided together: densities, entropies and divergences add up."""

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        self.parts = dict(parts)

    def sample(self, draw: Draw) -> Action:
        """One action; the parts take their numbers from `draw` in order."""
        return {name: part.sample(draw) for name, part in self.parts.items()}

    def mode(self) -> Action:
        """The deterministic action."""
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, action: Action) -> PerRow:
        """Log-density of the whole action."""
        return _total([part.log_prob(action[name]) for name, part in self.parts.items()])

    def entropy(self) -> PerRow:
        """Entropy of the whole action."""
        return _total([part.entropy() for part in self.parts.values()])

    def log_prob_and_entropy(self, action: Action) -> tuple[PerRow, PerRow]:
        """Both, sharing work where a part can: what the loss and the audit call."""
        both = [part.log_prob_and_entropy(action[name]) for name, part in self.parts.items()]
        return _total([log_prob for log_prob, _ in both]), _total([entropy for _, entropy in both])

    def most_entropy(self, action: Action) -> PerRow:
        """What the discrete parts' entropy would be if each set were chosen from uniformly."""
        discrete = {name: part for name, part in self.parts.items() if isinstance(part, Discrete)}
        return _total([part.most_entropy(action[name]) for name, part in discrete.items()])

    def kl(self, other: "Joint") -> PerRow:
        """Divergence KL(self || other) of the whole action."""
        return _total([part.kl(other.parts[name]) for name, part in self.parts.items()])


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(dim=0)


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision numbers as float32; others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _inside(x: Tensor) -> Tensor:
    return x.clamp(_EDGE, 1.0 - _EDGE)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
