"""Numbers and pictures become one vector, for one member and for a pack alike."""

import pytest
import torch

from lockstep.core.actions import Field
from lockstep.nets.encoders import FeatureEncoder
from lockstep.nets.layers import seeded
from lockstep.nets.packing import Pack

FIELDS = {
    "obs": Field(shape=(5,)),
    "months_left": Field(shape=()),
    "map": Field(shape=(3, 20, 14)),
    "screen": Field(shape=(1, 9, 9), dtype=torch.uint8),
}


class Whole(torch.nn.Module):
    """An encoder as a pack calls it."""

    def __init__(self, fields: dict[str, Field]) -> None:
        super().__init__()
        self.encoder = FeatureEncoder(fields, 16)
        self.batchable = self.encoder.batchable

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.encoder(features, torch.float32)


def features(*lead: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return {
        "obs": torch.randn(*lead, 5, generator=g),
        "months_left": torch.rand(*lead, generator=g),
        "map": torch.rand(*lead, 3, 20, 14, generator=g),
        "screen": torch.randint(0, 256, (*lead, 1, 9, 9), generator=g).to(torch.uint8),
    }


def test_members_of_a_pack_encode_pictures_as_they_do_alone():
    seeds = [1, 2, 3]
    together = Pack(lambda: Whole(FIELDS), seeds)(features(3, 2, 4, 1))
    assert together.shape == (3, 2, 4, 1, 16)
    for member, seed in enumerate(seeds):
        own = {name: x[member : member + 1] for name, x in features(3, 2, 4, 1).items()}
        alone = Pack(lambda: Whole(FIELDS), [seed])(own)
        torch.testing.assert_close(together[member : member + 1], alone)


def test_only_an_encoder_of_pictures_makes_a_pack_loop():
    assert not FeatureEncoder(FIELDS, 16).batchable
    assert FeatureEncoder({"obs": FIELDS["obs"]}, 16).batchable


@pytest.mark.parametrize("name", FIELDS)
def test_every_feature_reaches_the_vector_and_its_gradient_the_weights(name):
    made = seeded(lambda: FeatureEncoder(FIELDS, 16), 0)
    plain, other = features(1, 2, 1), features(1, 2, 1)
    other[name] = 255 - other[name] if name == "screen" else other[name] + 1.0
    out = made(plain, torch.float32)
    assert not torch.allclose(out, made(other, torch.float32))
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())


def test_bytes_count_as_numbers_from_0_to_1():
    fields = {"screen": FIELDS["screen"]}
    made = seeded(lambda: FeatureEncoder(fields, 16), 0)
    screen = features(1, 2, 1)["screen"]
    as_numbers = {"screen": screen.float() / 255.0}
    torch.testing.assert_close(
        made({"screen": screen}, torch.float32), made(as_numbers, torch.float32)
    )


def test_lanes_are_encoded_each_by_itself():
    made = seeded(lambda: FeatureEncoder(FIELDS, 16), 0)
    several = features(2, 5, 1)
    one = {name: x[:, 3:4] for name, x in several.items()}
    torch.testing.assert_close(
        made(several, torch.float32)[:, 3:4], made(one, torch.float32), atol=1e-6, rtol=1e-5
    )
