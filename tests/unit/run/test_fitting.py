import pytest
import torch
from torch import nn

from lockstep.run.fitting import Misfit, fit, fit_keys


def test_equal_keys_fit_as_they_are():
    assert fit_keys(["a", "b"], ["b", "a"]) == {"a": "a", "b": "b"}


@pytest.mark.parametrize("mark", ["_orig_mod.", "module.", "module._orig_mod."])
def test_the_marks_of_wrappers_are_mapped_both_ways(mark: str):
    assert fit_keys([f"{mark}body.w"], ["body.w"]) == {"body.w": f"{mark}body.w"}
    assert fit_keys(["body.w"], [f"{mark}body.w"]) == {f"{mark}body.w": "body.w"}


def test_a_mark_inside_a_name_is_seen_as_well():
    assert fit_keys(["body._orig_mod.w"], ["body.w"]) == {"body.w": "body._orig_mod.w"}


def test_a_compiled_module_and_a_plain_one_exchange_their_states():
    plain = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    other = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    wrapped = torch.compile(other, backend="eager")
    assert set(plain.state_dict()) != set(wrapped.state_dict())
    wrapped.load_state_dict(fit(plain.state_dict(), wrapped.state_dict()))
    assert torch.equal(other[0].weight, plain[0].weight)
    back = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    back.load_state_dict(fit(wrapped.state_dict(), back.state_dict()))
    assert torch.equal(back[1].bias, plain[1].bias)


def test_a_part_that_is_really_called_module_keeps_its_name():
    assert fit_keys(["module.w", "w"], ["module.w", "w"]) == {"module.w": "module.w", "w": "w"}


def test_two_candidates_are_no_answer():
    with pytest.raises(Misfit, match=r"it lacks w; it has module\.w, _orig_mod\.w besides"):
        fit_keys(["module.w", "_orig_mod.w"], ["w"])


def test_every_key_without_a_partner_is_named():
    with pytest.raises(Misfit) as misfit:
        fit_keys(["a", "x", "y"], ["a", "b", "c"])
    assert misfit.value.missing == ("b", "c")
    assert misfit.value.unexpected == ("x", "y")


def state(**weights: torch.Tensor) -> dict[str, object]:
    return {"learner": {"weights": weights, "version": torch.tensor(3)}}


def test_a_nested_state_names_what_is_wrong_by_its_way():
    wanted = state(actor=torch.zeros(2, 5), critic=torch.zeros(2, 7))
    found = state(actor=torch.zeros(2, 6), kritic=torch.zeros(2, 7))
    with pytest.raises(Misfit) as misfit:
        fit(found, wanted)
    assert str(misfit.value) == (
        "it lacks learner/weights/critic; it has learner/weights/kritic besides; "
        "learner/weights/actor must be float32 of shape (2, 5), got float32 of shape (2, 6)"
    )


def test_a_missing_branch_is_named_once_and_a_table_is_no_tensor():
    wanted = {"a": {"b": {"c": torch.zeros(1), "d": torch.zeros(1)}}, "e": torch.zeros(1)}
    with pytest.raises(Misfit, match=r"^it lacks a/b; e must be float32 of shape .* got a table$"):
        fit({"a": {}, "e": {}}, wanted)


def test_no_kind_of_number_is_changed():
    with pytest.raises(Misfit, match=r"w must be int64 of shape.*got int32"):
        fit({"w": torch.zeros(1, dtype=torch.int32)}, {"w": torch.zeros(1, dtype=torch.int64)})


def test_what_fits_comes_under_the_names_that_were_wanted():
    found = {"net": {"_orig_mod.w": torch.ones(2)}, "n": 3}
    fitted = fit(found, {"net": {"w": torch.zeros(2)}, "n": 0})
    assert torch.equal(fitted["net"]["w"], torch.ones(2))
    assert fitted["n"] == 3


def test_what_was_empty_may_have_grown_in_that_length_alone():
    empty = {"replay": torch.zeros(2, 0, 5)}
    assert fit({"replay": torch.ones(2, 7, 5)}, empty)["replay"].shape == (2, 7, 5)
    for other in (torch.zeros(2, 7, 6), torch.zeros(2, 7), torch.zeros(2, 7, 5).int()):
        with pytest.raises(Misfit, match=r"replay must be float32 of shape \(2, 0, 5\), got"):
            fit({"replay": other}, empty)
