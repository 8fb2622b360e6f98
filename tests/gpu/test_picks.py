"""Turns of several picks on an accelerator: the same law, and the same turns inside a graph."""

import pytest
import torch

from lockstep.core.picks import PickSequence, PickSet
from lockstep.core.programs import Captured
from lockstep.core.streams import Streams, lane_keys

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

LANES, WIDTH, PICKS = 512, 250, 4


def law(device: str) -> PickSequence:
    g = torch.Generator().manual_seed(0)
    legal = torch.rand(LANES, 1, 1 + WIDTH, generator=g) < 0.7
    legal[..., 0] = True
    return PickSequence(
        torch.randn(LANES, 1, 1 + WIDTH, generator=g).to(device),
        PickSet(
            legal=legal.to(device),
            picks=PICKS,
            resource=torch.randint(-1, 200, (LANES, 1, WIDTH, 4), generator=g).to(device),
            cost=torch.rand(LANES, 1, WIDTH, generator=g).to(device),
            budget=torch.rand(LANES, 1, generator=g).to(device),
        ),
    )


def streams(device: str) -> Streams:
    return Streams(lane_keys([0], lanes=LANES, device=device))


def test_turns_and_their_log_probs_are_those_of_the_cpu():
    here, there = law("cpu"), law("cuda")
    x = here.sample(streams("cpu").draw("x"))
    same = (there.sample(streams("cuda").draw("x")).cpu() == x).all(dim=-1)
    assert same.float().mean() > 0.99  # noise differs in the last bit, which may turn a near tie
    for a, b in zip(
        here.log_prob_and_entropy(x), there.log_prob_and_entropy(x.cuda()), strict=True
    ):
        torch.testing.assert_close(b.cpu(), a, atol=1e-5, rtol=0.0)


def test_a_captured_turn_is_bit_equal_to_the_eager_one():
    eager, captured, part = streams("cuda"), streams("cuda"), law("cuda")
    x = torch.zeros(LANES, 1, PICKS, dtype=torch.int64, device="cuda")
    log_prob = torch.zeros(LANES, 1, device="cuda")

    def step() -> None:
        x.copy_(part.sample(captured.draw("x")))
        log_prob.copy_(part.log_prob(x))
        captured.tick()

    replay = Captured(step)
    for _ in range(6):
        replay()
        expected = part.sample(eager.draw("x"))
        eager.tick()
        assert torch.equal(x, expected)
        assert torch.equal(log_prob, part.log_prob(expected))
