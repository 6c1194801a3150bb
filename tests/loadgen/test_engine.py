"""Engine sampling: addresses of pages, device memory, pages that fail."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.loadgen.conftest import Run
from tests.support.target import scripted

from breakeven.errors import InputError, NotReadyError
from breakeven_loadgen.replay.engine import EngineSampler, split_metrics_url


@pytest.mark.parametrize(
    ("url", "want"),
    [
        ("http://h:1", ("http://h:1", "/metrics")),
        ("http://h:1/", ("http://h:1", "/metrics")),
        ("http://h:1/metrics", ("http://h:1", "/metrics")),
        ("https://h/a/b", ("https://h", "/a/b")),
    ],
)
def test_a_url_without_a_path_means_its_metrics(url: str, want: tuple[str, str]) -> None:
    """Both spellings of the same page."""
    assert split_metrics_url(url) == want


def test_credentials_in_a_metrics_url_are_refused() -> None:
    """They would be stored with the source's name."""

    async def make() -> None:
        EngineSampler.of(("http://user:pw@h:1/metrics",))

    with pytest.raises(InputError, match="credentials") as caught:
        asyncio.run(make())
    assert "pw" not in str(caught.value)


def test_a_page_that_is_no_engines_is_refused(run: Run) -> None:
    """Not a 0, not a guess: the URL is named, and what was found there (exit 3)."""
    with scripted() as target:
        target.page = lambda: b"other_total 3\n"  # type: ignore[method-assign]  # a foreign page
        with pytest.raises(
            NotReadyError, match=r"--metrics-url .*: .*expected series that start with vllm:"
        ):
            run(target.url, metrics_url=(target.url,))
        assert not target.calls


def test_an_unreachable_page_is_exit_3(run: Run) -> None:
    """Named as --metrics-url, before anything is sent."""
    with scripted() as target:
        with pytest.raises(NotReadyError, match="--metrics-url"):
            run(target.url, metrics_url=("http://127.0.0.1:1",))
        assert not target.calls


def test_a_proxy_page_must_be_a_proxys(run: Run) -> None:
    """An engine's page given as --proxy-metrics-url is refused."""
    with scripted() as target, pytest.raises(NotReadyError, match="no page of a breakeven-proxy"):
        run(target.url, proxy_metrics_url=target.url)


class FakeNvml(types.ModuleType):
    """Two devices, as nvidia-ml-py shows them."""

    class NVMLError(Exception):
        """The library's error."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.ended = False

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        return

    def nvmlShutdown(self) -> None:  # noqa: N802 - the library's name
        self.ended = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - the library's name
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:  # noqa: N802 - the library's name
        return i

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802 - the library's name
        return types.SimpleNamespace(used=1000 + handle)


def test_device_memory_is_sampled_where_nvml_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One series per device, by NVML index; the library is shut down."""
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    async def sample() -> None:
        sampler = EngineSampler.of(())
        assert sampler.has_devices
        await sampler.sample(1.0)
        sampler.write(tmp_path)
        await sampler.close()

    asyncio.run(sample())
    rows = pq.read_table(tmp_path / "engine.parquet").to_pylist()
    assert [(r["source"], r["name"], r["value"]) for r in rows] == [
        ("nvml:0", "device_memory_used_bytes", 1000.0),
        ("nvml:1", "device_memory_used_bytes", 1001.0),
    ]
    assert fake.ended


def test_without_a_gpu_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No NVML: no series, not a 0; the file still has its columns."""
    monkeypatch.setitem(sys.modules, "pynvml", None)

    async def sample() -> None:
        sampler = EngineSampler.of(())
        assert not sampler.has_devices
        await sampler.sample(1.0)
        sampler.write(tmp_path)
        await sampler.close()

    asyncio.run(sample())
    table = pq.read_table(tmp_path / "engine.parquet")
    assert table.num_rows == 0
    assert table.schema.names == ["t_s", "source", "name", "value"]
