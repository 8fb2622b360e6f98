"""World, learner and collector of one configuration, joined so that `update` is one call."""

import ctypes
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from lockstep.collect.synchronous import Collector, Script
from lockstep.core import fused
from lockstep.core.company import ALONE, Company
from lockstep.core.streams import Streams, lane_keys
from lockstep.core.world import World
from lockstep.errors import BadInput, known
from lockstep.learners import registry as learners
from lockstep.run.config import TrainConfig
from lockstep.run.episodes import Episodes
from lockstep.run.metrics import per_member
from lockstep.run.shares import own_lanes, own_state, reported, whole_state
from lockstep.run.stopwatch import CpuWatch, CudaWatch
from lockstep.worlds import registry as worlds

_COMPILERS = ("c++", "g++", "clang++")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h


@runtime_checkable
class Beat(Protocol):
    """Whoever wants to know that an update goes on, as it goes on."""

    def enter(self, phase: str) -> None:
        """A phase begins: collect or learn."""

    def step(self) -> None:
        """One environment step of every lane has been collected."""


class Trainer:
    """One update at a time: collect a rollout, audit it, learn from it.

    `seconds` holds where the last update's time went: `collect` and `learn`; on the CPU also `env`,
    `act` and `value`, the parts of collecting. In a `company` of several processes this one steps
    and learns from its share of the lanes, and what it tells is of all of them.
    """

    def __init__(
        self, config: TrainConfig, *, pulse: Beat | None = None, company: Company = ALONE
    ) -> None:
        self.config = resolve(config)
        self.company = company
        device = company.device(self.config.device)
        lanes = self.config.members * self.config.learner.lanes // company.size
        compile_ = self.config.compile == "on"
        self.world = worlds.build(self.config.world, lanes=lanes, device=device, compile=compile_)
        graphs = device.type == "cuda" and self.config.graphs and self.world.spec.capturable
        self.learner = learners.build(
            self.config.learner,
            self.world.spec,
            seeds=self.config.seeds,
            vary=self.config.varied("learner"),
            device=device,
            compile=compile_,
            graphs=graphs and company.size == 1,  # a graph cannot hold what processes exchange
            accumulate=self.config.accumulate,
            company=company,
        )
        keys = lane_keys(self.config.seeds, lanes=self.config.learner.lanes, device=device)
        keys = own_lanes(keys, company, members=self.config.members)
        own_numbers(self.world, self.config)
        self.world.reset(keys)
        self.collector = Collector(
            self.world, self.learner, Streams(keys), compile=compile_, graphs=graphs
        )
        self.rollout = self.learner.rollout()
        self._teacher = _teacher(self.config)
        self.episodes = Episodes(
            self.world.spec,
            members=self.config.members,
            lanes=self.config.learner.lanes,
            device=device,
        )
        self.updates = 0
        self.seconds: dict[str, float] = {}
        self._pulse = pulse
        self._watch = CudaWatch() if device.type == "cuda" else CpuWatch()

    def collect(self) -> dict[str, Tensor]:
        """Fills the rollout; `world/<name>` and `episode/<name>` to `[P]`."""
        self._begin("collect")
        script = self._teacher if self.updates < self.config.lessons else None
        with arithmetic(self.config):
            self.collector.collect(self.rollout, self._hear, script=script)
            self._watch.split("")
            members = self.config.members
            every = reported(self.rollout, self.company, members=members)
            found = per_member(every.metrics, self.world.spec, members=members)
            found |= self.episodes.add(every)
        self._watch.end()
        return found

    def learn(self) -> dict[str, Tensor]:
        """Learns from the rollout; the learner's statistics as `train/<name>` to `[P]`."""
        self._begin("learn")
        with arithmetic(self.config):
            stats = self.learner.update(self.rollout)
        self._watch.end()
        self.updates += 1
        self.seconds = self._watch.read()
        return dict(stats.scalars)

    def update(self) -> dict[str, Tensor]:
        """Collects and learns once; every metric of the update, by member `[P]`."""
        return self.collect() | self.learn()

    def _begin(self, phase: str) -> None:
        if self._pulse is not None:
            self._pulse.enter(phase)
        self._watch.begin(phase)

    def _hear(self, what: str) -> None:
        if what == "step":
            if self._pulse is not None:
                self._pulse.step()
        else:
            self._watch.split(what)

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the run's future, and the episodes its metrics look back on.

        Of several processes all must ask; the first gets the lanes of all.
        """
        learner, lanes = self.learner.state_dict(), self.collector.state_dict()
        members = self.config.members
        return {
            "learner": learner,
            "collector": whole_state(learner, lanes, self.company, members=members),
            "episodes": self.episodes.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], *, updates: int) -> None:
        """Takes up a saved future after `updates` updates."""
        self.learner.load_state_dict(state["learner"])
        members = self.config.members
        self.collector.load_state_dict(own_state(state["collector"], self.company, members=members))
        self.episodes.load_state_dict(state["episodes"])
        self.updates = updates


def _teacher(config: TrainConfig) -> Script | None:
    """The heuristic that decides in the lessons, if there are any."""
    if not config.lessons:
        return None
    rules = worlds.heuristics(config.world.name)
    return rules[known(f"heuristic of {config.world.name}", config.teacher, rules)]


def own_numbers(world: World, config: TrainConfig) -> None:
    """Gives every member's lanes of `world` the scenario numbers that are that member's own."""
    for name, values in config.varied("world").items():
        number = torch.tensor(values, dtype=torch.float32, device=world.device)  # [P]
        world.set(name, number.repeat_interleave(world.lanes // config.members))


def resolve(config: TrainConfig) -> TrainConfig:
    """The configuration with `auto` replaced by what this machine has; BadInput if it lacks it."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise BadInput("device is cuda, but no GPU is available here; use --device cpu")
    compile_: Literal["on", "off"] | str = config.compile
    if compile_ != "off":
        found = _can_compile(device)
        if compile_ == "on" and not found:
            raise BadInput("compile is on, but no C++ compiler was found; use --compile off")
        compile_ = "on" if found else "off"
    return replace(config, device=device, compile=compile_)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the CPU threads of the arithmetic, and puts them back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def arithmetic(config: TrainConfig) -> Iterator[None]:
    """Sets threads, precision and determinism as asked, and puts them back afterwards."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    products = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32  # a switch of its own, and on by default
    tf32 = getattr(config.learner, "precision", "fp32") == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    _keep_freed_memory()
    if config.deterministic:
        # cuBLAS is deterministic only with a fixed workspace, chosen before its first call.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    try:
        with threads(config.threads), fused.switched(config.kernels):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.use_deterministic_algorithms(deterministic)


@cache
def _keep_freed_memory() -> None:
    """Lets the C library reuse freed blocks of up to 32 MiB instead of handing them back.

    An update allocates and frees hundreds of them, and fresh pages cost some 5 % of training on a
    CPU; set before the process starts (see the Makefile) the same settings gain twice that. Only
    glibc knows them; elsewhere nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 * 2**20)
        mallopt(_M_TRIM_THRESHOLD, -1)  # never
        mallopt(_M_TOP_PAD, 64 * 2**20)


def _can_compile(device: str) -> bool:
    if device == "cuda":
        return importlib.util.find_spec("triton") is not None
    return any(shutil.which(name) for name in _COMPILERS)
