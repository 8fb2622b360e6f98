"""The city world on an accelerator: as on the CPU, and a step that a graph replays."""

import pytest
import torch
from torch import Tensor

from lockstep.core.streams import lane_keys
from lockstep.worlds.city_growth.catalogue import SCENARIOS
from lockstep.worlds.city_growth.world import CityGrowth

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]

CONFIG = SCENARIOS["village"]
LANES = 4


def started(device: str) -> CityGrowth:
    world = CityGrowth(CONFIG, lanes=LANES, device=device)
    world.reset(lane_keys([0], lanes=LANES, device=device))
    return world


def any_picks(generator: torch.Generator) -> dict[str, Tensor]:
    """For each role the same few numbers of rows, which need not be in its set."""
    shape = (LANES, 1, CONFIG.picks)
    return {role: torch.randint(0, 30, shape, generator=generator) for role in CONFIG.agent_names}


def month(world: CityGrowth, picks: dict[str, Tensor]) -> None:
    for (role,) in world.spec.phases:
        world.state(role)
        world.observe(role)
        world.act(role, {"build": picks[role]})
    world.advance()


def test_a_city_grows_as_on_the_cpu():
    """Who stands where is the same; a price that differs in its last digit may round otherwise."""
    cpu, cuda = started("cpu"), started("cuda")
    generator = torch.Generator().manual_seed(0)
    for _ in range(CONFIG.horizon - 1):
        picks = any_picks(generator)
        month(cpu, picks)
        month(cuda, {role: x.cuda() for role, x in picks.items()})
        for name, ours in cpu.world_state.tensors().items():
            theirs = cuda.world_state.tensors()[name].cpu()
            if ours.is_floating_point():
                torch.testing.assert_close(theirs, ours, rtol=1e-2, atol=1e-3)
            else:
                assert torch.equal(theirs, ours), name
    assert (cpu.world_state.owner >= 0).any()


def test_a_month_that_a_graph_replays_is_the_month_itself():
    plain, replayed = started("cuda"), started("cuda")
    generator = torch.Generator().manual_seed(1)
    fixed = {role: x.cuda() for role, x in any_picks(generator).items()}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        month(replayed, fixed)  # what is made once is made before the recording
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        month(replayed, fixed)
    replayed.load_state_dict(plain.state_dict())
    for _ in range(CONFIG.horizon + 2):  # beyond the end of an episode
        for role, x in any_picks(generator).items():
            fixed[role].copy_(x)
        graph.replay()
        month(plain, {role: x.clone() for role, x in fixed.items()})
        for name, x in plain.world_state.tensors().items():
            assert torch.equal(x, replayed.world_state.tensors()[name]), name
