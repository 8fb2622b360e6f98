import pytest
import torch
from torch import nn

from lockstep.nets.layers import Dense, mlp, seeded
from lockstep.nets.packing import Adam, Pack, clip_by_norm


def small() -> nn.Module:
    return nn.Sequential(mlp(3, 8), Dense(8, 2))


def test_a_member_of_a_pack_computes_what_it_computes_alone():
    x = torch.randn(3, 5, 3)
    pack = Pack(small, [1, 2, 3])
    together = pack(x)
    for member, seed in enumerate([1, 2, 3]):
        alone = Pack(small, [seed])(x[member : member + 1])
        torch.testing.assert_close(together[member], alone[0])


def test_a_module_that_is_not_batchable_is_looped_with_the_same_result():
    def looped() -> nn.Module:
        module = small()
        module.batchable = False
        return module

    x = torch.randn(3, 5, 3)
    torch.testing.assert_close(Pack(looped, [1, 2, 3])(x), Pack(small, [1, 2, 3])(x))


def test_a_network_with_running_numbers_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"running_mean .*use GroupNorm") as refusal:
        Pack(lambda: nn.Sequential(Dense(3, 4), nn.BatchNorm1d(4)), [0])
    assert "\n" not in str(refusal.value)
    constant = Dense(3, 4)
    constant.register_buffer("scale", torch.ones(()), persistent=False)
    Pack(lambda: constant, [0])


def test_networks_do_not_behave_as_if_in_training():
    pack = Pack(lambda: nn.Sequential(Dense(3, 4), nn.Dropout(0.5)), [0, 1])
    x = torch.randn(2, 5, 3)
    assert not pack.module.training
    assert torch.equal(pack(x), pack(x))


def test_initial_weights_follow_from_the_seed_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    first, second = Pack(small, [7]).weights, Pack(small, [7]).weights
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(first, Pack(small, [8]).weights)


def test_initial_weights_are_orthogonal_with_the_layer_gain():
    layer = seeded(lambda: Dense(16, 16, gain=0.5), 3)
    torch.testing.assert_close(layer.weight @ layer.weight.T, 0.25 * torch.eye(16))


def test_adam_follows_the_textbook_for_each_member():
    weights = torch.randn(2, 5)
    ours = weights.clone().requires_grad_()
    rate = torch.tensor([1e-2, 3e-3])
    adam = Adam(ours, lr=rate)
    theirs = [weights[p].clone().requires_grad_() for p in range(2)]
    optimizers = [torch.optim.Adam([w], lr=rate[p].item()) for p, w in enumerate(theirs)]
    for _ in range(20):
        gradient = torch.randn(2, 5)
        adam.step(gradient, torch.tensor([True, True]))
        for p, w in enumerate(theirs):
            w.grad = gradient[p].clone()
            optimizers[p].step()
    torch.testing.assert_close(ours.detach(), torch.stack(theirs).detach(), rtol=1e-5, atol=1e-6)


def test_a_member_that_sits_out_keeps_weights_moments_and_step_even_if_its_gradient_is_nan():
    weights = torch.randn(2, 5).requires_grad_()
    adam = Adam(weights, lr=torch.full((2,), 1e-2))
    adam.step(torch.randn(2, 5), torch.tensor([True, True]))
    kept = {name: value.clone() for name, value in adam.state_dict().items()}
    held = weights.detach().clone()
    gradient = torch.randn(2, 5)
    gradient[1] = torch.nan
    adam.step(gradient, torch.tensor([True, False]))
    assert torch.equal(weights[1].detach(), held[1])
    assert not torch.equal(weights[0].detach(), held[0])
    for name in ("mean", "square", "steps"):
        assert torch.equal(adam.state_dict()[name][1], kept[name][1])


def test_the_gradient_limit_holds_for_each_member_by_itself():
    gradient = torch.stack((torch.full((4,), 10.0), torch.full((4,), 0.1)))
    clipped, norm = clip_by_norm(gradient, torch.tensor([1.0, 1.0]))
    assert norm.tolist() == pytest.approx([20.0, 0.2])
    assert torch.linalg.vector_norm(clipped[0]).item() == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(clipped[1], gradient[1])
