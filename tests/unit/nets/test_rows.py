"""Scores of candidate rows: any order, any number, padded or in lists."""

from dataclasses import replace

import pytest
import torch

from lockstep.core.actions import Candidates, Field, Observation, Picks, Rows
from lockstep.core.world import RoleSpec
from lockstep.nets.layers import seeded
from lockstep.nets.packing import Pack
from lockstep.nets.policy import Policy, joint
from lockstep.nets.rows import RowScorer, Scoring

CONTEXTS = ["none", "pooled", "attention"]
F, Z, IDS = 6, 8, 40


def scorer(set_context="pooled", *, ragged=False) -> RowScorer:
    rows = Rows(over="site", extra=("stop",), context=True)
    how = Scoring(set_context=set_context, ragged=ragged)
    made = seeded(lambda: RowScorer(rows, F, 1, Z, how), 0)
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    return made


def sets(width=12, *, dtype=torch.float32):
    """Rows, context and which rows exist, for 2 x 3 x 2 sets; one of them is empty."""
    g = torch.Generator().manual_seed(2)
    rows = torch.randn(2, 3, 2, width, F, generator=g, dtype=dtype)
    context = torch.randn(2, 3, 2, Z, generator=g, dtype=dtype)
    exists = torch.rand(2, 3, 2, width, generator=g) < 0.6
    exists[1, 2, 1] = False
    return rows, context, exists


def role(width=12, *, part="picks", ids=IDS) -> RoleSpec:
    one = (
        Picks(max=2, over="site", width=width, ids=ids)
        if part == "picks"
        else Candidates(max=width, over="site", extra=("skip",), ids=ids)
    )
    of_rows = {
        "site/id": Field(shape=(width,), dtype=torch.int64),
        "site/resource": Field(shape=(width, 2), dtype=torch.int64),
    }
    return RoleSpec(
        name="builder",
        agents=2,
        features={"obs": Field(shape=(5,)), **(of_rows if ids else {})},
        entities={"site": Field(shape=(width, F))},
        action={"build": one},
        discount=0.9,
    )


def policy(width=12, *, ids=IDS, part="picks", **scoring) -> Policy:
    return seeded(
        lambda: Policy(
            role(width, ids=ids, part=part),
            unit_head="beta",
            hidden=16,
            scorer=True,
            scoring=Scoring(**scoring),
        ),
        0,
    )


def observation(width=12, lead=(2, 3, 2)) -> Observation:
    g = torch.Generator().manual_seed(3)
    legal = torch.rand(*lead, 1 + width, generator=g) < 0.6
    legal[..., 0] = True
    return Observation(
        features={
            "obs": torch.randn(*lead, 5, generator=g),
            "site/id": torch.randint(0, IDS, (*lead, width), generator=g),
            "site/resource": torch.randint(-1, 6, (*lead, width, 2), generator=g),
        },
        entities={"site": torch.randn(*lead, width, F, generator=g)},
        legal={"build": legal},
        acts=torch.ones(lead, dtype=torch.bool),
    )


def run(made, obs, lead=()):
    memory = torch.zeros(*lead, 3, 2, 0)
    starts = torch.zeros(*lead, 2, 3, dtype=torch.bool)
    return made(obs.features, obs.entities, obs.legal, memory, starts)[0]["build"]


@pytest.mark.parametrize("set_context", CONTEXTS)
def test_reordering_the_rows_reorders_their_scores(set_context):
    made, (rows, context, exists) = scorer(set_context), sets()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    plain = made(rows, context, exists)[..., order].squeeze(-2)
    moved = made(rows[..., order, :], context, exists[..., order]).squeeze(-2)
    seen = exists[..., order]
    torch.testing.assert_close(moved[seen], plain[seen], atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("set_context", CONTEXTS)
def test_rows_that_do_not_exist_and_wider_padding_change_no_score(set_context):
    made, (rows, context, exists) = scorer(set_context), sets()
    plain = made(rows, context, exists).squeeze(-2)
    filled = torch.where(exists.unsqueeze(-1), rows, 1e3)
    wide = torch.cat((filled, torch.full_like(rows, -1e3)), dim=-2)
    known = torch.cat((exists, torch.zeros_like(exists)), dim=-1)
    padded = made(wide, context, known).squeeze(-2)[..., :12]
    torch.testing.assert_close(padded[exists], plain[exists], atol=1e-5, rtol=1e-5)
    assert made(wide, context, known).isfinite().all()


@pytest.mark.parametrize("set_context", ["pooled", "attention"])
def test_with_set_context_a_row_s_score_depends_on_the_other_rows(set_context):
    made, (rows, context, exists) = scorer(set_context), sets()
    exists[..., :2] = True
    other = rows.clone()
    other[..., 1, :] += 1.0
    plain, changed = made(rows, context, exists), made(other, context, exists)
    assert (plain[..., 0] - changed[..., 0]).abs().max() > 1e-3
    without = scorer("none")
    assert torch.equal(
        without(rows, context, exists)[..., 0], without(other, context, exists)[..., 0]
    )


@pytest.mark.parametrize("set_context", ["none", "pooled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_in_lists_and_padded_rows_give_equal_scores_and_gradients(set_context, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    rows, context, exists = sets(dtype=dtype)
    found = []
    for ragged in (False, True):
        made = scorer(set_context, ragged=ragged).to(dtype)
        score = made(rows, context, exists).squeeze(-2)
        own = context.clone().requires_grad_()
        loss = made(rows, own, exists).squeeze(-2)[exists].square().mean()
        found.append([score[exists], *torch.autograd.grad(loss, [own, *made.parameters()])])
    for padded, listed in zip(*found, strict=True):
        torch.testing.assert_close(listed, padded, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("part", ["picks", "candidates"])
@pytest.mark.parametrize("set_context", CONTEXTS)
def test_weights_of_a_policy_for_64_rows_load_into_one_for_256(set_context, part):
    narrow, wide = (policy(width, set_context=set_context, part=part) for width in (64, 256))
    for parameter in narrow.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(5))
    wide.load_state_dict(narrow.state_dict())
    few, many = observation(64), observation(256)
    blank = torch.zeros(2, 3, 2, 192, dtype=torch.bool)
    many.features["obs"].copy_(few.features["obs"])
    many.entities["site"][..., :64, :] = few.entities["site"]
    many.legal["build"].copy_(torch.cat((few.legal["build"], blank), dim=-1))
    legal = few.legal["build"].unsqueeze(-2)
    torch.testing.assert_close(
        run(wide, many)[..., :65][legal], run(narrow, few)[legal], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("set_context", CONTEXTS)
@pytest.mark.parametrize("ragged", [True, False])
def test_members_of_a_pack_score_as_they_do_alone(set_context, ragged):
    seeds = [3, 4, 5]
    build = lambda: policy_of(set_context, ragged)  # noqa: E731 - a module for each seed
    pack = Pack(build, seeds)
    obs = observation()
    three = obs.map(lambda x: torch.stack((x, x.flip(0), x.flip(1))))
    together = run(pack, three, (3,))
    for member, seed in enumerate(seeds):
        mine = three.map(lambda x, m=member: x[m : m + 1])
        alone = run(Pack(build, [seed]), mine, (1,))
        legal = mine.legal["build"].unsqueeze(-2)
        torch.testing.assert_close(
            together[member : member + 1][legal], alone[legal], atol=1e-6, rtol=1e-5
        )


def policy_of(set_context, ragged) -> Policy:
    return Policy(
        role(),
        unit_head="beta",
        hidden=16,
        scorer=True,
        scoring=Scoring(set_context=set_context, ragged=ragged),
    )


def test_a_pack_that_lists_rows_loops_and_one_that_pads_them_maps():
    assert not policy_of("pooled", True).batchable
    assert policy_of("pooled", False).batchable
    assert policy_of("attention", True).batchable


def test_a_head_by_identity_scores_a_row_by_its_id_and_by_nothing_else():
    made, obs = policy(candidates="identity"), observation()
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    plain = run(made, obs)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))
    moved = replace(
        obs,
        features={**obs.features, "site/id": obs.features["site/id"][..., order]},
        entities={"site": torch.zeros_like(obs.entities["site"])},
    )
    assert torch.equal(run(made, moved)[..., 1:], plain[..., 1:][..., order])
    assert torch.equal(run(made, moved)[..., :1], plain[..., :1])
    assert plain[..., 1:].unique().numel() > 1


def test_a_head_by_position_has_one_number_for_each_entry_and_reads_no_row():
    made, obs = policy(candidates="positional"), observation()
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    blind = replace(obs, entities={"site": torch.zeros_like(obs.entities["site"])})
    assert torch.equal(run(made, obs), run(made, blind))
    assert run(made, obs).shape[-1] == 13


def test_identity_without_ids_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="candidate_head 'identity' needs a world that numbers"):
        policy(ids=0, candidates="identity")


def test_features_of_rows_are_no_input_of_the_encoder():
    made, obs = policy(), observation()
    assert made.role.encoded == ("obs",)
    other = replace(
        obs,
        features={
            "obs": obs.features["obs"],
            "site/id": obs.features["site/id"] + 1,
            "site/resource": obs.features["site/resource"] + 1,
        },
    )
    assert torch.equal(run(made, obs), run(made, other))
    x = torch.zeros(2, 3, 2, 2, dtype=torch.int64)
    x[..., 0], x[..., 1] = 1, 2
    before = joint(made.role, {"build": run(made, obs)}, obs, "beta").log_prob({"build": x})
    shared = replace(
        obs, features={**obs.features, "site/resource": torch.zeros(2, 3, 2, 12, 2).long()}
    )
    after = joint(made.role, {"build": run(made, obs)}, shared, "beta").log_prob({"build": x})
    assert before.isfinite().any()
    assert after.isneginf().all()
