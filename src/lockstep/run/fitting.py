"""Whether a saved state fits what a run expects, part by part."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

_WRAPPERS = frozenset({"_orig_mod", "module"})  # torch.compile, and data-parallel wrappers


class Misfit(ValueError):
    """Names every part that is missing, left over, or of another kind."""

    def __init__(
        self, missing: Iterable[str], unexpected: Iterable[str], wrong: Iterable[str] = ()
    ) -> None:
        self.missing, self.unexpected, self.wrong = tuple(missing), tuple(unexpected), tuple(wrong)
        said = [
            *([f"it lacks {', '.join(self.missing)}"] if self.missing else []),
            *([f"it has {', '.join(self.unexpected)} besides"] if self.unexpected else []),
            *self.wrong,
        ]
        super().__init__("; ".join(said))


def fit_keys(found: Iterable[str], wanted: Iterable[str]) -> dict[str, str]:
    """Each wanted key to the found one that stands for it; Misfit names all that have no partner.

    The same name comes first. What is left pairs up without the marks of wrappers, on either side:
    `_orig_mod.body.0.weight` (compiled) is `body.0.weight` is `module.body.0.weight`.
    """
    found, wanted = list(found), list(wanted)
    fits = {key: key for key in wanted if key in set(found)}
    spare: dict[str, list[str]] = {}
    for key in found:
        if key not in fits:
            spare.setdefault(plain(key), []).append(key)
    for key in wanted:
        partners = spare.get(plain(key), [])
        if key not in fits and len(partners) == 1:  # two candidates are no answer
            fits[key] = partners.pop()
    missing = [key for key in wanted if key not in fits]
    taken = set(fits.values())
    unexpected = [key for key in found if key not in taken]
    if missing or unexpected:
        raise Misfit(missing, unexpected)
    return fits


def plain(key: str) -> str:
    """A key without the parts that wrappers put into it."""
    return ".".join(part for part in key.split(".") if part not in _WRAPPERS)


def fit(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The state `found` under the names of `wanted`; Misfit where a part, shape or dtype differs.

    Parts are named by their way from the top, `learner/weights/critic`; a missing branch once. What
    is empty at first, such as a replay, may have grown: a length of 0 fits every other.
    """
    missing: list[str] = []
    unexpected: list[str] = []
    wrong: list[str] = []

    def walk(found: Mapping[str, Any], wanted: Mapping[str, Any], way: str) -> dict[str, Any]:
        try:
            fits = fit_keys(found, wanted)
        except Misfit as misfit:
            missing.extend(way + key for key in misfit.missing)
            unexpected.extend(way + key for key in misfit.unexpected)
            lone = {*misfit.missing, *misfit.unexpected}
            fits = fit_keys(set(found) - lone, [key for key in wanted if key not in lone])
        return {key: part(found[name], wanted[key], way + key) for key, name in fits.items()}

    def part(found: Any, wanted: Any, way: str) -> Any:
        if isinstance(found, Mapping) and isinstance(wanted, Mapping):
            return walk(found, wanted, f"{way}/")
        if not _grown(found, wanted) and _kind(found) != _kind(wanted):
            wrong.append(f"{way} must be {_kind(wanted)}, got {_kind(found)}")
        return found

    fitted = walk(found, wanted, "")
    if missing or unexpected or wrong:
        raise Misfit(missing, unexpected, wrong)
    return fitted


def _grown(found: object, wanted: object) -> bool:
    """Whether a tensor is one that was empty, but for the length in which it has grown."""
    if not isinstance(found, Tensor) or not isinstance(wanted, Tensor):
        return False
    if found.dtype != wanted.dtype or found.ndim != wanted.ndim:
        return False
    return all(now == was or was == 0 for now, was in zip(found.shape, wanted.shape, strict=True))


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return "a table" if isinstance(value, Mapping) else type(value).__name__
