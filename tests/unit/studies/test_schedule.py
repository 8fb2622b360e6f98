"""What is left of a study as jobs, and what follows from how they end."""

import json
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest

from lockstep.errors import BadInput, RunBusy
from lockstep.learners.config import LEARNERS
from lockstep.run import loop
from lockstep.run.config import TrainConfig
from lockstep.run.record import Run
from lockstep.studies import leavings, store, uav_paper, worker
from lockstep.studies.budget import need
from lockstep.studies.jobs import KILLED, Event, Exit, Job, Limits, Outcome
from lockstep.studies.packing import Pack, halves
from lockstep.studies.schedule import LOSSES, Compile, Device, Place, Scheduler, Settings, until
from lockstep.studies.study import Study, sweep
from lockstep.studies.worker import Order
from tests.unit.studies import roots


class Machine:
    """A pool whose jobs end as told, one after another: machines cannot be lost to order."""

    def __init__(
        self,
        ends: Iterable[int | None] = (),
        says: str | Iterable[str] = "",
        *,
        paused: bool = False,
        meanwhile: Callable[[Job], None] = lambda job: None,
    ) -> None:
        """`says` is what the jobs write, `meanwhile` what else they do before an end as told."""
        self.ends, self.paused, self.meanwhile = list(ends), paused, meanwhile
        self.says = repeat(says) if isinstance(says, str) else iter(says)
        self.started: list[Job] = []
        self.running: list[Job] = []

    def start(self, job: Job) -> None:
        self.started.append(job)
        self.running.append(job)

    def wait(self, timeout: float) -> list[Exit]:
        job = self.running.pop(0)
        code = self.ends.pop(0) if self.ends else worker.DONE
        with job.log.open("a") as log:
            log.write(next(self.says))
        if code == worker.DONE:
            code = worker.carry_out(Order.read(Path(job.command[-1])))
            return [Exit(job=job, code=code)]
        self.meanwhile(job)
        note = "its hour is over" if self.paused else "node-7 is gone" if code is None else ""
        return [Exit(job=job, code=code, note=note, paused=self.paused)]

    def stop(self, *, grace: float) -> list[Exit]:
        ended = [Exit(job=job, code=worker.STOPPED) for job in self.running]
        self.running.clear()
        return ended

    def close(self) -> None:
        pass


def carried_out(
    study: Study, root: Path, machine: Machine, *, slots: int = 1, **settings
) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    with Scheduler(study, root, Settings(**{"device": "cpu"} | settings)) as scheduler:
        place = Place(pool=machine, limits=Limits(slots=slots))
        return scheduler.run(scheduler.work(), place, on_event=events.append), events


def one_pack(study: Study) -> Study:
    """The points of a single pack: two users' bandwidths."""
    points = tuple(p for p in study.figure("band").points if p.series == "K=4")
    return Study(name="tiny", figures=(roots.figure("band", "bars", points, (roots.ENERGY,)),))


class Stopped(KeyboardInterrupt):
    """The end of a process that did not come to its own."""


def a_moment(config: TrainConfig, folder: Path) -> None:
    """One more update of a run, or its first one."""
    first = partial(loop.train, replace(config, checkpoint_every=1), folder)
    go = partial(loop.resume, folder, checkpoint_every=1) if folder.exists() else first

    def stop(progress: loop.Progress) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        go(on_update=stop)


def begun(root: Path, pack: Pack) -> None:
    """A run of the pack that stopped before its end."""
    a_moment(pack.config, store.runs_in(root) / pack.name)


def test_every_trial_is_trained_and_filed_once(study: Study, tmp_path: Path):
    outcome, events = carried_out(study, tmp_path / "root", Machine())
    assert outcome == Outcome()
    assert sorted(store.filed(tmp_path / "root")) == sorted(study.distinct())
    assert [event.kind for event in events].count("done") == 2
    with Scheduler(study, tmp_path / "root", Settings()) as scheduler:
        work = scheduler.work()
    assert (work.done, work.trials, work.packs) == (12, 0, ())


def test_only_the_trials_of_named_figures_are_trained(study: Study, tmp_path: Path):
    with Scheduler(study, tmp_path / "root", Settings(only=("clock",))) as scheduler:
        work = scheduler.work()
    clock = {trial.hash for trial in study.figure("clock").trials()}
    assert {trial.hash for pack in work.packs for trial in pack.trials} == clock


def test_a_finished_run_that_was_not_filed_is_filed_without_training(study: Study, root: Path):
    shutil.rmtree(store.trials_in(root))
    machine = Machine()
    outcome, _ = carried_out(study, root, machine)
    assert (outcome, machine.started) == (Outcome(), [])
    assert sorted(store.filed(root)) == sorted(study.distinct())


def test_a_run_that_was_begun_is_taken_up_as_it_is(study: Study, tmp_path: Path):
    """Also where packs would be made otherwise today."""
    root, study = tmp_path / "root", one_pack(study)
    with Scheduler(study, root, Settings()) as scheduler:
        (pack,) = scheduler.work().packs
        begun(root, pack)
    with Scheduler(study, root, Settings(max_members=1)) as scheduler:
        work = scheduler.work()
    assert (work.taken_up, [p.name for p in work.packs]) == (1, [pack.name])
    carried_out(study, root, Machine())
    history = Run.open(store.runs_in(root) / pack.name).manifest["history"]
    assert [(event["event"], event.get("step")) for event in history] == [
        ("start", None), ("resume", 12)
    ]  # fmt: skip


def test_a_run_of_which_most_trials_are_done_is_not_taken_up(study: Study, tmp_path: Path):
    root, study = tmp_path / "root", one_pack(study)
    with Scheduler(study, root, Settings()) as scheduler:
        (pack,) = scheduler.work().packs
        begun(root, pack)
    for trial in pack.trials[:2]:
        roots.file(trial, root, {roots.ENERGY: [1.0, 1.0, 1.0]})
    with Scheduler(study, root, Settings()) as scheduler:
        work = scheduler.work()
    assert (work.done, work.taken_up) == (2, 0)
    assert [len(p.trials) for p in work.packs] == [2]


@pytest.mark.parametrize("name", [store.SUMMARY, store.CURVES])
def test_a_damaged_result_is_trained_again(study: Study, root: Path, name: str):
    study = one_pack(study)
    trial = study.trials()[0]
    summary = store.read_trial(root, trial.hash)
    assert summary is not None
    file = store.trials_in(root) / trial.hash / name
    file.write_text(file.read_text()[:50])
    shutil.rmtree(store.runs_in(root) / summary.pack)
    machine = Machine()
    carried_out(study, root, machine)
    assert len(machine.started) == 1
    assert trial.hash in {sound.id for sound in store.sound_and_damaged(root)[0]}


def test_a_failing_pack_ends_the_study_with_its_name_code_and_log(study: Study, tmp_path: Path):
    machine = Machine([1], says="a line\nValueError: the last line\n")
    outcome, _ = carried_out(study, tmp_path / "root", machine)
    job = machine.started[0]
    assert outcome.failure is not None
    assert str(outcome.failure) == (
        f"{job.name} failed: ValueError: the last line (exit code 1); its log is {job.log}"
    )


def test_a_pack_whose_machine_is_lost_is_started_again_a_few_times(study: Study, tmp_path: Path):
    machine = Machine([None] * LOSSES)
    outcome, events = carried_out(one_pack(study), tmp_path / "root", machine)
    assert outcome == Outcome()
    again = [event for event in events if event.kind == "again"]
    assert [event.text for event in again] == [
        "its machine was lost (node-7 is gone); it goes on from its last checkpoint"
    ] * LOSSES

    machine = Machine([None] * (LOSSES + 1))
    outcome, _ = carried_out(one_pack(study), tmp_path / "other", machine)
    assert outcome.failure is not None
    assert outcome.failure.why == "came to no new checkpoint in 4 attempts: node-7 is gone"


@pytest.mark.parametrize(("code", "paused"), [(worker.STOPPED, True), (None, False)])
def test_a_pack_that_leads_on_is_started_again_as_often_as_it_takes(
    code: int | None, paused: bool, tmp_path: Path
):
    """As one that takes longer than the time that a cluster gives it."""
    root, study = tmp_path / "root", one_pack(roots.tiny_study(updates=LOSSES + 4))

    def learn(job: Job) -> None:
        order = Order.read(Path(job.command[-1]))
        a_moment(order.config, store.runs_in(root) / order.name)

    machine = Machine([code] * (LOSSES + 2), paused=paused, meanwhile=learn)
    outcome, events = carried_out(study, root, machine)
    assert outcome == Outcome()
    texts = [event.text for event in events if event.kind == "again"]
    told = "its hour is over" if paused else "its machine was lost (node-7 is gone)"
    assert texts == [f"{told}; it goes on from its last checkpoint"] * (LOSSES + 2)


def test_a_pack_whose_time_never_suffices_for_a_checkpoint_is_a_failure(
    study: Study, tmp_path: Path
):
    machine = Machine([worker.STOPPED] * 9, paused=True)
    outcome, _ = carried_out(one_pack(study), tmp_path / "root", machine)
    assert outcome.failure is not None
    assert outcome.failure.why == "came to no new checkpoint in 4 attempts: its hour is over"
    assert len(machine.started) == LOSSES + 1


@pytest.mark.parametrize("code", [KILLED, worker.OUT_OF_MEMORY])
def test_a_pack_that_does_not_fit_goes_first_with_fewer_beside_it_and_then_in_halves(
    code: int, study: Study, tmp_path: Path
):
    root = tmp_path / "root"
    machine = Machine([code, worker.DONE, code])
    outcome, events = carried_out(study, root, machine, slots=2)
    assert outcome == Outcome()
    texts = [event.text for event in events if event.kind == "again"]
    assert texts == [
        "memory ran out with 2 at once; half as many from now on",
        "memory ran out; its 8 trials start again in two packs",
    ]
    whole, _, same, *parts = machine.started
    assert whole.name == same.name
    assert len(parts) == 2
    assert sorted(store.filed(root)) == sorted(study.distinct())
    assert (store.too_large_in(root) / whole.name).is_dir()


def test_words_about_memory_in_the_log_count_as_well(study: Study, tmp_path: Path):
    says = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    machine = Machine([-6], says=says)
    outcome, events = carried_out(one_pack(study), tmp_path / "root", machine)
    assert outcome == Outcome()
    assert any("memory ran out" in event.text for event in events)


def test_words_about_memory_in_the_log_of_an_earlier_attempt_do_not_count(
    study: Study, tmp_path: Path
):
    says = ["CUDA out of memory\n", "", "a bug\n"]
    machine = Machine([worker.OUT_OF_MEMORY, worker.DONE, 1], says=says)
    outcome, _ = carried_out(study, tmp_path / "root", machine, slots=2)
    first, _, second = machine.started
    assert (first.name, first.log) != (second.name, second.log)
    assert second.log.name == f"{first.name}.2.log"
    assert outcome.failure is not None
    assert outcome.failure.why == "failed: a bug"
    assert outcome.failure.log == second.log


def test_words_about_memory_of_a_job_that_was_stopped_or_refused_do_not_count(
    study: Study, tmp_path: Path
):
    for code, why in ((worker.STOPPED, "was stopped by somebody else"), (worker.REFUSED, "failed")):
        machine = Machine([code], says="checkpoint after one was out of memory\n")
        outcome, _ = carried_out(one_pack(study), tmp_path / str(code), machine)
        assert outcome.failure is not None
        assert outcome.failure.why.startswith(why)


def test_a_pack_that_did_not_fit_is_not_tried_whole_again(study: Study, tmp_path: Path):
    root, study = tmp_path / "root", one_pack(study)
    with Scheduler(study, root, Settings()) as scheduler:
        (pack,) = scheduler.work().packs
        (store.too_large_in(root) / pack.name).mkdir(parents=True)
        assert [p.name for p in scheduler.work().packs] == [half.name for half in halves(pack)]


def test_a_run_that_did_not_fit_is_set_aside_without_its_checkpoints(study: Study, tmp_path: Path):
    root, study = tmp_path / "root", one_pack(study)
    with Scheduler(study, root, Settings()) as scheduler:
        (pack,) = scheduler.work().packs
    begun(root, pack)
    outcome, _ = carried_out(study, root, Machine([KILLED]))
    assert outcome == Outcome()
    aside = store.too_large_in(root) / pack.name
    assert (aside / "config.json").is_file()
    assert not (aside / "checkpoints").exists()


def test_a_single_trial_that_does_not_fit_is_a_failure(study: Study, tmp_path: Path):
    machine = Machine([KILLED])
    outcome, _ = carried_out(study, tmp_path / "root", machine, max_members=1)
    assert outcome.failure is not None
    assert outcome.failure.why.startswith("has one trial and does not fit into memory")


def test_a_pack_that_ends_well_without_results_is_a_failure(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when sources are changed while the study runs: its trials get other names."""
    monkeypatch.setattr(worker, "leave", lambda *_, **__: [])
    outcome, _ = carried_out(one_pack(study), tmp_path / "root", Machine())
    assert outcome.failure is not None
    assert "4 of its 4 trials have no result: the code or the study has changed" in str(outcome)


def test_jobs_are_told_where_how_and_what_to_keep(study: Study, tmp_path: Path):
    settings = Settings(
        device="cuda", threads=2, checkpoint_every=7, source="mine.py", keep="policies"
    )
    with Scheduler(study, tmp_path / "root", settings) as scheduler:
        work = scheduler.work()
        jobs = scheduler.jobs(work)
    assert len(jobs) == len(work.packs) == 2
    assert all(job.log.parent == scheduler.logs for job in jobs)
    orders = [json_of(job) for job in jobs]
    for pack, order in zip(work.packs, orders, strict=True):
        assert (order["config"]["device"], order["config"]["threads"]) == ("cuda", 2)
        assert order["config"]["checkpoint_every"] == 7
        assert (order["source"], order["keep"]) == ("mine.py", "policies")
        assert order["policies"] == [trial.hash for trial in pack.trials]


@pytest.mark.parametrize(("which", "compiled"), [("off", []), ("on", [48, 3]), ("large", [48])])
def test_packs_that_take_a_gpu_long_are_compiled(
    which: Compile, compiled: list[int], tmp_path: Path
):
    crowd = uav_paper.trained("ab-mappo", steps=80_000)
    points = (
        *sweep("many", {"AB": crowd}, seeds=range(48)),
        *sweep("few", {"B": uav_paper.trained("b-mappo", steps=80_000)}, seeds=range(3)),
    )
    shown = roots.figure("one", "curves", points, (roots.ENERGY,))
    study = Study(name="c", figures=(shown,))
    with Scheduler(study, tmp_path / "root", Settings(compile=which)) as scheduler:
        configs = [json_of(job)["config"] for job in scheduler.jobs(scheduler.work())]
    assert [len(c["seeds"]) for c in configs if c["compile"] == "on"] == compiled


def test_only_the_trials_of_named_learners_are_trained(tmp_path: Path):
    short = uav_paper.study(smoke=True)
    with Scheduler(short, tmp_path / "root", Settings(learners=("maddpg",))) as scheduler:
        packs = scheduler.work().packs
    assert {pack.config.algorithm for pack in packs} == {"maddpg"}


def test_time_may_have_begun_before_it_is_asked_for():
    now = time.monotonic()
    assert until(5.0, lambda: False, since=now - 6.0)()
    assert not until(5.0, lambda: False, since=now)()
    assert not until(0.0, lambda: False, since=now - 6.0)()


def test_every_launch_has_a_folder_of_logs_of_its_own(study: Study, tmp_path: Path):
    logs = {Scheduler(study, tmp_path / "root", Settings()).logs for _ in range(20)}
    assert len(logs) == 20


def test_a_pack_is_heavy_beside_smaller_ones(study: Study, tmp_path: Path):
    """Whatever its learner makes of each step: room is what heavy packs lack."""
    idle = replace(LEARNERS["randomized"], lanes=2, steps=6)
    config = replace(roots.tiny_config(n_users=40), learner=idle, algorithm="randomized")
    crowd = sweep("crowd", {"R": config}, seeds=(1, 2, 3))
    mixed = Study(
        name="m",
        figures=(*study.figures, roots.figure("crowd", "curves", crowd, (roots.ENERGY,))),
    )
    with Scheduler(mixed, tmp_path / "root", Settings(max_members=6)) as scheduler:
        work = scheduler.work()
        jobs = scheduler.jobs(work)
    sizes = {job.name: pack.size for job, pack in zip(jobs, work.packs, strict=True)}
    assert max(sizes.values()) == 3 * 42
    assert [job.name for job in jobs if job.heavy] == [n for n, s in sizes.items() if s > 3 * 21]
    assert not jobs[0].heavy  # the costliest is a small one


def test_a_pack_that_ran_alone_is_not_tried_again_whole(study: Study, tmp_path: Path):
    """However many there might have been beside it."""
    machine = Machine([KILLED])
    outcome, events = carried_out(one_pack(study), tmp_path / "root", machine, slots=8)
    assert outcome == Outcome()
    texts = [event.text for event in events if event.kind == "again"]
    assert texts == ["memory ran out; its 4 trials start again in two packs"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_members_with_a_replay_need_room_on_the_disk_and_in_memory(
    device: Device, study: Study, tmp_path: Path
):
    off_policy = replace(LEARNERS["maddpg"], lanes=2, steps=6)
    config = replace(study.trials()[0].config, learner=off_policy, algorithm="maddpg")
    points = sweep("one", {"M": config, "A": roots.tiny_config()}, seeds=(1, 2))
    mixed = Study(name="m", figures=(roots.figure("one", "curves", points, (roots.ENERGY,)),))
    settings = Settings(device=device, checkpoint_every=10)
    with Scheduler(mixed, tmp_path / "root", settings) as scheduler:
        work = scheduler.work()
        jobs = {job.name.split("-")[2]: job for job in scheduler.jobs(work)}
        sizes = {pack.name.split("-")[2]: pack.size for pack in work.packs}
    assert {name: job.room for name, job in jobs.items()} == {"maddpg": 6e9, "ab": 0.0}
    assert jobs["maddpg"].memory == need(device, agents=sizes["maddpg"], replays=2)
    assert jobs["ab"].memory == need(device, agents=sizes["ab"])
    assert jobs["maddpg"].heavy
    assert json_of(jobs["maddpg"])["config"]["checkpoint_every"] == 40
    assert json_of(jobs["ab"])["config"]["checkpoint_every"] == 10


def test_a_second_scheduler_is_refused_in_one_sentence(study: Study, tmp_path: Path):
    second = Scheduler(study, tmp_path / "root", Settings())
    busy = pytest.raises(RunBusy, match=r"root is being written by process \d+ on host .*")
    with Scheduler(study, tmp_path / "root", Settings()), busy:
        second.__enter__()
    with Scheduler(study, tmp_path / "root", Settings()):
        pass


def test_a_root_or_logs_that_cannot_be_made_are_refused_in_one_sentence(
    study: Study, tmp_path: Path
):
    with pytest.raises(BadInput, match=r"x{300} cannot be made: File name too long$"):
        Scheduler(study, tmp_path / ("x" * 300), Settings()).__enter__()
    with Scheduler(study, tmp_path / "root", Settings()) as scheduler:
        work = scheduler.work()
        store.logs_in(scheduler.root).touch()
        with pytest.raises(BadInput, match=r"root/logs/\S+ cannot be made: Not a directory$"):
            scheduler.jobs(work)


def test_a_root_of_another_study_is_left_alone(root: Path, study: Study):
    before = sorted(file.name for file in root.rglob("*"))
    with pytest.raises(BadInput, match="holds a study of name 'tiny', and 'other' was asked for"):
        Scheduler(replace(study, name="other"), root, Settings()).__enter__()
    assert sorted(file.name for file in root.rglob("*")) == before


def test_a_root_that_was_copied_from_another_machine_goes_on(study: Study, tmp_path: Path):
    """Its lock, its heartbeats and its orders are those of processes that are not here."""
    there, study = tmp_path / "there", one_pack(study)
    with Scheduler(study, there, Settings()) as scheduler:
        (pack,) = scheduler.work().packs
        begun(there, pack)
        here = Path(shutil.copytree(there, tmp_path / "here"))
    shutil.rmtree(there)
    beat = store.runs_in(here) / pack.name / "heartbeat.json"
    beat.write_text(beat.read_text().replace('"host": "', '"host": "not-'))
    machine = Machine()
    outcome, _ = carried_out(study, here, machine)
    assert outcome == Outcome()
    assert [job.name for job in machine.started] == [pack.name]
    assert sorted(store.filed(here)) == sorted(study.distinct())


def test_results_alone_are_enough_to_go_on_elsewhere(study: Study, root: Path, tmp_path: Path):
    other = tmp_path / "other"
    for name in ("study.json", "trials"):
        from_ = root / name
        copy = shutil.copytree if from_.is_dir() else shutil.copy
        other.mkdir(exist_ok=True)
        copy(from_, other / name)
    with Scheduler(study, other, Settings()) as scheduler:
        assert scheduler.work().done == 12


def test_settings_refuse_nothings():
    with pytest.raises(ValueError, match="max_members must be at least 1, got 0"):
        Settings(max_members=0)


def test_policies_of_flights_are_there_when_a_study_is_done(study: Study, tmp_path: Path):
    root = tmp_path / "root"
    carried_out(study, root, Machine())
    for trial in study.figure("flights").trials():
        assert (store.trials_in(root) / trial.hash / leavings.POLICY / "config.json").is_file()
    for run in store.runs_in(root).iterdir():
        assert not list(run.glob("checkpoints/*.pt"))


def json_of(job: Job) -> dict:
    return json.loads(Path(job.command[-1]).read_text())
