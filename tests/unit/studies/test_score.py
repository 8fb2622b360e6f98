import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.cli import main
from lockstep.errors import BadInput
from lockstep.studies import paper, uav_paper
from lockstep.studies.aggregate import Unusable
from lockstep.studies.checks import below, flat, trend, within
from lockstep.studies.claims import Claim
from lockstep.studies.score import Scorecard, score
from lockstep.studies.study import Study, Trial
from tests.unit.studies import roots

SEEDS = (42, 43, 44)
Noise = Callable[[Trial, float], float]


def study(
    figures: Sequence[str] = (), *, curves: bool = True, seeds: tuple[int, ...] = SEEDS
) -> Study:
    """The paper's study with trials as short as can be; those of curves are whole, and others'.

    The paper's figure 4 ends at another value than its figure 8 shows for the same setting.
    """
    short = uav_paper.study(steps=600, seeds=seeds)
    whole = uav_paper.study(seeds=tuple(seed - 40 for seed in seeds))
    shown = [*whole.figures[:3], *short.figures[3:-1]] if curves else short.figures[3:-1]
    return replace(short, figures=tuple(f for f in shown if not figures or f.name in figures))


def as_in_the_paper(asked: Study, noise: Noise = lambda trial, value: value) -> roots.Values:
    """Values of the paper where they were read; the same for every seed but for a thousandth."""
    levels: dict[tuple[str, str], float] = {}
    courses: dict[tuple[str, str], paper.Marks] = {}
    for figure in asked.figures:
        for metric in figure.metrics:
            for point in figure.points:
                row = paper.readings((figure.name, metric, point.panel))[point.series]
                for trial in point.trials:
                    if point.x is None:
                        courses[trial.hash, metric] = {"": row}
                    else:
                        level = float(np.interp(point.x, list(row), list(row.values())))
                        levels.setdefault((trial.hash, metric), level)

    def values(trial: Trial, metric: str) -> list[float | int | None]:
        jitter = 1.0 + 1e-3 * (trial.seed % 3 - 1)
        if (trial.hash, metric) in levels:
            level = noise(trial, levels[trial.hash, metric])
            return [jitter * level] * trial.config.updates
        row = courses[trial.hash, metric][""]
        steps = 300.0 * np.arange(1, trial.config.updates + 1)
        curve = np.interp(steps, list(row), list(row.values()))
        curve[-20:] = list(row.values())[-1]
        return [float(jitter * y) for y in curve]

    return values


def card(asked: Study, root: Path, noise: Noise = lambda trial, value: value) -> Scorecard:
    return score(asked, roots.fill(asked, root, as_in_the_paper(asked, noise)))


def claim(found: Scorecard, start: str) -> Claim:
    (one,) = [claim for claim in found.claims if claim.text.startswith(start)]
    return one


@pytest.fixture(scope="module")
def perfect(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    asked = study(seeds=SEEDS[:2])
    root = tmp_path_factory.mktemp("score") / "perfect"
    return asked, roots.fill(asked, root, as_in_the_paper(asked))


@pytest.fixture(scope="module")
def full(perfect: tuple[Study, Path]) -> Scorecard:
    return score(*perfect)


def test_the_papers_own_values_have_a_full_score(full: Scorecard):
    assert {c.text: c.verdict for c in full.claims if c.strong and c.verdict != "holds"} == {}
    assert sum(c.strong for c in full.claims) == 11
    for panel in full.panels:
        for check in (*panel.orders, *panel.trends):
            assert check is not None
            assert check.outcome == "holds", (panel.place, check)
        assert panel.asked == len(panel.readings)


def test_the_papers_own_values_have_hardly_an_error(full: Scorecard):
    for panel in full.panels:
        curve = panel.place in paper.CURVES  # drawn through the middles of windows: not the same
        assert panel.error < (0.05 if curve else 1e-3)
        assert all(rank > 0.75 for rank in panel.ranks.values())


def test_orders_and_trends_are_counted_for_every_mark_and_series(full: Scorecard):
    by_figure = {panel.place[0] + panel.place[2]: panel for panel in full.panels}
    pairs_of_five = 10
    assert len(by_figure["fig6"].orders) == 6 * pairs_of_five
    assert len(by_figure["fig6"].trends) == 5
    assert len(by_figure["fig10MU CPU"].trends) == 3 + 3  # each falls, then is flat
    assert len(by_figure["fig5"].trends) == 2 + 2  # each dips, then rises
    uav_rewards = next(p for p in full.panels if p.place[1] == "world/uav_reward")
    assert len(uav_rewards.orders) == 5  # AB and B are level in the paper's own words


def test_the_card_can_be_written_and_read(full: Scorecard):
    told = json.loads(json.dumps(full.to_json(), allow_nan=False))
    assert told["hash"] == full.study.hash
    first = told["figures"][4]
    assert first["orders"]["share"] == 1.0
    assert set(first["points"][0]) == {"series", "at", "paper", "ours", "relative_error"}
    assert told["claims"][0]["verdict"] == "holds"
    whole = told["orders"]
    assert whole["holds"] == sum(panel["orders"]["holds"] for panel in told["figures"])
    assert (whole["share"], told["trends"]["share"]) == (1.0, 1.0)
    name, _, orders, *_ = full.figures_table()[-1]
    assert (name, orders) == ("all", f"{whole['holds']} of {whole['holds']}")


def test_learners_in_another_order_fail(tmp_path: Path):
    asked = study(("fig6",), curves=False)
    swapped = {"ab-mappo": 1.6, "ag-mappo": 0.5}
    found = card(
        asked, tmp_path / "r", lambda trial, y: y * swapped.get(trial.config.algorithm, 1.0)
    )
    (panel,) = [panel for panel in found.panels if panel.place[0] == "fig6"]
    wrong = [check.what for check in panel.orders if check and check.outcome == "fails"]
    assert "AB-MAPPO < AG-MAPPO at 100" in wrong
    assert "MADDPG < Randomized at 100" not in wrong
    assert claim(found, "Fig. 6: energy").verdict == "mostly holds"  # trends and the others' order


def test_a_trend_that_turns_round_fails(tmp_path: Path):
    asked = study(("fig11",), curves=False)
    found = card(asked, tmp_path / "r", lambda trial, y: y * (0.8 if trial.x == 0.15 else 1.0))
    (panel,) = [panel for panel in found.panels if panel.place[0] == "fig11"]
    assert [check.outcome for check in panel.trends if check] == ["fails"] * 4
    rises = [c for c in claim(found, "Fig. 11").checks if c and "in all" in c.what]
    assert [check.outcome for check in rises] == ["holds"] * 4


def test_learners_that_the_seeds_do_not_tell_apart_are_not_separated(tmp_path: Path):
    asked = study(("fig8",), curves=False)
    shake = {42: 1.3, 43: 0.7, 44: 1.0}

    def noise(trial: Trial, value: float) -> float:
        return value * (shake[trial.seed] if trial.config.algorithm == "b-mappo" else 1.0)

    found = card(asked, tmp_path / "r", noise)
    (panel,) = [panel for panel in found.panels if panel.place[0] == "fig8"]
    close = [c for c in panel.orders if c and c.what.startswith("AB-MAPPO < B-MAPPO")]
    assert [check.outcome for check in close] == ["not separated"] * 5
    row = next(row for row in found.figures_table() if row[0] == "fig8")
    assert "not separated" in row[2]


def test_one_seed_separates_nothing_and_the_card_says_so(tmp_path: Path):
    asked = uav_paper.study(smoke=True)
    root = roots.fill(asked, tmp_path / "short", roots.constant(lambda trial, metric: 1.0))
    found = score(asked, root)
    outcomes = {c.outcome for p in found.panels for c in (*p.orders, *p.trends) if c}
    assert outcomes <= {"not separated", "holds"}
    assert "With one seed nothing can be separated." in found.notes()


def test_curves_that_do_not_move_are_scored_as_well(tmp_path: Path):
    asked = study(("fig3", "fig4", "fig5"))
    root = roots.fill(asked, tmp_path / "still", roots.constant(lambda trial, metric: 1.0))
    third = claim(score(asked, root), "Fig. 3a, 4: AB makes half")
    # No drop is half of no drop, and a reward that stays is not halved.
    assert [check.outcome for check in third.checks if check] == ["not separated", "fails"]
    assert third.verdict == "not separated"


def test_what_is_missing_is_refused_or_left_out(tmp_path: Path):
    asked = study(("fig6", "fig7", "fig9"), curves=False)
    seventh = {trial.hash for trial in asked.figure("fig7").trials()}
    there = [trial for name, trial in asked.distinct().items() if name not in seventh]
    root = roots.fill(asked, tmp_path / "part", as_in_the_paper(asked), there)
    with pytest.raises(Unusable, match="fig7 AB-MAPPO at 4, seed 42"):
        score(asked, root)
    found = score(asked, root, allow_missing=True)
    lost = claim(found, "Fig. 7")
    assert (lost.verdict, lost.left_out) == ("left out", len(lost.checks))
    assert claim(found, "Fig. 6: energy").verdict == "holds so far"  # its K=70 is 7's M=10
    assert claim(found, "Fig. 9").verdict == "holds"
    assert any(f"{len(found.left_out)} trials are left out" in note for note in found.notes())


def test_a_study_of_ones_own_has_no_score(tmp_path: Path):
    asked = roots.tiny_study()
    with pytest.raises(BadInput, match="those of uav-paper; got tiny"):
        score(asked, tmp_path)


def test_the_verb_refuses_a_partial_study_unless_told_to_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    asked = uav_paper.study(smoke=True)
    root = tmp_path / "part"
    some = asked.figure("fig6").trials()
    roots.fill(asked, root, roots.constant(lambda trial, metric: 1.0), some)
    command = ["study", "score", "uav-paper", "--smoke", f"--root={root}"]
    assert main(command) == 2
    assert "missing, nothing is there" in capsys.readouterr().err
    assert main([*command, "--allow-missing"]) == 0
    told = capsys.readouterr().out
    assert "not separated" in told
    assert "trials are left out" in told
    assert main([*command, "--allow-missing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"][6]["verdict"] == "left out"


def test_a_difference_is_judged_by_its_seeds():
    low, high = {1: 1.0, 2: 2.0, 3: 3.0}, {1: 1.5, 2: 2.6, 3: 3.4}
    outcomes = [below("", *pair) for pair in ((low, high), (high, low), (low, low))]
    assert [o.outcome for o in outcomes if o] == ["holds", "fails", "not separated"]
    assert below("", None, high) is None


def test_a_range_holds_inside_and_is_open_where_seeds_reach_it():
    near = {1: 0.14, 2: 0.155, 3: 0.165}
    far = {1: 0.30, 2: 0.31, 3: 0.32}
    inside = {1: 0.11, 2: 0.12, 3: 0.13}
    outcomes = [within("", value, 0.10, 0.15) for value in (inside, near, far)]
    assert [o.outcome for o in outcomes if o] == ["holds", "not separated", "fails"]


def test_a_flat_row_may_wander_a_little():
    base = {1: 1.0, 2: 1.01}
    little, much = ({s: factor * y for s, y in base.items()} for factor in (0.96, 0.80))
    outcomes = [flat("", [base, other]) for other in (little, much)]
    assert [o.outcome for o in outcomes if o] == ["holds", "fails"]
    assert flat("", [base, None]) is None


def test_a_trend_may_pause_and_not_turn():
    def row(*levels: float) -> list[dict[int, float]]:
        return [{seed: y + 0.001 * seed * (y + 1) for seed in (1, 2, 3)} for y in levels]

    rows = (row(1, 2, 2, 3), row(1, 3, 2, 4), row(3, 2, 1))
    outcomes = [trend("", values, up=True) for values in rows]
    assert [o.outcome for o in outcomes if o] == ["holds", "fails", "fails"]
    falling = trend("", rows[2], up=False)
    assert falling is not None
    assert falling.outcome == "holds"


def test_the_page_on_figures_lists_every_claim_and_only_flags_that_exist(
    full: Scorecard, capsys: pytest.CaptureFixture[str]
):
    page = (Path(__file__).parents[3] / "docs" / "studies_figures.md").read_text()
    rows = [row[0] for row in full.claims_table()[1:]]
    assert [text for text in rows if f"| {text} |" not in page] == []
    commands = re.findall(r"^lockstep (study \w+) (.+?)(?:\s+#.*)?$", page, flags=re.M)
    assert len(commands) == 7
    for verb, words in commands:
        assert main([*verb.split(), "--help"]) == 0
        told = capsys.readouterr().out
        assert [word for word in words.split() if word.startswith("--") and word not in told] == []
