"""Runs the real `vllm serve` on loopback for the engine tests, and always ends it.

Every server is a process group of its own (API server, EngineCore, worker), ended by its id
whatever happens in the tests; if the test process itself is killed, the kernel sends the API server
SIGTERM. Logs go to the test session's temporary folder: vLLM logs no prompts as started here (a
test looks for a canary), pytest keeps the folders of the last three sessions and deletes older
ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("BREAKEVEN_VLLM_VENV", ROOT / ".venv-vllm"))
MODELS = VENV / "models"
TARGET = MODELS / "smollm2-135m"
DRAFT = MODELS / "smollm2-drop2"
MODEL_NAME = "smol"

READY_DEADLINE_S = 600.0
"""A first start compiles thousands of modules and takes 60 s on two free cores; 30 s afterwards."""
END_DEADLINE_S = 20.0
POLL_S = 0.2

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CACHE_ROOT": str(VENV / "cache"),
    "PYTHONPATH": str(Path(__file__).parent),  # oracle_proposer
    # One thread that may run on any core: two servers, proxy and generator share two cores, and
    # vLLM's default pins the threads of every server to the same one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # vLLM warns that speculation on CPU is slow without it; it comes with the wheel.
    "LD_PRELOAD": str(VENV / "lib" / "libiomp5.so"),
}
SERVE = (
    "--served-model-name", MODEL_NAME,
    "--host", "127.0.0.1",
    "--dtype", "float32",  # two arms' greedy answers are compared: bfloat16 has many near-ties
    "--max-model-len", "1024",
    "--max-num-seqs", "8",
    "--enforce-eager",
    "--no-enable-prefix-caching",  # every run computes the same prefill
)  # fmt: skip
K = 4
"""Draft tokens per cycle of every candidate."""


@dataclass(frozen=True, slots=True)
class Arm:
    """How one arm is started: the speculation config, and environment of its own."""

    name: str
    speculative: Mapping[str, object] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags beside SERVE. The block needs speculation: vLLM refuses its flag without."""
        if self.speculative is None:
            return ()
        config = json.dumps({**self.speculative, "num_speculative_tokens": K})
        return ("--speculative-config", config, "--per-request-spec-decode-metrics", "detailed")


BASELINE = "baseline"
ARMS = {
    BASELINE: Arm(BASELINE),
    "ngram": Arm("ngram", {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}),
    "draft": Arm("draft", {"method": "draft_model", "model": str(DRAFT)}),
    "custom": Arm(
        "custom",
        {"method": "custom_class", "model": "oracle_proposer.OracleProposer"},
        {"ORACLE_ALPHA": "0.7", "ORACLE_DRAFT_MS": "2", "ORACLE_SEED": "1"},
    ),
}
CANDIDATES = tuple(name for name in ARMS if name != BASELINE)


def free_port() -> int:
    """A port nobody listens on now: vLLM does not print the one it gets for 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    """One `vllm serve`. `start` returns at once, `wait_ready` when /health answers."""

    def __init__(
        self, arm: Arm, log_folder: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.arm = arm
        self.port = free_port()
        self.log = log_folder / f"vllm-{arm.name}.log"
        self._environ = {**arm.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.ready = False

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Id of the API server, which is the id of the process group."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [
            str(VENV / "bin" / "vllm"),
            "serve",
            str(TARGET),
            *SERVE,
            "--port",
            str(self.port),
        ]
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "TERM", *command]
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self.arm.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**inherited, **QUIET, **self._environ},
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Returns when /health is 200; fails with the end of the log when it never gets there."""
        deadline = time.monotonic() + READY_DEADLINE_S
        while time.monotonic() < deadline:
            if self.healthy():
                self.ready = True
                return
            if not self.runs(POLL_S):
                break
        tail = self.log.read_text("utf-8", "replace").splitlines()[-40:]
        raise AssertionError(f"{self.name} did not get ready:\n" + "\n".join(tail))

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def runs(self, within_s: float) -> bool:
        """False as soon as the API server has ended; waits `within_s` for that."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        return self._process.poll() is None

    def end(self) -> None:
        """SIGTERM to the group, SIGKILL to what is left; returns when all have gone."""
        self.ready = False
        if self._process is None:
            return
        for signal_number, deadline_s in ((signal.SIGTERM, END_DEADLINE_S), (signal.SIGKILL, 60.0)):
            deadline = time.monotonic() + deadline_s
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal_number)
            while time.monotonic() < deadline:
                self.runs(POLL_S)
                if not processes_of(self.pid):
                    self._process = None
                    return
        raise AssertionError(f"{self.name}: processes {processes_of(self.pid)} outlived SIGKILL")

    def kill_core(self) -> None:
        """SIGKILL to the EngineCore process alone, as the kernel's memory killer would."""
        cores = [pid for pid, title in processes_of(self.pid).items() if "EngineCore" in title]
        assert len(cores) == 1, f"expected one EngineCore, found {processes_of(self.pid)}"
        os.kill(cores[0], signal.SIGKILL)


def processes_of(group: int) -> dict[int, str]:
    """Living processes of a process group: id -> title. Zombies are dead."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                title = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(folder.name)] = title.decode("utf-8", "replace").strip()
    return found


class Engines:
    """The baseline, and one candidate beside it at a time: two servers at most, 3.5 GB each."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._running: dict[str, Engine] = {}
        self.environ: dict[str, dict[str, str]] = {}

    def begin(self, name: str) -> Engine:
        """Starts the arm's server if it does not run; another candidate is ended first."""
        if name not in self._running:
            for other in [n for n in self._running if n != BASELINE and name != BASELINE]:
                self._running.pop(other).end()
            engine = Engine(ARMS[name], self._log_folder, self.environ.get(name))
            self._running[name] = engine
            engine.start()
        return self._running[name]

    def get(self, name: str) -> Engine:
        """The arm's server, ready."""
        engine = self.begin(name)
        if not engine.ready:
            engine.wait_ready()
        return engine

    def end(self) -> None:
        for engine in self._running.values():
            engine.end()
        self._running.clear()


@contextlib.contextmanager
def engines(log_folder: Path) -> Iterator[Engines]:
    """All servers of a session, ended at its end."""
    held = Engines(log_folder)
    try:
        yield held
    finally:
        held.end()


def lines(rows: Sequence[object]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)
