"""The world's page names every setting, metric and settable number."""

from dataclasses import fields
from pathlib import Path

from lockstep.worlds.uav_mec.config import SETTABLE, UavMecConfig
from lockstep.worlds.uav_mec.heuristics import HEURISTICS
from lockstep.worlds.uav_mec.metrics import METRICS

PAGE = (Path(__file__).parents[4] / "docs/worlds/uav_mec.md").read_text(encoding="utf-8")


def test_the_page_names_everything_a_user_can_set_or_read() -> None:
    names = [field.name for field in fields(UavMecConfig)] + [metric.name for metric in METRICS]
    missing = [name for name in (*names, *SETTABLE, *HEURISTICS) if f"`{name}`" not in PAGE]
    assert missing == []
