"""Starts and ends the demo's processes: two simulated arms, the gateway, Prometheus, Alertmanager.

All on 127.0.0.1; every process is ended by its own id. Needs /usr/bin/prometheus and
/usr/bin/prometheus-alertmanager (Debian: apt-get install prometheus prometheus-alertmanager).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import yaml

from .prom import Prometheus
from .shorten import shorten
from .webhook import Webhook

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
START_DEADLINE_S = 60.0
# The scrape may take as long: a busy machine must not make gaps in the series.
SCRAPE_S = 4.0
URL = re.compile(r"http://127\.0\.0\.1:\d+")
# The end-to-end bound lies between the baseline's short and long answers and above both of the
# draft's, far from each: verdicts follow from the engine, not from the machine's noise.
SLO = {"ttft_s": 5, "tpot_s": 0.5, "gap_p99_s": 5, "e2e_s": 2.5, "objective": 0.9}
USD_PER_HOUR = 3.0
DRAFT = "draft-k4"
ARMS = ("baseline", DRAFT)
# A tenth of the model's speed: steps of about 70 ms, so that a shared machine's noise stays small.
ENGINE = (
    "serve", "--preset", "8b-h100", "--time-scale", "0.1", "--enable-force-include-usage",
    "--per-request-spec-decode-metrics", "summary", "--exit-with-parent",
)  # fmt: skip
# Tokens of the long prompts and answers, and how many arrivals the trace has.
LONG_PROMPT, LONG_ANSWER, ROWS = 2560, 48, 2500
GOOD_DRAFT = '{"d_fix_ms": 0.5, "h_ms": 0.3, "conditional": [0.8, 0.8, 0.8, 0.8]}'
SLOW_DRAFT = '{"d_fix_ms": 12.0, "h_ms": 0.3, "conditional": [0.8, 0.8, 0.8, 0.8]}'


class MissingProgramError(RuntimeError):
    """A program that the demo needs is not installed; the message says how to get it."""


def program(name: str, package: str) -> str:
    """Path of a program.

    Raises:
        MissingProgramError: it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise MissingProgramError(f"{name} is not installed: apt-get install {package}")
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def wait_for(what: str, check: Callable[[], bool], deadline_s: float) -> float:
    """Asks until `check` is true; the seconds it took.

    Raises:
        TimeoutError: it did not become true.
    """
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > deadline_s:
            raise TimeoutError(f"waited {deadline_s:g} s in vain: {what}")
        time.sleep(0.25)
    return time.monotonic() - began


class Stack:
    """The running demo. Use as a context manager; `folder` keeps configs and logs.

    Attributes:
        window_s: what [5m] of the rules is here. proxy_url, admin_url: the gateway.
        prometheus: its client. webhook: what arrived.
    """

    def __init__(self, folder: Path, *, windows: float = 3.0, holds: float = 40.0) -> None:
        self.folder = folder
        self._windows, self._holds = windows, holds
        self.window_s = 300 / windows  # what [5m] of the rules is
        self._stack = contextlib.ExitStack()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._drains: dict[str, threading.Thread] = {}
        self._draft_port = free_port()
        self.loadgen_port = free_port()

    def __enter__(self) -> Stack:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything, newest first."""
        for name in reversed(list(self._children)):
            self.end(name)
        self._stack.close()

    def _start(self) -> None:
        prometheus = program("prometheus", "prometheus")
        alertmanager = program("prometheus-alertmanager", "prometheus-alertmanager")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.webhook = self._stack.enter_context(Webhook())
        baseline = self.spawn("baseline", BIN / "breakeven-sim", *ENGINE, "--listen", "127.0.0.1:0")
        self.draft("good")
        config = self._write("proxy.yaml", yaml.safe_dump(self._proxy_config(baseline[0])))
        self.proxy_url, self.admin_url = self.spawn(
            "proxy", BIN / "breakeven-proxy", "serve", "--config", str(config)
        )[:2]
        self._start_alertmanager(alertmanager)
        self._start_prometheus(prometheus)

    def _proxy_config(self, baseline_url: str) -> dict[str, object]:
        common = {"exclusive": True, "fleet_cost_usd_per_hour": USD_PER_HOUR}
        return {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "arms": {
                "baseline": {"url": baseline_url, "role": "baseline", "k": 0, **common},
                DRAFT: {
                    "url": f"http://127.0.0.1:{self._draft_port}",
                    "role": "candidate",
                    "k": 4,
                    **common,
                },
            },
            "allow_arm_header": True,
            # The guard would take the slow draft out before the alert could be seen.
            "routing": {"policy": "single", "arm": "baseline", "guard": {"enabled": False}},
            "slo": SLO,
            "load_classes": {"low_max": 4, "normal_max": 12},
            "scrape_interval_s": 1.0,
        }

    def _start_alertmanager(self, path: str) -> None:
        port = free_port()
        made = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text("utf-8"))
        for receiver in made["receivers"]:
            for hook in receiver["webhook_configs"]:
                hook["url"] = f"{self.webhook.url}/{receiver['name']}"
        for route in (made["route"], *made["route"]["routes"]):
            route |= {"group_wait": "1s", "group_interval": "1s"}
        config = self._write("alertmanager.yml", yaml.safe_dump(made))
        self._alertmanager = f"127.0.0.1:{port}"
        self.spawn(
            "alertmanager", path, f"--config.file={config}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=", f"--storage.path={self.folder / 'alertmanager'}",
            listening=False,
        )  # fmt: skip

    def _start_prometheus(self, path: str) -> None:
        port = free_port()
        rules = []
        for source in sorted((ROOT / "deploy/prometheus/rules").glob("*.yml")):
            text = shorten(source.read_text("utf-8"), windows=self._windows, holds=self._holds)
            rules.append(str(self._write(f"rules-{source.name}", text)))
        admin = self.admin_url.removeprefix("http://")
        config = self._write(
            "prometheus.yml",
            yaml.safe_dump(
                {
                    "global": {
                        "scrape_interval": f"{SCRAPE_S:g}s",
                        "evaluation_interval": "1s",
                    },
                    "rule_files": rules,
                    "alerting": {
                        "alertmanagers": [{"static_configs": [{"targets": [self._alertmanager]}]}]
                    },
                    "scrape_configs": [
                        {"job_name": "breakeven", "static_configs": [{"targets": [admin]}]},
                        {
                            "job_name": "loadgen",
                            "static_configs": [{"targets": [f"127.0.0.1:{self.loadgen_port}"]}],
                        },
                    ],
                }
            ),
        )
        self.prometheus = Prometheus(f"http://127.0.0.1:{port}")
        self.spawn(
            "prometheus", path, f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}", listening=False,
        )  # fmt: skip
        wait_for("prometheus is ready", self.prometheus.ready, START_DEADLINE_S)
        wait_for(
            "the proxy is scraped",
            lambda: bool(self.prometheus.now("breakeven_build_info")),
            START_DEADLINE_S,
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, "utf-8")
        return path

    def draft(self, kind: str) -> None:
        """The draft arm, anew on its port: "good" pays, "slow" has a draft 24 times as slow."""
        self.end("draft")
        text = {"good": GOOD_DRAFT, "slow": SLOW_DRAFT}[kind]
        path = self._write(f"{kind}-draft.json", text)
        listen = f"127.0.0.1:{self._draft_port}"
        self.spawn(
            "draft",
            BIN / "breakeven-sim",
            *ENGINE,
            "--listen",
            listen,
            "--draft",
            str(path),
            "--k",
            "4",
        )

    def spawn(self, name: str, *command: str | Path, listening: bool = True) -> list[str]:
        """Starts a process; its URLs, once it printed them, where `listening`.

        Raises:
            RuntimeError: it ended, or printed no address in time; the message holds its log.
        """
        log = self.folder / f"{name}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if listening else sink,
                stderr=sink,
            )
        self._children[name] = process
        if not listening:
            return []
        assert process.stdout is not None
        timer = threading.Timer(START_DEADLINE_S, process.kill)
        timer.start()
        try:
            for line in iter(process.stdout.readline, b""):
                if urls := URL.findall(line.decode("utf-8", "replace")):
                    threading.Thread(target=_drain, args=(process.stdout, log), daemon=True).start()
                    return urls
        finally:
            timer.cancel()
        process.stdout.close()
        raise RuntimeError(f"{name} did not start: {log.read_text('utf-8', 'replace')[-2000:]}")

    def end(self, name: str) -> None:
        """SIGTERM by pid, SIGKILL after 15 s; nothing where it does not run."""
        process = self._children.pop(name, None)
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if drain := self._drains.pop(name, None):
            drain.join()

    def _trace(self) -> Path:
        """Evenly spaced arrivals: every third answer is long, every twelfth prompt, too.

        A long prompt's prefill holds everybody's next step up for about half a second, so that the
        p99 of the burst gaps is the engine's doing and not the machine's noise.
        """
        path = self.folder / "trace.jsonl"
        if not path.exists():
            rest = {"cohort": "other", "task": "other", "lang": "other"}
            rest |= {"sampling": "greedy", "stream": True}
            lines = [{"breakeven_trace": 1, "block": {"unit": "tokens", "size": 512}}]
            for i in range(ROWS):
                prompt = LONG_PROMPT if i % 12 == 11 else 64
                answer = LONG_ANSWER if i % 3 == 2 else 12
                lines.append({"t": float(i), "in": prompt, "out": answer} | rest)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        return path

    def load(
        self, arm: str, rate: float, duration_s: float, out: Path, *, extra: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """A replay against one arm through the gateway, running in the background."""
        goodput = "ttft:{ttft_s}s,tpot:{tpot_s}s,gap_p99:{gap_p99_s}s,e2e:{e2e_s}s".format(**SLO)
        listen = ("--metrics-listen", f"127.0.0.1:{self.loadgen_port}") if arm == DRAFT else ()
        name = f"loadgen-{out.name}"
        with (self.folder / f"{name}.log").open("ab") as sink:
            process = subprocess.Popen(
                [
                    str(BIN / "loadgen"), "replay", str(self._trace()),
                    "--arrival", "trace",
                    "--rate", f"{rate:g}", "--duration", f"{duration_s:g}s",
                    "--url", self.proxy_url,
                    "--model", "simulated-model",
                    "--header", f"x-breakeven-arm: {arm}", "--arm", arm, "--out", str(out),
                    "--goodput", goodput, "--usd-per-hour", f"{USD_PER_HOUR:g}", *listen, *extra,
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
            )  # fmt: skip
        self._children[name] = process
        return process


def _drain(pipe: IO[bytes], log: Path) -> None:
    with pipe, log.open("ab") as sink:
        for line in iter(pipe.readline, b""):
            sink.write(line)


@contextlib.contextmanager
def loads(
    stack: Stack, rate: float, duration_s: float, folder: Path, name: str
) -> Iterator[list[Path]]:
    """Both arms under one offered rate for the block, `duration_s` at most; stopped at its end."""
    outs = [folder / f"{name}-{arm}" for arm in ARMS]
    running = [stack.load(arm, rate, duration_s, out) for arm, out in zip(ARMS, outs, strict=True)]
    try:
        yield outs
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
        for process in running:
            try:
                process.wait(120)  # it writes its results first
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
