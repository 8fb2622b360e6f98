import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from PIL import Image

from lockstep.cli import main
from lockstep.errors import BadInput, MissingExtra
from lockstep.studies import paper, store, uav_paper
from lockstep.studies.aggregate import Unusable, gather
from lockstep.studies.figures import Request, draw
from lockstep.studies.figures.drawing import compose
from lockstep.studies.figures.looks import looks
from lockstep.studies.figures.page import stamp, style
from lockstep.studies.figures.spread import of_curve, of_mark
from lockstep.studies.flights import flights
from lockstep.studies.stats import smoothed
from lockstep.studies.study import Study
from tests.unit.studies import roots

FLIGHTS, PNG = ("flights",), ("png",)
SCRIPTED = Request(mode="heuristic")
DECLARED = """
from tests.unit.studies import roots


def study(smoke=False):
    return roots.tiny_study()
"""


OWN = """
from dataclasses import replace

from lockstep.run.config import preset
from lockstep.studies.study import Figure, Study, sweep


def study(smoke=False):
    base = preset("uav-mec", scenario="demo", learner="ab-mappo")
    base = replace(
        base,
        world=replace(base.world, n_users=4, n_uavs=2, n_slots=6),
        learner=replace(base.learner, lanes=2, steps=6, hidden=16),
        total_steps=36,
    )
    band = sweep(
        "band", {"AB": base}, seeds=(1, 2), axis="world.bandwidth_mhz", values=(30.0, 50.0)
    )
    shown = {"title": "", "x_label": "bandwidth (MHz)", "y_label": "energy (J)", "points": band}
    measured = ("world/weighted_energy_mu_avg",)
    return Study(
        name="mine",
        figures=(
            Figure(name="bars", kind="bars", metrics=measured, **shown),
            Figure(name="lines", kind="lines", metrics=measured, **shown),
            Figure(name="flown", kind="flights", metrics=(), **(shown | {"points": band[:1]})),
        ),
    )
"""


@pytest.fixture(scope="module")
def trained(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return roots.train(study, tmp_path_factory.mktemp("figures") / "tiny")


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "copy")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """The short version of the paper's study, with numbers that grow with x."""
    asked = uav_paper.study(smoke=True)
    root = tmp_path_factory.mktemp("figures") / "short"
    return asked, roots.fill(asked, root, roots.constant(lambda trial, metric: 1 + (trial.x or 0)))


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("declared") / "tiny_study.py"
    file.write_text(DECLARED)
    return file


@pytest.fixture(autouse=True)
def users_settings_stay() -> Iterator[None]:
    """No test and no figure leaves matplotlib's settings changed."""
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def lose(root: Path, study: Study, figure: str, point: int = 0) -> str:
    trial = study.figure(figure).points[point].trials[0]
    shutil.rmtree(store.trials_in(root) / trial.hash)
    return trial.hash


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def composed(study: Study, root: Path, name: str, **asked: object) -> Canvas:
    with style():
        canvas = compose(study.figure(name), gather(study, root, only=(name,)), Request(**asked))
    assert canvas is not None
    return canvas


def legend(canvas: Canvas) -> list[str]:
    return [text.get_text() for text in canvas.legends[0].get_texts()]


def test_every_figure_of_a_trained_study_is_drawn(study: Study, trained: Path, tmp_path: Path):
    made = draw(study, trained, tmp_path / "out")
    names = ("courses", "band", "clock", "flights")
    assert [file.name for file in made] == [f"{n}.{kind}" for n in names for kind in ("png", "pdf")]
    assert all(file.stat().st_size > 5_000 for file in made)


def test_a_study_that_the_verb_has_trained_is_drawn_aggregated_and_flown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mine.py").write_text(OWN)
    mine = [str(tmp_path / "mine.py"), f"--root={tmp_path / 'root'}"]
    assert main(["study", "figures", *mine]) == 2
    assert "there is no study in" in capsys.readouterr().err
    assert main(["study", "run", *mine, "--device", "cpu", "--finish", "--only", "bars"]) == 2
    assert "finish needs every trial" in capsys.readouterr().err
    assert main(["study", "run", *mine, "--device", "cpu", "--finish"]) == 0
    drawn = {file.name: digest(file) for file in (tmp_path / "root/figures").iterdir()}
    assert (tmp_path / "root/aggregate.json").is_file()
    assert main(["study", "aggregate", *mine, "--export", "csv", "marl-eval"]) == 0
    hashes = []
    for name in ("one", "two"):
        assert main(["study", "figures", *mine, f"--out={tmp_path / name}"]) == 0
        hashes.append({file.name: digest(file) for file in (tmp_path / name).iterdir()})
    assert set(hashes[0]) == {
        f"{n}.{k}" for n in ("bars", "lines", "flown") for k in ("png", "pdf")
    }
    assert hashes[0] == hashes[1] == drawn


def test_a_missing_input_is_listed_and_nothing_is_drawn(
    study: Study, copy: Path, declared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lost = lose(copy, study, "clock")
    out = tmp_path / "out"
    command = ["study", "figures", str(declared), f"--root={copy}", f"--out={out}"]
    assert main(command) == 2
    assert f"clock MU CPU K=4 at 0.5, seed 1 ({lost[:12]}): missing" in capsys.readouterr().err
    assert not out.exists()


def test_what_is_missing_is_left_out_with_a_message_if_that_is_asked_for(
    study: Study, copy: Path, declared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    for point in (0, 1):
        lose(copy, study, "clock", point)
    lose(copy, study, "band")
    out = tmp_path / "out"
    command = ["study", "figures", str(declared), f"--root={copy}", f"--out={out}"]
    assert main([*command, "--allow-missing"]) == 0
    assert "3 trials are left out" in caplog.text
    assert "clock is left out: no point of it has a result" in caplog.text
    assert {file.name for file in out.glob("*.png")} == {"courses.png", "band.png", "flights.png"}


def test_one_trial_that_is_left_out_is_told_as_one(
    study: Study, copy: Path, declared: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    lose(copy, study, "clock")
    words = [str(declared), f"--root={copy}", "--allow-missing"]
    assert main(["study", "figures", *words, f"--out={tmp_path}", "--only=clock"]) == 0
    assert "1 trial is left out:\n" in caplog.text
    assert main(["study", "aggregate", *words]) == 0
    assert "1 trial is left out; the file says which" in capsys.readouterr().out


def test_a_figure_says_how_many_of_its_points_are_left_out(study: Study, copy: Path):
    lose(copy, study, "band")
    found = gather(study, copy, only=("band",), allow_missing=True)
    with style():
        canvas = compose(study.figure("band"), found, Request(allow_missing=True))
    assert canvas is not None
    assert canvas.texts[0].get_text().endswith("2 seeds; 1 of 4 points left out")


def test_a_stale_input_is_refused(study: Study, copy: Path, tmp_path: Path):
    trial = study.figure("band").points[0].trials[0]
    lose(copy, study, "band")
    shutil.rmtree(store.runs_in(copy))
    roots.file(trial, copy, {roots.ENERGY: [1.0, 2.0, 3.0]}, code="older")
    with pytest.raises(Unusable, match=r"band K=10 at 30, seed 1 .*: stale"):
        draw(study, copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_equal_results_give_equal_bytes_whatever_the_users_settings_are(
    study: Study, trained: Path, tmp_path: Path
):
    first = draw(study, trained, tmp_path / "first", only=("band",))
    with matplotlib.rc_context({"font.size": 30, "axes.grid": False, "savefig.dpi": 30}):
        second = draw(study, trained, tmp_path / "second", only=("band",))
    assert list(map(digest, first)) == list(map(digest, second))


def test_another_process_without_a_display_draws_the_same_bytes_without_torch(
    short: tuple[Study, Path], tmp_path: Path
):
    study, root = short
    code = (
        "import sys; from lockstep.cli import main; "
        f"assert main(['study', 'figures', 'uav-paper', '--smoke', '--root={root}', "
        f"'--out={tmp_path}', '--only', 'fig3', 'fig6']) == 0; "
        "assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    other = {"PYTHONHASHSEED": "7", "MPLBACKEND": "tkagg", "HOME": str(tmp_path / "home")}
    here = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    subprocess.run([sys.executable, "-c", code], check=True, env=here | other)
    made = draw(study, root, tmp_path / "here", only=("fig3", "fig6"))
    assert [digest(tmp_path / file.name) for file in made] == list(map(digest, made))


def test_every_file_carries_the_digest_of_its_study(study: Study, trained: Path, tmp_path: Path):
    for file in draw(study, trained, tmp_path / "out", only=("band",)):
        if file.suffix == ".png":
            with Image.open(file) as picture:
                assert study.hash in picture.info["Description"]
        else:
            assert study.hash.encode() in file.read_bytes()
    assert composed(study, trained, "band").texts[1].get_text() == f"tiny · {study.hash[:12]}"
    assert stamp(roots.tiny_study(seeds=(1,))) != stamp(study)


def test_every_file_of_the_papers_study_is_small(short: tuple[Study, Path], tmp_path: Path):
    large = ("fig3", "fig13")
    made = draw(*short, tmp_path, Request(mode="heuristic", overlay_paper=True), only=large)
    assert {file.stem for file in made} == set(large)
    assert max(file.stat().st_size for file in made) < 200_000


def test_series_stand_in_the_order_of_their_numbers(study: Study, trained: Path):
    assert legend(composed(study, trained, "band")) == ["K=4", "K=10"]


def test_a_bar_stands_at_the_mean_with_an_error_bar_of_the_deviation(study: Study, trained: Path):
    axes = composed(study, trained, "band").axes[0]
    marks = gather(study, trained).marks("band", roots.ENERGY)
    heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx([mark.mean for mark in marks])
    assert len(axes.containers) == 2 * len(marks)  # a bar and an error bar each
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["30", "50"]


def test_error_bars_may_be_intervals_of_the_interquartile_mean(study: Study, trained: Path):
    mark = gather(study, trained).marks("band", roots.ENERGY)[0]
    assert of_mark(mark, "interval") == (mark.iqm, *mark.interval)
    canvas = composed(study, trained, "band", spread="interval")
    assert canvas.texts[0].get_text().startswith("interquartile mean and 95 %")


def test_a_curve_is_smoothed_and_begins_where_it_began(study: Study, trained: Path):
    mark = gather(study, trained).marks("courses", roots.JAIN)[0]
    assert of_curve(mark, "std").middle == pytest.approx(mark.curves.mean(axis=0))  # three updates
    long = np.arange(200.0).reshape(1, 200)
    assert smoothed(long)[0, :3].tolist() == [0.0, 0.5, 1.0]
    assert smoothed(long)[0, -1] == np.mean([196, 197, 198, 199])
    long[0, 100] = np.nan
    assert np.isnan(smoothed(long)).sum() == 1


def test_a_series_looks_the_same_in_every_figure(short: tuple[Study, Path]):
    found = looks(short[0])
    learners = [found[name] for name in uav_paper.LEARNERS]
    assert len({look.colour for look in learners}) == len(learners)
    with_twin, without = found["B=30MHz with DT"], found["B=30MHz w/o DT"]
    assert with_twin.colour == without.colour
    assert with_twin.line != without.line
    assert found["B=50MHz with DT"].colour != with_twin.colour


def test_the_papers_values_are_dashed(short: tuple[Study, Path]):
    study, root = short
    canvas = composed(study, root, "fig11", overlay_paper=True)
    assert legend(canvas)[-1] == "paper"
    dashed = [line for line in canvas.axes[0].lines if line.get_marker() == "None"]
    read = paper.MARKS["fig11", "world/weighted_energy_mu_avg", ""]
    drawn = [list(line.get_ydata()) for line in dashed]
    assert drawn == [list(read[name].values()) for name in ("K=50", "K=60")]
    assert {line.get_linestyle() for line in dashed} == {"--"}
    assert "paper" not in legend(composed(study, root, "fig11"))


def test_a_study_of_ones_own_has_nothing_of_the_paper(study: Study, trained: Path, tmp_path: Path):
    with pytest.raises(BadInput, match="needs figures with values of the paper, got band of tiny"):
        draw(study, trained, tmp_path, Request(overlay_paper=True), only=("band",))


def test_an_unknown_figure_or_format_is_refused(study: Study, trained: Path, tmp_path: Path):
    with pytest.raises(BadInput, match="did you mean 'band'"):
        draw(study, trained, tmp_path, only=("bands",))
    with pytest.raises(BadInput, match="no format of figures called 'gif'"):
        draw(study, trained, tmp_path, formats=("gif",))


def test_a_missing_matplotlib_is_answered_with_its_command(
    study: Study, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lockstep-rl\[study\]'"):
        draw(study, trained, tmp_path / "out")


def test_flights_of_equal_seeds_are_equal_files_and_of_others_not(
    study: Study, trained: Path, tmp_path: Path
):
    files = [
        draw(study, trained, tmp_path / str(i), Request(seed=seed), only=FLIGHTS, formats=PNG)[0]
        for i, seed in enumerate((5, 5, 6))
    ]
    first, again, other = map(digest, files)
    assert first == again != other


def test_trained_policies_fly_otherwise_than_the_script(
    study: Study, trained: Path, tmp_path: Path
):
    ways = {
        mode: digest(
            draw(study, trained, tmp_path / mode, Request(mode=mode), only=FLIGHTS, formats=PNG)[0]
        )
        for mode in ("trained", "heuristic")
    }
    assert ways["trained"] != ways["heuristic"]


def test_the_script_needs_no_training(study: Study, tmp_path: Path):
    made = draw(study, tmp_path / "none", tmp_path, SCRIPTED, only=FLIGHTS)
    assert [file.name for file in made] == ["flights.png", "flights.pdf"]


@pytest.mark.parametrize("absolute", [(), ("root",), ("out",)])
@pytest.mark.parametrize("inside", ["figures", "a/b", ""])
def test_what_is_flown_before_any_training_leaves_room_for_it(
    inside: str, absolute: tuple[str, ...], study: Study, tmp_path: Path, monkeypatch
):
    """However its folder is named."""
    monkeypatch.chdir(tmp_path)
    root, out = Path("root"), Path("root") / inside
    root = root.absolute() if "root" in absolute else root
    out = out.absolute() if "out" in absolute else out
    draw(study, root, out, SCRIPTED, only=FLIGHTS, formats=PNG)
    store.check_study(root, study)
    with pytest.raises(BadInput, match="holds a study of name 'tiny'"):
        store.check_study(root, roots.tiny_study("other"))


def test_a_folder_of_something_else_is_not_made_a_root(study: Study, tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="holds something else and no study"):
        draw(study, tmp_path, tmp_path / "figures", SCRIPTED, only=FLIGHTS, formats=PNG)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("seed", [-1, 2**63, 99999999999999999999])
def test_a_seed_of_flights_is_refused_as_a_seed_of_training_is(
    seed: int, declared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = [str(declared), f"--root={tmp_path / 'root'}", "--fig13-mode=heuristic"]
    assert main(["study", "figures", *words, f"--fig13-seed={seed}", "--only=flights"]) == 2
    said = f"--fig13-seed must be 0 or more and below 2^63, got {seed}\n"
    assert capsys.readouterr().err.endswith(said)
    assert not (tmp_path / "root").exists()


def test_a_file_is_no_folder_for_pictures(study: Study, trained: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"--out must be a folder, got .*file is a file"):
        draw(study, trained, tmp_path / "file")
    with pytest.raises(BadInput, match=r"--out must be .*file/in, of which .*file is a"):
        draw(study, trained, tmp_path / "file" / "in")
    with pytest.raises(BadInput, match="--formats must name one of png, pdf at least"):
        draw(study, trained, tmp_path / "out", formats=())
    with pytest.raises(BadInput, match=r"x{300}/in cannot be made: File name too long"):
        draw(study, trained, tmp_path / ("x" * 300) / "in")


def test_a_flight_whose_policy_is_gone_is_refused_or_left_out(
    study: Study, copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    shutil.rmtree(store.runs_in(copy))
    with pytest.raises(Unusable, match=r"courses K=4, seed 1: .* was not kept"):
        draw(study, copy, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    lenient = Request(allow_missing=True)
    draw(study, copy, tmp_path / "out", lenient, only=("band", "flights"), formats=PNG)
    assert "flights is left out" in caplog.text
    assert not (tmp_path / "out" / "flights.png").exists()


def test_flights_start_where_the_scene_says_and_differ_from_each_other(study: Study):
    trial = study.figure("flights").points[0].trials[0]
    area = replace(trial.config.world, width_m=500.0, height_m=500.0, n_users=60, n_slots=20)
    small = replace(trial, config=replace(trial.config, world=area))
    crowded, corner = flights(small, None, seed=1)
    assert crowded.mu_xy_m.shape == (20, 60, 2)
    assert not corner.uav_xy_m[0].any()
    assert corner.uav_xy_m[-1].any(axis=-1).all()  # the script leaves no UAV behind
    spread = [flight.mu_xy_m[0].std() for flight in (crowded, corner)]
    centres = np.array([[125.0, 125.0], [375.0, 350.0], [275.0, 100.0]])
    away = np.linalg.norm(crowded.mu_xy_m[0][:, None] - centres, axis=-1).min(axis=1)
    assert away.max() < 100.0
    assert spread[0] != spread[1]


def test_an_area_that_is_not_small_has_no_crowds(study: Study):
    trial = study.figure("flights").points[0].trials[0]
    assert "from random places" in flights(trial, None, seed=1)[0].title
