"""Reading the engine's own /metrics, and checking that an arm is what it claims."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from tests.support.captures import DATA
from tests.support.engine import completion, ok, post, scripted_engine, until
from tests.support.proxied import Proxied, dialogue, proxied, settings_of

from breakeven.certificate import Certificate, Fingerprint, FrozenBaseline, certificate_json
from breakeven.errors import CertificateError
from breakeven.exposition import parse_page
from breakeven.load import LoadClasses
from breakeven.provenance import AcceptanceKind, ContentKind, EngineKind, Labels
from breakeven.slo import SLO
from breakeven_proxy.control.proof import load_certificate
from breakeven_proxy.observe.engine import Carried

SGLANG = b"""# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m",tp_rank="0"} 500.0
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 3.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.25
"""


def recorded(name: str) -> bytes:
    """A recorded page without its HTTP head."""
    return (DATA / name).read_bytes().split(b"\r\n\r\n", 1)[1]


async def scraped(
    proxy: Proxied, result: str = "ok", *, times: int = 1, arm: str = "baseline"
) -> None:
    """Waits until an arm was read that often."""
    cell = proxy.proxy.metrics["engine_scrapes_total"].cell(arm, result)
    await until(lambda: cell.value >= times)


def test_counters_come_out_under_our_names() -> None:
    """The recorded ngram page: drafts, accepted by position, schema and version; exact values."""
    page = recorded("ngram/metrics_after.raw")
    theirs = {
        (s.name, s.labels.get("position")): s.value
        for s in parse_page(page).samples
        if s.name.startswith("vllm:")
    }

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = page
            async with proxied(engine.url) as proxy:
                await scraped(proxy)
                ours = await proxy.total("engine_generation_tokens_total", arm="baseline")
                assert ours == theirs["vllm:generation_tokens_total", None]
                drafts = await proxy.total("engine_spec_drafts_total")
                assert drafts == theirs["vllm:spec_decode_num_drafts_total", None]
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                for position in "0123":
                    got = await proxy.total(
                        "engine_spec_accepted_tokens_per_pos_total", position=position
                    )
                    assert got == theirs[name, position]
                info = await proxy.samples("engine_schema_info")
                assert [s.labels for s in info] == [
                    {"arm": "baseline", "engine": "vllm", "version": "0.32.0", "schema": "vllm-v1"}
                ]
                status, body = await proxy.admin("/engine/metrics?arm=baseline")
                assert (status, body) == (200, page)
                assert (await proxy.admin("/engine/metrics?arm=nope"))[0] == 404

    dialogue(script())


def test_absent_stays_absent() -> None:
    """A page without speculation has no speculation series of ours, not zeros."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = recorded("base/metrics_after.raw")
            async with proxied(engine.url) as proxy:
                await scraped(proxy)
                names = {s.name for s in await proxy.samples("engine_")}
                assert "breakeven_engine_generation_tokens_total" in names
                assert not [name for name in names if "spec" in name]

    dialogue(script())


def test_another_engine_has_another_schema() -> None:
    """SGLang's names are read by its own table."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = SGLANG
            async with proxied(engine.url) as proxy:
                await scraped(proxy)
                assert await proxy.total("engine_generation_tokens_total") == 500
                assert await proxy.total("engine_requests_running") == 3
                assert await proxy.total("engine_schema_info", engine="sglang") == 1

    dialogue(script())


@pytest.mark.parametrize(
    ("page", "result"),
    [(None, "unreachable"), (b"up 1\n", "no_schema"), (b"\xff{{{ not text", "bad_page")],
)
def test_a_page_that_cannot_be_read_is_counted(page: bytes | None, result: str) -> None:
    """No page, a page without an engine's series, and no exposition text: three results."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = page
            async with proxied(engine.url) as proxy:
                await scraped(proxy, result)
                assert not await proxy.samples("engine_schema_info")

    dialogue(script())


def test_replicas_are_summed_and_a_restart_is_carried_over() -> None:
    """Two pages of one arm add up; a counter that falls begins again and the sum goes on."""

    async def script() -> None:
        async with scripted_engine() as one, scripted_engine() as two:
            one.metrics_page = two.metrics_page = SGLANG
            arm = {"url": one.url, "replicas": 2,
                   "metrics_urls": [f"{one.url}/metrics", f"{two.url}/metrics"]}  # fmt: skip
            async with proxied("", arms={"a": arm}, scrape_interval_s=0.05) as proxy:
                await scraped(proxy, times=2, arm="a")
                assert await proxy.total("engine_generation_tokens_total") == 1000
                assert await proxy.total("engine_requests_running") == 6
                assert await proxy.total("engine_kv_cache_usage") == 0.25
                two.metrics_page = SGLANG.replace(b"} 500.0", b"} 40.0")
                resets = proxy.proxy.metrics["engine_resets_total"].cell("a")
                await until(lambda: resets.value == 1)
                assert await proxy.total("engine_generation_tokens_total") == 1040

    dialogue(script())


def test_a_carried_counter_never_falls() -> None:
    """500, 700, restart at 40, 60: 500 + 200 + 40 + 20."""
    carried = Carried()
    for value, total in ((500, 500), (700, 700), (40, 740), (60, 760)):
        carried.read(value)
        assert carried.total == total
    assert carried.resets == 1


@pytest.mark.parametrize(
    ("page", "claim", "ok"),
    [
        ("base/metrics_after.raw", {"k": 0}, {"speculation": 1}),
        ("base/metrics_after.raw", {"k": 4}, {"speculation": 0}),
        ("ngram/metrics_after.raw", {"k": 4}, {"speculation": 1, "k": 1}),
        ("ngram/metrics_after.raw", {"k": 5}, {"speculation": 1, "k": 0}),
        ("ngram/metrics_after.raw", {"k": 0}, {"speculation": 0}),
        ("ngram/metrics_after.raw", {}, {}),
    ],
)
def test_an_arm_is_checked_against_its_claim(
    page: str, claim: dict[str, int], ok: dict[str, int]
) -> None:
    """A config key is no evidence: the series of the engine say whether it speculates, and K."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = recorded(page)
            arms = {"a": {"url": engine.url, **claim}}
            async with proxied("", arms=arms) as proxy:
                await scraped(proxy, arm="a")
                await until(lambda: proxy.proxy.beside.readers["a"].latest)
                found = await proxy.samples("upstream_identity_ok")
                assert {s.labels["check"]: s.value for s in found} == ok

    dialogue(script())


def test_a_fingerprint_of_the_answers_is_checked() -> None:
    """system_fingerprint differs per engine configuration: a cheap check of an arm's identity."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = recorded("base/metrics_after.raw")
            arms = {"a": {"url": engine.url, "system_fingerprint": "vllm-right"}}
            async with proxied("", arms=arms, scrape_interval_s=0.05) as proxy:
                client = await proxy.dial()
                await client.send(post())
                conn = await engine.accept()
                cell = proxy.proxy.metrics["upstream_identity_ok"].cell("a", "system_fingerprint")
                for answered, holds in ((b"vllm-right", 1), (b"vllm-wrong", 0)):
                    body = completion()[:-1] + b',"system_fingerprint":"%b"}' % answered
                    await conn.send(ok(body))
                    await client.message()
                    await until(lambda holds=holds: cell.value == holds)  # at the next reading
                    await client.send(post())
                    await conn.next()

    dialogue(script())


# -- the certificate ---------------------------------------------------------------------------

NOW = dt.datetime.now(dt.UTC)


def certificate(**changes: Any) -> Certificate:
    """A certificate that fits the default settings."""
    values: dict[str, Any] = {
        "created": NOW - dt.timedelta(days=1),
        "expires": NOW + dt.timedelta(days=1),
        "arm": "draft",
        "slo": SLO(),
        "epsilon_s": 0.002,
        "load_classes": LoadClasses(4.0, 12.0),
        "min_rps": 0.5,
        "max_rps": 9.0,
        "baseline": {("other", "low"): FrozenBaseline(0.0123, 0.05, None, 0.001)},
        "rollback_headroom_rps": 7.5,
        "fingerprint": Fingerprint(),
        "labels": Labels(EngineKind.REAL, ContentKind.REAL, AcceptanceKind.MEASURED),
    }
    return Certificate(**{**values, **changes})


def settings_with(path: Path, found: Certificate) -> dict[str, Any]:
    """Writes the certificate; the settings that name it."""
    file = path / "certificate.json"
    file.write_text(certificate_json(found))
    return {"certificate": str(file), "allow_simulated": True}


async def gauges(proxy: Proxied) -> dict[str, float]:
    """The certificate's gauges on the page."""
    samples = [*await proxy.samples("certified_"), *await proxy.samples("certificate_")]
    return {
        "|".join([s.name.removeprefix("breakeven_"), *s.labels.values()]): s.value for s in samples
    }


def test_the_frozen_baseline_is_exported(tmp_path: Path) -> None:
    """Per cohort and load, without an arm label; what was not measured has no series."""
    found = certificate()

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = recorded("ngram/metrics_after.raw")
            arms = {"base": {"url": engine.url}, "draft": {"url": engine.url, "role": "candidate"}}
            settings = settings_with(tmp_path, found)
            async with proxied("", arms=arms, **settings) as proxy:
                assert await gauges(proxy) == {
                    "certified_baseline_seconds_per_token|other|low": 0.0123,
                    "certified_baseline_gap_p99_seconds|other|low": 0.05,
                    "certified_baseline_cost_per_good_usd|other|low": 0.001,
                    "certified_range_requests_per_second|min": 0.5,
                    "certified_range_requests_per_second|max": 9.0,
                    "certified_rollback_headroom_rps": 7.5,
                    f"certificate_info|{found.evidence.value}": 1.0,
                    "certificate_expires_timestamp_seconds": int(found.expires.timestamp()),
                }

    dialogue(script())


@pytest.mark.parametrize(
    ("changes", "key", "mend"),
    [
        ({"epsilon_s": 0.004}, "epsilon_s", "set epsilon_s: 0.004"),
        ({"slo": SLO(ttft_s=0.5)}, "slo.ttft_s", "set slo.ttft_s"),
        ({"slo": SLO(objective=0.95)}, "slo.objective", "set slo.objective"),
        ({"load_classes": LoadClasses(2.0, 12.0)}, "load_classes", "same bounds"),
    ],
)
def test_a_certificate_of_other_settings_is_refused(
    tmp_path: Path, changes: dict[str, Any], key: str, mend: str
) -> None:
    """Another ε, SLO or load classes: refused with the key and the mend."""
    settings = settings_of("http://127.0.0.1:1", **settings_with(tmp_path, certificate(**changes)))
    with pytest.raises(CertificateError) as error:
        load_certificate(settings)
    assert error.value.key == key
    assert mend in str(error.value)


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"created": NOW - dt.timedelta(9), "expires": NOW - dt.timedelta(1)}, "expired"),
        ({"fingerprint": Fingerprint(engine_version="0.31.0")}, "engine version is 0.32.0"),
        ({"fingerprint": Fingerprint(k=3)}, "k is 4"),
        ({"fingerprint": Fingerprint(model="other-model")}, "other-model"),
    ],
)
def test_a_certificate_that_does_not_hold_shows_no_baseline(
    tmp_path: Path, changes: dict[str, Any], because: str
) -> None:
    """Expired, or proven on another engine: no figure to compare with; /status and log say why."""

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = recorded("ngram/metrics_after.raw")
            arms = {"base": {"url": engine.url}, "draft": {"url": engine.url, "role": "candidate"}}
            settings = settings_with(tmp_path, certificate(**changes))
            async with proxied("", arms=arms, **settings) as proxy:
                await scraped(proxy, arm="draft")
                await until(lambda: proxy.proxy.beside.certificate_problem())
                assert set(await gauges(proxy)) == {
                    "certificate_expires_timestamp_seconds",
                    f"certificate_info|{certificate().evidence.value}",
                }
                assert because in (await proxy.status())["certificate_refused"]
                assert "decide anew" in proxy.log.getvalue()

    dialogue(script())


def test_whatever_a_page_does_the_reading_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody thought of costs one reading; class and place are logged."""
    from breakeven_proxy.observe import engine as reading

    known = reading.read_counters

    def fails(text: bytes) -> object:
        monkeypatch.setattr(reading, "read_counters", known)
        raise RecursionError("canary of a page")

    async def script() -> None:
        async with scripted_engine() as engine:
            engine.metrics_page = SGLANG
            monkeypatch.setattr(reading, "read_counters", fails)
            async with proxied(engine.url, scrape_interval_s=0.01) as proxy:
                await scraped(proxy, "bad_page")
                await scraped(proxy, "ok")
                assert "RecursionError" in proxy.log.getvalue()
                assert "canary" not in proxy.log.getvalue()

    dialogue(script())
