"""Engines that the grid starts: a launched command, its readiness, memory and end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from breakeven.errors import InputError, NotReadyError
from breakeven_loadgen.grid.config import ArmConfig, SimArm
from breakeven_loadgen.grid.engines import Engines, command_of, peak_memory

SIM = str(Path(sys.executable).with_name("breakeven-sim"))
LAUNCH = ArmConfig(launch=(SIM, "serve", "--listen", "127.0.0.1:{port}", "--exit-with-parent"))


def test_the_port_goes_into_the_command() -> None:
    """{port} is replaced wherever it stands."""
    arm = ArmConfig(launch=("vllm", "serve", "m", "--port", "{port}"))
    assert command_of(arm, 8123, None) == ["vllm", "serve", "m", "--port", "8123"]
    sim = command_of(ArmConfig(sim=SimArm(draft="ngram", k=4)), 8123, "m")
    assert sim[-4:] == ["--k", "4", "--model", "m"]


def test_a_launched_arm_is_ready_measured_and_gone(tmp_path: Path) -> None:
    """Readiness time and peak memory are known, and its process ends with the grid."""
    with Engines(tmp_path, None) as engines:
        engine = engines.ready("arm", LAUNCH)
        assert engine.process is not None
        assert engine.ready_s is not None
        assert engine.ready_s > 0
        assert (engine.memory_peak_bytes() or 0) > 10**6
        assert engines.ready("arm", LAUNCH) is engine
        engines.release("arm", LAUNCH)  # arms that share hardware stop after their run
        assert engine.process.returncode is not None
        again = engines.ready("arm", LAUNCH)
        assert again is not engine
    assert again.process is not None
    assert again.process.returncode is not None
    assert (tmp_path / "arm.log").exists()


def test_an_engine_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    """Nothing to start, nothing to stop, nothing to measure."""
    with Engines(tmp_path, None) as engines:
        engine = engines.ready("arm", ArmConfig(url="http://127.0.0.1:9"))
        assert engine.url == "http://127.0.0.1:9"
        assert engine.ready_s is None
        assert engine.memory_peak_bytes() is None


def test_a_command_that_does_not_exist_is_the_users_error(tmp_path: Path) -> None:
    """Exit 2 names it."""
    with Engines(tmp_path, None) as engines, pytest.raises(InputError, match="cannot be started"):
        engines.ready("arm", ArmConfig(launch=("no-such-command-here",)))


def test_a_command_that_ends_at_once_is_not_ready(tmp_path: Path) -> None:
    """Exit 3 names its log."""
    arm = ArmConfig(launch=(sys.executable, "-c", "print('boom')"))
    with Engines(tmp_path, None) as engines, pytest.raises(NotReadyError, match=r"arm\.log"):
        engines.ready("arm", arm)
    assert "boom" in (tmp_path / "arm.log").read_text()


def test_peak_memory_is_that_of_the_family() -> None:
    """Our own is more than a megabyte; a process that is gone has none."""
    assert (peak_memory(os.getpid()) or 0) > 10**6
    assert peak_memory(2**22 - 1) is None
