"""The relay beside nginx (buffering off) and vllm-router, in one run: cost, delay, memory, stamps.

Everything is printed as a figure and a ratio to nginx of the same round; medians of the rounds.
nginx comes from Debian (`apt-get install nginx`, tried when it is missing and we are root),
vllm-router from PyPI into a venv under the temporary folder; a peer that cannot be had is left out.
Engine and clients are in C (_proxy_ends.c; gcc comes from Debian likewise).
CPU is the process's own time on a core (/proc/PID/task/*/schedstat), so that other load on the
machine shows little; delays and stamps do show it: run this on a quiet machine.

How the interpreter was compiled counts: one without profile-guided optimisation (pyenv's default)
is a third slower than Debian's and than that of the container images in deploy/. To measure with
another: `make bench PYTHON=/usr/bin/python3 VENV=.venv-debian`.

BENCH_ROUNDS (3) and BENCH_SECONDS (5, a measurement) set its length, BENCH_PARTS which parts are
measured: "cpu,delay,hold,stamps,scrape", all by default; hold is disconnects, slow reader, memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import _proxy_load as load
from benchmarks._host import stolen_s

from breakeven import __version__

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "5"))
PARTS = os.environ.get("BENCH_PARTS", "cpu,delay,hold,stamps,scrape").split(",")
VLLM_ROUTER = "vllm-router==0.1.17"
PY = sys.executable
BIN = Path(PY).parent

NGINX = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 20000; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_max_body_size 200m;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1; proxy_buffering off;
      proxy_request_buffering off; proxy_set_header Connection ""; proxy_read_timeout 300s; }}
  }}
}}
"""


class Peer:
    """A proxy under test: a child process and the port it listens on."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, admin: int = 0):
        self.name = name
        self.process = process
        self.port = port
        self.admin = admin

    def pids(self) -> list[int]:
        """The process and its children (nginx's worker)."""
        found = [self.process.pid]
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            if parent in found:
                found.append(int(path.parent.name))
        return found

    def cpu_s(self) -> float:
        """Seconds on a core so far, all threads."""
        total = 0
        for pid in self.pids():
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(path.read_text().split()[0])
                except OSError:
                    continue
        return total / 1e9

    def rss_mb(self) -> float:
        """Resident memory, MB."""
        pages = 0
        for pid in self.pids():
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    def end(self) -> None:
        """Ends it, and waits."""
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    """A port that was free a moment ago, for peers that cannot choose one."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(port: int, seconds: float = 20.0) -> bool:
    """Until somebody listens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return True
    return False


def start_engine(folder: Path, *how: str) -> tuple[subprocess.Popen[bytes], int]:
    """The load's engine and its port; "spin" is `how` it may run."""
    file = folder / "engine.port"
    file.unlink(missing_ok=True)
    process = subprocess.Popen([load.ends(), "engine", str(file), *how])
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    return process, int(file.read_text())


def start_ours(engine: int, stamps: str, folder: Path, *recorded: str) -> Peer:
    """breakeven-proxy, or the one with a notebook."""
    if recorded:
        command = [PY, "-m", "benchmarks._proxy_recorded", f"http://127.0.0.1:{engine}", stamps,
                   *recorded]  # fmt: skip
    else:
        config = folder / "proxy.yaml"
        config.write_text("admission: {max_inflight: 10000, max_queue: 0}\n")
        command = [str(BIN / "breakeven-proxy"), "serve", "--upstream",
                   f"http://127.0.0.1:{engine}", "--listen", "127.0.0.1:0", "--admin",
                   "127.0.0.1:0", "--stamps", stamps, "--config", str(config)]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    words = process.stdout.readline().decode().split()
    port, admin = (int(words[i].rsplit(":", 1)[1]) for i in (1, 3))
    return Peer(f"ours {stamps}", process, port, admin)


def start_nginx(engine: int, folder: Path) -> Peer | None:
    """nginx with buffering off; installed when it is missing and we are root."""
    if shutil.which("nginx") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "nginx"]
        subprocess.run(["apt-get", "update", "-qq"], check=False, stdout=subprocess.DEVNULL)
        subprocess.run(install, check=False, stdout=subprocess.DEVNULL)
    if shutil.which("nginx") is None:
        return None
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, engine=engine, port=port))
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(config)],
                               stderr=subprocess.DEVNULL)  # fmt: skip
    return Peer("nginx", process, port) if wait_for(port) else None


def start_router(engine: int) -> Peer | None:
    """vllm-router, from a venv of its own."""
    home = Path(tempfile.gettempdir()) / "breakeven-bench-vllm-router"
    command = home / "bin" / "vllm-router"
    if not command.exists():
        venv.create(home, with_pip=True)
        install = [home / "bin" / "pip", "install", "-q", VLLM_ROUTER]
        if subprocess.run(install, check=False, capture_output=True).returncode:
            return None
    port = free_port()
    process = subprocess.Popen(
        [command, "--host", "127.0.0.1", "--port", str(port), "--worker-urls",
         f"http://127.0.0.1:{engine}", "--policy", "round_robin", "--log-level", "error",
         "--prometheus-port", str(free_port())],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return Peer("vllm-router", process, port) if wait_for(port, 40) else None


def quantile(values: list[float], q: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


Figures = dict[str, dict[str, list[float]]]


def note(figures: Figures, what: str, peer: str, value: float) -> None:
    """One round's value."""
    figures.setdefault(what, {}).setdefault(peer, []).append(value)


def measure_round(peers: list[Peer], figures: Figures) -> None:
    """One round of every peer, one after another."""
    for peer in peers:
        each, delays = load.paced(peer.port, 200, 20, SECONDS, peer.cpu_s)
        note(figures, "CPU per event, 200 x 50/s, µs", peer.name, each)
        note(figures, "delay p50 at 10,000 ev/s, µs", peer.name, quantile(delays, 0.5))
        note(figures, "delay p99 at 10,000 ev/s, µs", peer.name, quantile(delays, 0.99))
    for peer in peers if "delay" in PARTS else ():
        _, delays = load.paced(peer.port, 20, 20, SECONDS, peer.cpu_s)
        note(figures, "delay p50 at 1,000 ev/s, µs", peer.name, quantile(delays, 0.5))
        note(figures, "delay p99 at 1,000 ev/s, µs", peer.name, quantile(delays, 0.99))
    for peer in peers:
        before = peer.cpu_s()
        count = load.closed_loop(peer.port, 16, SECONDS / 2)
        spent = peer.cpu_s() - before
        note(figures, "CPU per request, µs", peer.name, spent / max(count, 1) * 1e6)


def print_table(figures: Figures, names: list[str]) -> None:
    """Medians, and the median of the rounds' ratios to nginx."""
    print(f"{'median of ' + str(ROUNDS) + ' rounds':34}" + "".join(f"{n:>22}" for n in names))
    for what, by_peer in figures.items():
        cells = []
        for name in names:
            values = by_peer.get(name, [])
            if not values:
                cells.append("-")
                continue
            cell = f"{statistics.median(values):.1f}"
            base = by_peer.get("nginx")
            if base and name != "nginx":
                ratio = statistics.median(v / b for v, b in zip(values, base, strict=False))
                cell += f" ({ratio:.2f}x)"
            cells.append(cell)
        print(f"{what:34}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def memory(peer: Peer, streams: int) -> float:
    """RSS with that many streams open, MB."""
    socks = []
    for _ in range(streams):
        sock = socket.create_connection(("127.0.0.1", peer.port))
        sock.send(load.request(1, 20, hold=True))
        socks.append(sock)
    for sock in socks:
        sock.recv(4096)
    found = peer.rss_mb()
    for sock in socks:
        sock.close()
    return found


def closings(engine: int) -> dict[str, object]:
    """What the engine noted: when streams were closed on it, bytes it got rid of."""
    with socket.create_connection(("127.0.0.1", engine)) as sock:
        sock.send(b"GET /closed HTTP/1.1\r\nHost: a\r\n\r\n")
        data = b""
        while b"}" not in data:
            data += sock.recv(65536)
    found: dict[str, object] = json.loads(data.partition(b"\r\n\r\n")[2])
    return found


def disconnects(peer: Peer, engine: int) -> dict[str, float]:
    """ms from a client's close to the engine seeing it, by phase."""
    phases = {
        "before the head": load.request(1, silent=True),
        "in a long gap": load.request(1, 20, hold=True),
        "mid-stream": load.request(100000, 20),
    }
    found = {}
    for phase, ask in phases.items():
        already = len(closings(engine)["closed"])  # type: ignore[arg-type]
        sock = socket.create_connection(("127.0.0.1", peer.port))
        sock.send(ask)
        time.sleep(0.3)
        closed = time.time()
        sock.close()
        seen: list[float] = []
        while len(seen) <= already and time.time() < closed + 5:
            time.sleep(0.02)
            seen = closings(engine)["closed"]  # type: ignore[assignment]
        found[phase] = (seen[-1] - closed) * 1000 if len(seen) > already else float("inf")
    return found


def slow_reader(peer: Peer, engine: int) -> tuple[float, float]:
    """A 97 MB stream nobody reads for 4 s: MB taken from the engine, MB of growth."""
    before_bytes, before = float(closings(engine)["taken"]), peer.rss_mb()  # type: ignore[arg-type]
    sock = socket.create_connection(("127.0.0.1", peer.port))
    sock.send(load.request(1, pad=97_000_000))
    time.sleep(4)
    taken = (float(closings(engine)["taken"]) - before_bytes) / 1e6  # type: ignore[arg-type]
    grown = peer.rss_mb() - before
    sock.close()
    return taken, grown


@contextlib.contextmanager
def engine_on_its_own_core(folder: Path) -> Iterator[int]:
    """Port of an engine that never rests: what delays its sends is no error of a stamp.

    The clients of that measurement run on the other core, when the proxy does not want it.
    """
    engine, port = start_engine(folder, "spin")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(engine.pid, cores[:1])
        os.sched_setaffinity(0, cores[1:])  # inherited by the proxy that is started
    try:
        yield port
    finally:
        os.sched_setaffinity(0, cores)
        engine.terminate()
        engine.wait()


def stamp_errors(engine: int, folder: Path) -> None:
    """Gap error against the engine's own send times; share of merged reads."""
    out = folder / "notebook.json"
    cases = [("loop", 20, 0), ("kernel", 20, 0), ("kernel", 20, 5), ("loop", 20, 5),
             ("loop", 5, 0), ("kernel", 5, 0)]  # fmt: skip
    print(
        "\ngap error against the engine's send times, reads of one event, streams together, "
        "engine on a core of its own"
    )
    for stamps, gap_ms, stall_ms in cases:
        peer = start_ours(engine, stamps, folder, str(stall_ms), str(out))
        streams = 200 if gap_ms == 20 else 50
        stolen = stolen_s()
        load.paced(peer.port, streams, gap_ms, SECONDS, peer.cpu_s, idle=True)
        stolen = stolen_s() - stolen
        peer.end()
        found = json.loads(out.read_text())
        errors = found["errors_us"]
        share = found["merged"] / max(found["reads"], 1)
        print(f"  {stamps:7} {streams:3} streams, {gap_ms:2} ms gaps, stall {stall_ms} ms:"
              f"  p50 {quantile(errors, 0.5):8.1f}  p90 {quantile(errors, 0.9):8.1f}"
              f"  p99 {quantile(errors, 0.99):8.1f}  max {max(errors, default=0):9.1f} µs"
              f"   merged reads {share:.2%}   stolen by the host {stolen:.2f} CPU s",
              flush=True)  # fmt: skip


def scrape_stall() -> None:
    """Longest slice of a page, by stepping its coroutine; CPU time of this thread."""
    from breakeven.settings import parse_settings
    from breakeven_proxy.config import ProxySettings
    from breakeven_proxy.observe.bound import bounds_of
    from breakeven_proxy.observe.meter import Meter
    from breakeven_proxy.observe.metrics import Metrics

    cohorts: dict[str, dict[str, str]] = {f"c{i}": {} for i in range(7)}
    arms = {name: {"url": "http://127.0.0.1:1"} for name in ("baseline", "draft")}
    settings = parse_settings(
        {"arms": arms, "cohorts": cohorts}, file="benchmark", model=ProxySettings
    )
    metrics = Metrics(bounds_of(settings.slo.slo()))
    Meter(metrics, settings.slo.slo(), settings.epsilon_s, settings.arms, list(settings.cohorts))
    worst, total = float("inf"), float("inf")
    for _ in range(7):
        page, slices = metrics.page(), []
        while True:
            begun = time.thread_time()
            try:
                page.send(None)
            except StopIteration:
                break
            slices.append(time.thread_time() - begun)
        worst, total = min(worst, max(slices)), min(total, sum(slices))
    print(f"\nscrape of {metrics.series()} samples: longest slice {worst * 1000:.2f} ms,"
          f" whole page {total * 1000:.1f} ms of CPU (best of 7)")  # fmt: skip


def header(names: list[str]) -> None:
    """Where and with what this was measured."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "unknown",
    )  # fmt: skip
    nginx = (
        subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False).stderr
        if shutil.which("nginx")
        else "no nginx"
    )
    print(f"{time.strftime('%Y-%m-%d %H:%M')}  {os.cpu_count()} cores {model}, Linux "
          f"{platform.release()}, load {os.getloadavg()[0]:.1f}; Python "
          f"{platform.python_version()} ({Path(PY).resolve()}), breakeven {__version__}, "
          f"{nginx.strip()}, peers: {', '.join(names)}")  # fmt: skip


def main() -> int:
    """Prints all figures; 0, or 1 when nothing could be measured."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine, port = start_engine(folder)
        made: list[Callable[[], Peer | None]] = [
            lambda: start_nginx(port, folder),
            lambda: start_ours(port, "loop", folder),
            lambda: start_ours(port, "kernel", folder),
            lambda: start_router(port),
        ]
        peers = [peer for make in made if (peer := make()) is not None]
        names = [peer.name for peer in peers]
        try:
            header(names)
            figures: Figures = {}
            for _ in range(ROUNDS if "cpu" in PARTS or "delay" in PARTS else 0):
                measure_round(peers, figures)
            print_table(figures, names)
            print()
            held = peers if "hold" in PARTS else []
            for peer in held:
                found = {k: f"{v:.0f} ms" for k, v in disconnects(peer, port).items()}
                print(f"{peer.name:12} disconnect seen: {found}", flush=True)
            for peer in held:
                taken, grown = slow_reader(peer, port)
                print(f"{peer.name:12} 97 MB unread for 4 s: {taken:.1f} MB taken, "
                      f"RSS +{grown:.1f} MB", flush=True)  # fmt: skip
            for peer in held:
                rss = memory(peer, 5000)
                print(f"{peer.name:12} RSS at 5,000 streams: {rss:.0f} MB", flush=True)
            if "stamps" in PARTS:
                for peer in peers:
                    peer.end()
                peers = []
                with engine_on_its_own_core(folder) as spinning:
                    stamp_errors(spinning, folder)
            if "scrape" in PARTS:
                scrape_stall()
        finally:
            for peer in peers:
                peer.end()
            engine.terminate()
            engine.wait()
            load.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
