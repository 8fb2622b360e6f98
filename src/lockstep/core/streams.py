"""Counter-based random streams: a draw is a pure function of (lane key, step, purpose, index).

No generator holds hidden state, so a lane's history does not depend on how many lanes run beside
it, a checkpoint needs only the keys and the step counters, and a rollout can be captured as a
graph. The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
"""

import math
from collections.abc import Sequence
from zlib import crc32

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from lockstep.core import fused

# Odd 64-bit constants, written as the signed numbers torch computes with.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_STEP = 0xD1B54A32D192ED03 - 2**64
_PURPOSE = 0x2545F4914F6CDD1D

_GAMMA_ROUNDS = 6  # a round accepts at least .95, so about one in 10^8 is never accepted

Words = Int64[Tensor, "..."]


def _shift(x: Words, bits: int) -> Words:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Words) -> Words:
    """A bijection of 64-bit words in which every bit of x moves about half of the bits."""
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def scrambled(counter: Words) -> Words:
    """64 random bits for each counter.

    The product is taken here, on data: of an arange, inductor would work it out as an index and
    overflow.
    """
    return mix(counter * _GOLDEN)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def _offset(purpose: str) -> int:
    """The place of a purpose among the counters; a compiler cannot trace crc32 and need not."""
    return crc32(purpose.encode()) * _PURPOSE % 2**63


def lane_keys(
    seeds: Sequence[int], *, lanes: int, device: torch.device | str = "cpu"
) -> Int64[Tensor, " L"]:
    """Stream keys of `lanes` lanes for each member seed, member-major: `L = len(seeds) * lanes`."""
    seed = torch.tensor(seeds, dtype=torch.int64, device=device)  # [P]
    lane = torch.arange(lanes, dtype=torch.int64, device=device)  # [N]
    return mix(mix(seed * _GOLDEN).unsqueeze(-1) + (lane + 1) * _STEP).flatten()  # [P * N]


class Streams:
    """One random stream per lane, positioned at a step; `tick` moves all of them on."""

    def __init__(self, key: Int64[Tensor, " L"]) -> None:
        self.key = key.clone()
        self.step = torch.zeros_like(key)

    def tick(self) -> None:
        """Moves every lane to its next step; the counter never restarts."""
        self.step += 1

    def draw(self, purpose: str) -> "Draw":
        """The numbers for one purpose at the current step; asked twice, the same ones."""
        offset = _offset(purpose)
        if fused.fits(self.key) and not torch.compiler.is_compiling():
            return Draw(fused.lane_bases(self.key, self.step, offset))
        return Draw(mix(mix(self.key + self.step * _STEP) + offset))

    def state_dict(self) -> dict[str, Tensor]:
        """Keys and counters: all there is."""
        return {"key": self.key.clone(), "step": self.step.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes up saved keys and counters in place."""
        saved, lanes = state["key"].numel(), self.key.numel()
        if saved != lanes:
            raise ValueError(f"saved streams have {saved} lanes, these have {lanes}")
        self.key.copy_(state["key"])
        self.step.copy_(state["step"])


class Draw:
    """A block of numbers per lane; each call continues where the last one stopped.

    Numbers are float32 whatever the parameters; float64 parameters promote the result.
    """

    def __init__(self, base: Int64[Tensor, " L"]) -> None:
        self._base = base
        self._used = 0

    def _numbers(self, shape: tuple[int, ...], *, normal: bool) -> Float32[Tensor, "L ..."]:
        """Uniform or normal numbers by the GPU's own kernel."""
        first, n = self._used + 1, math.prod(shape)
        self._used += n
        numbers: Tensor = fused.draw(self._base, n, first, normal)
        return numbers.view(-1, *shape)

    def _counters(self, shape: tuple[int, ...], *, words: int = 1) -> Int64[Tensor, "L ..."]:
        """For each number its first counter; the `words - 1` counters after it are its own too."""
        start, self._used = self._used + 1, self._used + math.prod(shape) * words
        index = torch.arange(start, self._used + 1, words, device=self._base.device).view(shape)
        base = self._base.view(-1, *(1 for _ in shape))  # [L, 1, ...]
        return base + index  # [L, *shape]

    def uniform(self, *shape: int) -> Float32[Tensor, "L ..."]:
        """Uniform numbers in the open interval (0, 1): `[L, *shape]`."""
        if fused.fits(self._base):
            return self._numbers(shape, normal=False)
        return _open_unit(_shift(scrambled(self._counters(shape)), 41), bits=23)

    def normal(self, *shape: int) -> Float32[Tensor, "L ..."]:
        """Standard normal numbers `[L, *shape]`; none beyond 5.8."""
        if fused.fits(self._base):
            return self._numbers(shape, normal=True)
        return _normal(scrambled(self._counters(shape)))

    def integers(self, high: int, *shape: int) -> Int64[Tensor, "L ..."]:
        """Whole numbers in 0..high-1, `[L, *shape]`; the bias is below high / 2^32."""
        if not 1 <= high <= 2**31:
            raise ValueError(f"high must be in 1..2^31, got {high}")
        return _shift(scrambled(self._counters(shape)), 32) * high >> 32

    def gamma(self, shape_parameter: Float[Tensor, "L ..."]) -> Float[Tensor, "L ..."]:
        """Gamma(shape, 1) variates for shapes of at least 1 (Marsaglia and Tsang 2000)."""
        trailing = tuple(shape_parameter.shape[1:])
        counter = self._counters(trailing, words=_GAMMA_ROUNDS)  # [L, ...]
        return _gamma(counter, shape_parameter - 1.0 / 3.0, rounds=_GAMMA_ROUNDS)

    def beta(
        self, alpha: Float[Tensor, "L ..."], beta: Float[Tensor, "L ..."]
    ) -> Float[Tensor, "L ..."]:
        """Beta(alpha, beta) variates for parameters of at least 1."""
        if fused.fits(alpha):
            first, self._used = self._used + 1, self._used + 2 * alpha[0].numel() * _GAMMA_ROUNDS
            rows = fused.draw_beta(self._base, alpha.flatten(1), beta.flatten(1), first)
            drawn: Tensor = rows.view_as(alpha)
            return drawn
        both = self.gamma(torch.stack((alpha, beta), dim=1))  # [L, 2, ...]
        return both[:, 0] / (both[:, 0] + both[:, 1])


def _open_unit(cell: Words, *, bits: int) -> Float32[Tensor, "..."]:
    """Maps integers of up to 23 bits to the middle of their cell in (0, 1), exactly."""
    return (cell.to(torch.float32) + 0.5) * 2.0**-bits


def _normal(word: Words) -> Float32[Tensor, "..."]:
    """Box-Muller on the upper 46 bits of each word; the lower 18 stay free."""
    radius = torch.sqrt(-2.0 * torch.log(_open_unit(_shift(word, 41), bits=23)))
    angle = (2.0 * math.pi) * _open_unit((word >> 18) & (2**23 - 1), bits=23)
    return radius * torch.cos(angle)


def _gamma(counter: Words, d: Float[Tensor, "..."], *, rounds: int) -> Float[Tensor, "..."]:
    """One proposal for each element; a refused one is drawn again, the last time given up for d.

    A graph has no data-dependent shapes, so there every round covers every element; on the CPU a
    round covers those still waiting. Both pick the same proposals, bit for bit.
    """
    if rounds == 0 or d.numel() == 0:
        return d
    word = scrambled(counter)
    x = _normal(word)
    cube = (1.0 + torch.rsqrt(9.0 * d) * x) ** 3
    # The clamp makes the bound of a negative cube so low that it is always refused.
    bound = 0.5 * x * x + d * (1.0 - cube + torch.log(cube.clamp(min=1e-30)))
    refused = torch.log(_open_unit(word & (2**18 - 1), bits=18)) >= bound

    proposal = d * cube
    if torch.compiler.is_compiling() or d.device.type != "cpu":
        again = _gamma(counter + 1, d, rounds=rounds - 1)
        return torch.where(refused, again, proposal)
    proposal[refused] = _gamma(counter[refused] + 1, d[refused], rounds=rounds - 1)
    return proposal
