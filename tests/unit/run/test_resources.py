import sys
import time

import pytest
import torch

from lockstep.run.resources import SAMPLES, Resources, gauge_for

CPU_KEYS = {"res/cpu_percent", "res/rss_mb", "res/system_memory_percent"}
GPU_KEYS = {"res/gpu_percent", "res/gpu_memory_mb", "res/gpu_percent_mean"}


class Ramp:
    """A GPU that is busier at each reading."""

    def __init__(self) -> None:
        self.readings = 0

    def read(self) -> tuple[float, float]:
        self.readings += 1
        return float(self.readings), 2e9


def test_a_busy_process_is_seen_to_be_busy():
    resources = Resources()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    busy = resources.sample()
    time.sleep(0.3)
    idle = resources.sample()
    assert set(busy) == CPU_KEYS
    assert busy["res/cpu_percent"] > idle["res/cpu_percent"]
    assert 10 < busy["res/rss_mb"] < 100_000
    assert 0 < busy["res/system_memory_percent"] <= 100


def test_the_mean_use_of_the_gpu_is_over_the_last_samples():
    resources = Resources(Ramp())
    samples = [resources.sample() for _ in range(SAMPLES + 50)]
    assert set(samples[0]) == CPU_KEYS | GPU_KEYS
    assert samples[1]["res/gpu_percent_mean"] == pytest.approx(1.5)
    assert samples[-1]["res/gpu_percent"] == SAMPLES + 50
    assert samples[-1]["res/gpu_percent_mean"] == pytest.approx(50 + (SAMPLES + 1) / 2)
    assert samples[-1]["res/gpu_memory_mb"] == 2000


def test_a_run_on_the_processor_has_no_gauge_and_no_warning(caplog: pytest.LogCaptureFixture):
    assert gauge_for("cpu") is None
    assert caplog.messages == []


def test_without_nvml_a_run_on_a_gpu_goes_on_and_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gauge_for("cuda") is None
    assert caplog.messages == [
        "the use of cuda is not measured: pynvml is not installed; "
        "run: pip install 'lockstep-rl[gpu]'"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU to be read")
def test_without_a_driver_a_run_goes_on_and_says_what_is_not_measured(
    caplog: pytest.LogCaptureFixture,
):
    assert gauge_for("cuda:0") is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the use of cuda:0 is not measured: ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_read_through_nvml():
    taken = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    sample = Resources(gauge_for(str(taken.device))).sample()
    assert set(sample) == CPU_KEYS | GPU_KEYS
    assert sample["res/gpu_memory_mb"] > 256
    assert 0 <= sample["res/gpu_percent"] <= 100
