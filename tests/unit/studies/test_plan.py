"""What is to be trained, and how long that takes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.errors import BadInput
from lockstep.studies.packing import cost, packs
from lockstep.studies.plan import CPU, GPU, GPU_COMPILED, plan
from lockstep.studies.uav_paper import study as uav_paper
from tests.unit.studies import roots


def test_621_runs_are_planned_in_under_two_seconds():
    """As a user does: in a process of its own, without the checks of types that tests add."""
    command = "study plan uav-paper --grid paper --rate 30000"
    code = f"""
import time
from lockstep.cli import main
assert main({command.split()}) == 0
print(time.process_time())
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, text=True, capture_output=True)
    *_, last, seconds = ran.stdout.splitlines()
    assert last.startswith("621 runs, 546 distinct, 0 done; 61 packs, 43,680,000 steps to train;")
    assert float(seconds) < 2.0


def test_the_plan_counts_runs_distinct_trials_steps_and_time():
    made = plan(uav_paper(), rate=40_000.0)
    assert (made.runs, made.distinct) == (555, 474)
    assert sum(len(pack.trials) for pack in made.packs) == 474
    assert made.steps == 474 * 80_000
    assert made.seconds == pytest.approx(474 * 2.0)


def test_without_a_rate_and_without_results_the_time_is_not_known(tmp_path: Path):
    assert plan(roots.tiny_study(), root=tmp_path).seconds is None


def test_what_is_typical_agrees_with_what_was_measured_of_single_packs():
    """Of AB-MAPPO in the paper's scene; docs/benchmarks.md has the measurements."""
    base = uav_paper(seeds=tuple(range(64))).figure("fig4").points[0].trials
    for members, graphs, compiled in (
        (1, 3_609, 10_915),
        (8, 20_555, 57_163),
        (32, 47_499, 104_185),
        (64, 61_468, 122_884),
    ):
        (pack,) = packs(base[:members], max_members=64)
        assert pack.steps / GPU.seconds(pack) == pytest.approx(graphs, rel=0.15)
        assert pack.steps / GPU_COMPILED.seconds(pack) == pytest.approx(compiled, rel=0.15)
    (alone,) = packs(base[:1])
    assert alone.steps / CPU.seconds(alone) == pytest.approx(85, rel=0.1)


def test_a_plan_without_a_rate_says_what_is_typical(capsys: pytest.CaptureFixture[str]):
    assert main(["study", "plan", "uav-paper"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "60 packs, 37,920,000 steps to train; time about " in last
    times = r"[\d.]+ min on one H200, [\d.]+ min on one H200 with --compile on, [\d.]+ d on one CPU"
    assert re.search(rf"about {times} thread \(typical", last)


def test_the_plan_names_the_figures_that_show_a_sweep(capsys: pytest.CaptureFixture[str]):
    assert main(["study", "plan", "uav-paper"]) == 0
    rows = [re.findall(r"[^│┃]+", line) for line in capsys.readouterr().out.splitlines()]
    rows = [[cell.strip() for cell in row] for row in rows]
    assert ["sweep", "figures", "runs"] in rows
    assert ["base", "fig3 fig4 fig5 fig13", "12"] in rows
    assert ["all", "", "555"] in rows


def test_what_has_a_result_is_left_out(tmp_path: Path):
    study = roots.tiny_study()
    done = list(study.distinct().values())[:3]
    roots.fill(study, tmp_path, roots.constant(lambda trial, metric: 1.0), done)
    made = plan(study, root=tmp_path)
    assert made.done == 3
    names = {trial.hash for pack in made.packs for trial in pack.trials}
    assert names == set(study.distinct()) - {trial.hash for trial in done}


def test_the_rate_is_measured_from_finished_packs(tmp_path: Path):
    study = roots.tiny_study()
    trial = next(iter(study.distinct().values()))
    roots.fill(study, tmp_path, roots.constant(lambda trial, metric: 1.0), [trial])
    made = plan(study, root=tmp_path)  # a pack of that one trial took a second
    assert made.rate is not None
    assert made.rate.source == "measured from 1 finished pack"
    whole = sum(pack.cost for pack in made.packs)
    assert made.seconds == pytest.approx(whole / cost(trial.config))


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(BadInput, match=r"rate must be positive, got 0\.0"):
        plan(roots.tiny_study(), rate=0.0)


def test_a_plan_as_json_names_every_trial_to_be_trained():
    made = plan(roots.tiny_study(), max_members=2)
    told = made.to_json()
    assert told["runs"] == 16
    named = [name for pack in told["packs"] for name in pack["trials"]]
    assert sorted(named) == sorted(roots.tiny_study().distinct())


def test_planning_imports_no_torch():
    code = "import sys; from lockstep.studies.plan import plan; from lockstep.studies import "
    check = "catalogue; plan(catalogue.load('uav-paper')); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code + check], check=True)
