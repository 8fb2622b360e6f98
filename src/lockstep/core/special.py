"""Log-density and entropy of the Beta distribution, fused, for parameters of at least 1.

Everything rests on one function, the remainder d of Stirling's formula,

    lgamma(z) = (z - 1/2) log z - z + log(2 pi) / 2 + d(z),

with which digamma(z) = log z - 1/(2z) + d'(z) and trigamma(z) = 1/z + 1/(2z^2) + d''(z). Written in
d, the large terms of log B(alpha, beta) cancel on paper instead of in float32, and no gamma
function is left to call: torch's digamma and polygamma are scalar code on a CPU.
"""

import math
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lockstep.core import fused

# d(z) = sum of c_k / z^k, k = 1..12. Stirling's own coefficients (1/12, 0, -1/360, ...) diverge
# at z = 1; these do not. Fitted by Chebyshev interpolation of z^3 d''(z), degree 11 in 1/z on
# (0, 1], integrated twice term by term; d'' is then within 4e-10, d' and d are closer still.
_REMAINDER = (
    0.08333333313766,
    2.105543834984e-08,
    -0.002778347450002,
    7.339987852317e-06,
    0.0007386884713338,
    0.0002622102306035,
    -0.001422956653656,
    0.001704987551046,
    -0.001180118615035,
    0.0005109673339166,
    -0.0001293577060347,
    1.469945344431e-05,
)
_REMAINDER_1 = tuple(-k * c for k, c in enumerate(_REMAINDER, start=1))  # d' = sum / z^(k+1)
_REMAINDER_2 = tuple(k * (k + 1) * c for k, c in enumerate(_REMAINDER, start=1))  # / z^(k+2)

_TABLE = (_REMAINDER, _REMAINDER_1, _REMAINDER_2)

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)

Reals = Float[Tensor, "*batch"]


def summed_beta_log_prob_entropy(
    alpha: Float[Tensor, "*rows n"], beta: Float[Tensor, "*rows n"], x: Float[Tensor, "*rows n"]
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """The same as `beta_log_prob_entropy`, summed over the last dim."""
    if fused.fits(alpha):
        lead, n = alpha.shape[:-1], alpha.shape[-1]
        rows = (y.reshape(-1, n) for y in (alpha, beta, x))
        log_prob, entropy = fused.beta_density(*rows, _table(alpha.device))
        return log_prob.view(lead), entropy.view(lead)
    log_prob, entropy = beta_log_prob_entropy(alpha, beta, x)
    return log_prob.sum(dim=-1), entropy.sum(dim=-1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def _table(device: torch.device) -> Tensor:
    """The coefficients of the three series `[3, 12]`."""
    return _made_table(device)


@cache
def _made_table(device: torch.device) -> Tensor:
    return torch.tensor(_TABLE, dtype=torch.float32, device=device)


def beta_log_prob_entropy(alpha: Reals, beta: Reals, x: Reals) -> tuple[Reals, Reals]:
    """Log-density of Beta(alpha, beta) at x, and its entropy, element by element.

    The parameters are at least 1 and x lies strictly inside (0, 1). Gradients reach alpha and beta,
    once; x is data. Measured for parameters up to 1000: in float64 both within 1e-10; in float32
    the entropy within 2e-6 and the log-density within 5e-7 * (alpha + beta), a few roundings of x.
    """
    fused = _BetaLogProbEntropy.apply
    log_prob, entropy = fused(alpha, beta, x)  # type: ignore[no-untyped-call]  # torch's own
    return log_prob, entropy


class _BetaLogProbEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        total = alpha + beta
        z = torch.stack((alpha, beta, total))  # [3, *batch]
        w = z.reciprocal()
        d = _series(_REMAINDER, w) * w
        slope = (_series(_REMAINDER_1, w) * w - 0.5) * w  # digamma(z) - log(z)
        d_sum = d[0] + d[1] - d[2]

        # Log of x and 1 - x relative to their means: small where the density is not.
        log_x = torch.log(x * total * w[0])
        log_y = torch.log((1.0 - x) * total * w[1])
        log_scale = torch.log(alpha * beta * w[2])
        log_prob = (
            (alpha * log_x + beta * log_y)
            + (0.5 * log_scale - torch.log(x * (1.0 - x)) - _HALF_LOG_2_PI)
            - d_sum
        )
        entropy = (
            (0.5 * log_scale - torch.log(total) + _HALF_LOG_2_PI)
            + d_sum
            + ((total - 2.0) * slope[2] - (alpha - 1.0) * slope[0] - (beta - 1.0) * slope[1])
        )
        ctx.save_for_backward(z, log_x - slope[0] + slope[2], log_y - slope[1] + slope[2])
        return log_prob, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_prob: Tensor, grad_entropy: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        z, score_alpha, score_beta = ctx.saved_tensors
        w = z.reciprocal()
        trigamma = ((_series(_REMAINDER_2, w) * w + 0.5) * w + 1.0) * w
        of_total = (z[2] - 2.0) * trigamma[2]
        return (
            grad_log_prob * score_alpha + grad_entropy * (of_total - (z[0] - 1.0) * trigamma[0]),
            grad_log_prob * score_beta + grad_entropy * (of_total - (z[1] - 1.0) * trigamma[1]),
            None,
        )


def _series(coefficients: tuple[float, ...], w: Tensor) -> Tensor:
    """The polynomial with these coefficients, constant first, at w (Horner)."""
    total = torch.full_like(w, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total.mul_(w).add_(coefficient)
    return total
