"""The rows of `benchmarks.packs_uav_mec`: what is measured, and in which order."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from lockstep.run.config import TrainConfig, preset

Path_ = Literal["eager", "kernels", "graphs", "compiled"]
HOW: dict[str, dict[str, Any]] = {
    "eager": {"compile": "off", "graphs": False, "kernels": False},
    "kernels": {"compile": "off", "graphs": False},
    "graphs": {"compile": "off"},
    "compiled": {"compile": "on"},
}
UPDATES = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    kind: Literal["pack", "world", "gate", "learning"] = "pack"
    path: Path_ = "graphs"
    members: int = 32
    users: int = 60
    uavs: int = 10
    lanes: int = 5
    steps: int = 60
    actor: Literal["scorer", "mlp"] = "scorer"
    precision: Literal["fp32", "tf32", "bf16"] = "bf16"
    updates: int = UPDATES
    quick: bool = False
    """A few users, a narrow network: to see that it works, not how fast it is."""

    @property
    def name(self) -> str:
        scene, samples = f"{self.users}+{self.uavs}", self.lanes * self.steps
        if self.kind == "world":
            return f"world {self.path} {self.lanes} lanes"
        size = f"{self.members} x {samples}, {scene}"
        return f"{self.kind} {self.path} {size}, {self.actor}, {self.precision}"

    def config(self, device: str) -> TrainConfig:
        base = preset("uav-mec", scenario="paper", learner="ab-mappo")
        learner = replace(
            base.learner,
            lanes=self.lanes,
            steps=self.steps,
            actor=self.actor,
            precision=self.precision,
            **({"hidden": 16} if self.quick else {}),
        )
        return replace(
            base,
            device=device,
            seeds=tuple(range(self.members)),
            total_steps=1000 * self.lanes * self.steps,
            world=replace(base.world, n_users=self.users, n_uavs=self.uavs),
            learner=learner,
            **HOW[self.path],
        )

    def small(self) -> "Case":
        """The same row in its quick form."""
        lanes = self.lanes // 512 if self.kind == "world" else 2
        few = {"members": min(self.members, 2), "steps": 3, "lanes": lanes, "updates": 2}
        return replace(self, **few, users=-(-self.users // 20), uavs=2, quick=True)


def groups() -> dict[str, list[Case]]:
    """The rows, by what they tell."""
    both: tuple[Path_, ...] = ("graphs", "compiled")
    return {
        "gate": [
            Case(kind="gate", path=path, members=members, precision="fp32")
            for path in ("compiled", "graphs", "kernels")
            for members in (2, 1)  # one alone is mapped over nothing, and attends otherwise
        ],
        "compiled": [
            Case(path="compiled", members=64, actor="mlp"),
            Case(path="compiled", members=32, actor="mlp"),
            Case(path="compiled", members=1),
            Case(path="compiled", members=64),
            Case(path="compiled", members=32),
            Case(path="compiled", members=8),
        ],
        "world": [
            Case(kind="world", path=path, lanes=lanes, precision="fp32")
            for lanes in (8192, 32768)
            for path in ("eager", "kernels", "graphs", "compiled")
        ],
        "learning": [Case(kind="learning", path="compiled", members=5, updates=100)],
        "agents": [
            Case(path=path, users=users, uavs=uavs)
            for users, uavs in ((10, 1), (60, 10), (100, 10))
            for path in both
        ],
        "samples": [Case(path=path, members=8, lanes=64, steps=64) for path in both],
        "graphs": [
            *(Case(members=members) for members in (1, 8, 64)),
            *(Case(members=members, actor="mlp") for members in (1, 32, 64)),
            Case(precision="tf32"),
        ],
        "paths": [Case(path=path, members=8) for path in ("eager", "kernels")],
        # What learning is compared with. Its draws are those of a CPU, where it may be made before.
        "plain": [Case(kind="learning", path="eager", members=5, precision="fp32", updates=100)],
    }


def chosen(rows: list[str], *, quick: bool) -> list[Case]:
    """The cases of these groups, each once."""
    cases = [case for group in rows for case in groups()[group]]
    cases = [case.small() for case in cases] if quick else cases
    return list({case.name: case for case in cases}.values())
