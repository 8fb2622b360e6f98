import pytest

from lockstep.errors import (
    AuditFailure,
    BadInput,
    LockstepError,
    MissingExtra,
    UnknownName,
    known,
    needs_extra,
)


def test_a_missing_package_is_answered_with_its_install_command():
    with (
        pytest.raises(MissingExtra) as caught,
        needs_extra("study"),
    ):
        import a_package_that_is_not_there.plots  # noqa: F401
    expected = "a_package_that_is_not_there is not installed; run: pip install 'lockstep-rl[study]'"
    assert str(caught.value) == expected


def test_a_missing_module_of_our_own_is_not_blamed_on_an_extra():
    with pytest.raises(ModuleNotFoundError), needs_extra("study"):
        import lockstep.no_such_module  # noqa: F401


def test_an_unknown_name_suggests_the_nearest():
    assert known("learner", "ppo", ["ppo", "a2c"]) == "ppo"
    with pytest.raises(UnknownName, match="no learner called 'pop'; did you mean 'ppo'"):
        known("learner", "pop", ["ppo", "a2c"])
    with pytest.raises(UnknownName, match="no learner called 'zzzz'; there is a2c, ppo"):
        known("learner", "zzzz", ["ppo", "a2c"])


def test_bad_input_and_audit_failures_are_told_apart_under_one_base():
    assert issubclass(BadInput, LockstepError)
    assert issubclass(AuditFailure, LockstepError)
    assert not issubclass(AuditFailure, BadInput)
