"""The kernels written for a GPU beside the formulas they stand for."""

import math
from functools import partial

import pytest
import torch
from torch.func import vmap

from lockstep.core import fused
from lockstep.core.distributions import Beta
from lockstep.core.streams import Streams, lane_keys
from lockstep.nets.critics import AttentionCritic
from lockstep.nets.packing import Pack
from lockstep.nets.policy import Policy
from lockstep.worlds.uav_mec.config import SCENARIOS
from lockstep.worlds.uav_mec.spec import world_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
]


def both(compute):
    """What the plain form and the kernels make of the same."""
    with fused.switched(on=False):
        plain = compute()
    with fused.switched(on=True):
        return plain, compute()


def parameters(*shape):
    generator = torch.Generator("cuda").manual_seed(0)
    return (
        torch.rand(*shape, generator=generator, device="cuda") * 30 + 1.0001,
        torch.rand(*shape, generator=generator, device="cuda") * 5 + 1.0001,
        torch.rand(*shape, generator=generator, device="cuda") * 0.98 + 0.01,
    )


def streams():
    made = Streams(lane_keys([3, 4], lanes=50, device="cuda"))
    made.tick()
    return made


def test_draws_are_the_same_and_go_on_where_the_last_stopped():
    def drawn():
        draw = streams().draw("x")
        return draw.uniform(7), draw.normal(3, 5), draw.uniform(4)

    for plain, quick in zip(*both(drawn), strict=True):
        torch.testing.assert_close(plain, quick, rtol=1e-5, atol=2e-6)


def test_beta_draws_are_the_same_in_all_but_a_rounding():
    alpha, beta, _ = parameters(100, 60, 12)
    plain, quick = both(lambda: streams().draw("x").beta(alpha, beta))
    assert ((plain - quick).abs() > 1e-4).double().mean() < 1e-4


@pytest.mark.parametrize("shape", [(40, 7, 12), (3, 1), (5, 9, 122)])
def test_densities_entropies_and_their_gradients_are_the_same(shape):
    alpha, beta, x = parameters(*shape)
    alpha.requires_grad_()
    beta.requires_grad_()

    def told():
        log_prob, entropy = Beta(alpha, beta).log_prob_and_entropy(x)
        weight = torch.linspace(-1, 1, log_prob.numel(), device="cuda").view_as(log_prob)
        gradient = torch.autograd.grad((weight * (log_prob + 0.3 * entropy)).sum(), (alpha, beta))
        return log_prob, entropy, *gradient

    for plain, quick in zip(*both(told), strict=True):
        torch.testing.assert_close(plain, quick, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("members", [1, 3])
def test_self_attention_and_its_gradient_are_the_same_in_half_precision(members):
    critic = AttentionCritic(world_spec(SCENARIOS["paper"]), hidden=128, heads=4, fused=False)
    critic = critic.to("cuda", torch.bfloat16)
    generator = torch.Generator("cuda").manual_seed(1)
    encoded = torch.randn(members, 6, 70, 128, generator=generator, device="cuda")
    encoded = encoded.bfloat16().requires_grad_()

    def gathered():
        out = vmap(critic.attend)(encoded).float()
        weight = torch.linspace(-1, 1, out.numel(), device="cuda").view_as(out)
        (gradient,) = torch.autograd.grad((out * weight).sum(), encoded)
        return out, gradient.float()

    for plain, quick in zip(*both(gathered), strict=True):
        assert (plain - quick).norm() < 2e-2 * plain.norm()
        assert math.isfinite(float(quick.detach().norm()))


@pytest.mark.parametrize("members", [1, 3])
def test_scores_of_rows_are_no_further_from_full_precision_than_the_plain_form(members):
    role = world_spec(SCENARIOS["paper"]).role("mu")
    build = partial(Policy, role, unit_head="beta", hidden=32, scorer=True)
    pack = Pack(build, range(members), device="cuda")
    generator = torch.Generator("cuda").manual_seed(1)
    with torch.no_grad():  # first weights say next to nothing, and biases nothing
        noise = torch.randn(pack.weights.shape, generator=generator, device="cuda")
        pack.weights.add_(0.1 * noise)

    def rows(*shape):
        return torch.randn(members, 6, 5, role.agents, *shape, generator=generator, device="cuda")

    features = {"obs": rows(*role.features["obs"].shape)}
    entities = {"uav": rows(*role.entities["uav"].shape)}
    starts = torch.zeros(members, 6, 5, dtype=torch.bool, device="cuda")
    memory = torch.zeros(members, 5, role.agents, 0, device="cuda")
    weight = rows(2, 11)

    def scored(half=True):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            params, _ = pack(features, entities, {}, memory, starts)
        loss = (weight * params["assoc"].float()).sum()
        (gradient,) = torch.autograd.grad(loss, pack.weights)
        return params["assoc"].float().detach(), *pack._split(gradient[-1])

    exact = scored(half=False)
    for full, plain, quick in zip(exact, *both(scored), strict=True):
        assert (quick - full).norm() <= 1.5 * (plain - full).norm() + 1e-2 * full.norm()
    assert not all(torch.equal(a, b) for a, b in zip(*both(scored), strict=True))
