"""The generator's report.html in a real browser: headless Chromium, light and dark."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.target import Call, Target, good, scripted

from breakeven_loadgen.config import ReplayConfig
from breakeven_loadgen.replay.recover import load
from breakeven_loadgen.replay.run import replay
from breakeven_loadgen.report.page import html_page

pytestmark = pytest.mark.ops
SCHEMES = {"light": [], "dark": ["--blink-settings=preferredColorScheme=0"]}


async def bursts(call: Call, target: Target) -> None:
    await good(call, target, per_event=1 + call.number % 3, gap_s=0.002)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small run."""
    out = tmp_path_factory.mktemp("page") / "out"
    with scripted(bursts) as target:
        config = ReplayConfig(
            trace="synthetic:in=4,out=12", url=target.url, out=str(out), rate=60.0, requests=60,
            metrics_url=(target.url,), goodput="ttft:500ms,tpot:30ms", usd_per_hour=3.0,
        )  # fmt: skip
        replay(config)
    rows, record, result = load(out)
    path = out / "report.html"
    path.write_text(html_page(rows, result.summary, record, out), "utf-8")
    return path


@pytest.mark.parametrize("scheme", SCHEMES)
def test_chromium_draws_it_without_a_console_error(scheme: str, page: Path, tmp_path: Path) -> None:
    """No console message, and a screenshot that shows something."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser, "deploy/install-ops.sh installs chromium from Debian"
    shot = tmp_path / f"{scheme}.png"
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1120,2600", *SCHEMES[scheme],
         f"--screenshot={shot}", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=110,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr
    assert shot.stat().st_size > 20_000, "a blank page compresses to less"
