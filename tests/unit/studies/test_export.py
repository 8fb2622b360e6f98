import csv
import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from lockstep.cli import main
from lockstep.errors import BadInput
from lockstep.studies import store
from lockstep.studies.aggregate import Results, gather
from lockstep.studies.export import CURVES, RESULTS, export, marl_eval
from lockstep.studies.study import Study
from tests.unit.studies import roots


def read(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def climbing(trial, metric: str) -> list[float]:
    return [trial.seed + 0.25 * update for update in range(3)]


@pytest.fixture
def root(study: Study, tmp_path: Path) -> Path:
    return roots.fill(study, tmp_path / "tiny", climbing)


@pytest.fixture
def results(study: Study, root: Path) -> Results:
    return gather(study, root)


def test_a_csv_has_a_row_for_each_point_and_seed(results: Results, study: Study, tmp_path: Path):
    file, curves = export(results, tmp_path, ["csv"])
    rows = read(file)
    assert tuple(rows[0]) == RESULTS
    marks = [
        (f, m, mark) for f, ms in results.figures.items() for m, row in ms.items() for mark in row
    ]
    assert len(rows) == sum(len(mark.values) for _, _, mark in marks)
    first = next(row for row in rows if row["figure"] == "band")
    assert (first["series"], first["x"], first["seed"], first["value"]) == (
        "K=4",
        "30.0",
        "1",
        "1.25",
    )
    assert first["trial"] in study.distinct()
    table = read(curves)
    assert tuple(table[0]) == CURVES
    assert {row["figure"] for row in table} == {"courses"}
    assert [(row["step"], row["value"]) for row in table[:3]] == [
        *[("12", "1.0"), ("24", "1.25"), ("36", "1.5")]
    ]


def test_parquet_holds_the_same_with_types(results: Results, tmp_path: Path):
    (text, _), (binary, curves) = (export(results, tmp_path, [kind]) for kind in ("csv", "parquet"))
    table = pyarrow.parquet.read_table(binary)
    rows = read(text)
    assert table.column("value").to_pylist() == [float(row["value"]) for row in rows]
    assert str(table.schema.field("seed").type) == "int64"
    assert str(table.schema.field("x").type) == "double"
    assert pyarrow.parquet.read_table(curves).num_rows == 2 * 2 * 2 * 3


def test_equal_results_give_equal_files(results: Results, tmp_path: Path):
    formats = ["csv", "parquet", "marl-eval"]
    one, other = (export(results, tmp_path / name, formats) for name in ("one", "other"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


def test_marl_eval_finds_environment_task_algorithm_run_and_step(results: Results, tmp_path: Path):
    files = {file.stem: file for file in export(results, tmp_path, ["marl-eval"])}
    assert set(files) == {"courses", "band", "clock"}
    told = json.loads(files["band"].read_text())
    tasks = told["tiny/band"]
    assert list(tasks) == ["x=30", "x=50"]
    assert set(tasks["x=30"]) == {"K=4", "K=10"}
    run = tasks["x=30"]["K=4"]["seed_2"]
    assert list(run) == ["step_0", "step_1", "step_2", "absolute_metrics"]
    assert run["step_1"] == {"step_count": 24, "weighted_energy_mu_avg": [2.25]}
    assert run["absolute_metrics"] == {"weighted_energy_mu_avg": [2.25]}
    both = json.loads(files["courses"].read_text())["tiny/courses"]["all"]["K=4"]["seed_1"]
    assert set(both["absolute_metrics"]) == {"weighted_energy_mu_avg", "jain_fairness"}


def test_a_task_that_lacks_an_algorithm_is_left_out_of_marl_eval(study: Study, root: Path):
    lost = study.figure("band").points[0].trials[0]
    shutil.rmtree(store.trials_in(root) / lost.hash)
    results = gather(study, root, allow_missing=True)
    assert list(marl_eval(results, "band")["tiny/band"]) == ["x=50"]


def test_an_update_without_a_number_is_empty_in_csv_and_no_task_of_marl_eval(
    study: Study, tmp_path: Path
):
    root = roots.fill(study, tmp_path / "gap", lambda trial, metric: [None, 1.0, 2.0])
    results = gather(study, root)
    _, curves = export(results, tmp_path, ["csv"])
    assert read(curves)[0]["value"] == ""
    assert marl_eval(results, "courses") == {}


def test_the_verb_writes_what_is_asked_for(
    study: Study, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "mine.py"
    file.write_text(
        "from tests.unit.studies import roots\n\n\n"
        "def study(smoke=False):\n    return roots.tiny_study()\n"
    )
    command = ["study", "aggregate", str(file), f"--root={root}", "--export", "csv"]
    assert main(command) == 0
    printed = [Path(line) for line in capsys.readouterr().out.split()]
    assert [path.relative_to(root).as_posix() for path in printed] == [
        *["aggregate.json", "export/results.csv", "export/curves.csv"]
    ]
    assert all(path.is_file() for path in printed)
    assert main([*command[:-1], "xls"]) == 2
    assert "there is no export format called 'xls'" in capsys.readouterr().err


def test_an_unknown_format_is_refused(results: Results, tmp_path: Path):
    with pytest.raises(BadInput, match="did you mean 'parquet'"):
        export(results, tmp_path, ["parket"])
    assert not (tmp_path / "export").exists()
