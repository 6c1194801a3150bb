"""The command: ready line, signals, parent's end, privacy of its output, input errors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

SIM = str(Path(sys.executable).with_name("breakeven-sim"))


def start(*args: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [SIM, "serve", "--listen", "127.0.0.1:0", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def test_ready_line_then_sigterm() -> None:
    """One line with the chosen port, says simulated; SIGTERM ends it with 0 and no other output."""
    process, line = start("--draft", "ngram", "--k", "5", "--model", "m", "--time-scale", "50")
    found = re.fullmatch(
        r"listening (http://127\.0\.0\.1:\d+) \(simulated engine preset=8b-h100 draft=ngram k=5 "
        r"seed=0 time_scale=50 model=m\)\n",
        line,
    )
    assert found is not None
    canary = "canary-5b1e"
    body = json.dumps({"prompt": canary, "max_tokens": 3, "echo": True}).encode()
    request = urllib.request.Request(
        found[1] + "/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        assert canary in answer.read().decode()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    # No log at all: so no body, id or header of a request in one.
    assert (out, err) == ("", "")


def test_exits_when_its_parent_is_gone() -> None:
    """A demo that is killed leaves no engine behind."""
    child = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([{SIM!r}, 'serve', '--listen', '127.0.0.1:0',"
        " '--exit-with-parent'], stdout=subprocess.PIPE, text=True)\n"
        "print(p.stdout.readline(), flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=60)
    url = done.stdout.split()[1]
    for _ in range(200):
        try:
            urllib.request.urlopen(url + "/health", timeout=5).close()
        except OSError:
            return
    pytest.fail(f"the simulator at {url} outlived its parent")


def test_a_dead_engine_is_exit_1() -> None:
    """`--fault die` ends the process as a crashed engine ends."""
    process, _ = start("--fault", "die:at=0.1")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "engine died" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--listen", "8000"], "--listen '8000': write HOST:PORT"),
        (["--draft", "eagle9"], "unknown draft 'eagle9'"),
        (["--k", "3"], "--k 3 with --draft none"),
        (["--draft", "eagle3", "--k", "0"], "--k 0: give at least 1"),
        (["--draft", "ngram", "--k-by-batch", "1-8"], "write LOW-HIGH:K rows"),
        (["--fault", "fire"], "unknown fault 'fire'"),
        (["--time-scale", "0"], "0"),
        (["--time-scale", "nan"], "nan is not finite"),
        (["--time-scale", "inf"], "inf is not finite"),
        (["--seed", "-1"], "-1 is not in the range"),
        (["--fault", "clock-step:by=nan"], "by=nan: give a finite number"),
    ],
)
def test_bad_flags_are_exit_2(args: list[str], message: str) -> None:
    """The message quotes the value and says the mend; nothing was served."""
    done = subprocess.run([SIM, "serve", *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--batches", "1.5"], "--batches 1.5: give whole numbers"),
        (["--rates", "1e300"], "give a lower rate or a shorter duration"),
        (["--rates", "2", "--prompt-sigma", "inf"], "inf is not finite"),
        (["--rates", "2", "--usd-per-hour", "nan"], "nan is not finite"),
        (["--rates", "2", "--seed", "-1"], "-1 is not in the range"),
    ],
)
def test_bad_sweeps_are_exit_2(args: list[str], message: str) -> None:
    """The same for the tables: no table from a number that cannot be."""
    done = subprocess.run([SIM, "sweep", *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_exit_2() -> None:
    """Named, with the mend."""
    process, line = start()
    port = re.findall(r":(\d+) ", line)[0]
    again = subprocess.run(
        [SIM, "serve", "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, timeout=60
    )
    process.terminate()
    process.communicate(timeout=20)
    assert again.returncode == 2
    assert "choose another port" in again.stderr


def test_custom_draft_files(tmp_path: Path) -> None:
    """A JSON file is a draft; a mistake in it names file, key, value and mend."""
    good = tmp_path / "mine.json"
    good.write_text('{"d_fix_ms": 1, "conditional": [0.5, 0.5]}')
    out = subprocess.run(
        [SIM, "sweep", "--arm", f"{good}:2", "--json"], capture_output=True, text=True, timeout=60
    )
    assert json.loads(out.stdout)["static"][0]["m"] == 1.75
    for text, message in (
        ("{", "not JSON"),
        ('{"d_fix_ms": 1}', "conditional=None: give a list of numbers in 0..1"),
        ('{"d_fix_ms": -1, "conditional": [0.5]}', "d_fix_ms=-1: give a number ≥ 0"),
        ('{"alpha": 0.7}', "unknown key 'alpha'"),
        ('{"d_fix_ms": 1, "conditional": [0.5], "mix": [{"share": 2}]}', "give rows"),
    ):
        good.write_text(text)
        bad = subprocess.run(
            [SIM, "sweep", "--arm", f"{good}:1"], capture_output=True, text=True, timeout=60
        )
        assert bad.returncode == 2
        assert str(good) in bad.stderr
        assert message in bad.stderr
