"""A certificate in the gateway: what it allows, what it forbids, and how that is said."""

from __future__ import annotations

import io
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.control.test_gateway import FAST, ask, gateway, state
from tests.support.engine import ScriptedEngine, until
from tests.support.proxied import Proxied, dialogue

from breakeven.certificate import (
    Certificate,
    Fingerprint,
    FrozenBaseline,
    certificate_json,
)
from breakeven.errors import ConfigError, InputError
from breakeven.load import LoadClasses
from breakeven.policy import LoadAwareRules
from breakeven.provenance import AcceptanceKind, ContentKind, EngineKind, Labels
from breakeven.routing import Reason
from breakeven.settings import parse_settings
from breakeven.slo import SLO
from breakeven_proxy.config import ProxySettings, check
from breakeven_proxy.control.gateway import steering_plan
from breakeven_proxy.control.proof import load_certificate
from breakeven_proxy.observe.log import Log, make_logger

NOW = datetime.now(UTC)
REAL = Labels(EngineKind.REAL, ContentKind.REAL, AcceptanceKind.MEASURED)
SIMULATED = replace(REAL, engine=EngineKind.SIMULATED)
CERTIFICATE = Certificate(
    created=NOW - timedelta(days=1),
    expires=NOW + timedelta(days=29),
    arm="draft",
    slo=SLO(),
    epsilon_s=0.002,
    load_classes=LoadClasses(4, 12),
    min_rps=0.5,
    max_rps=10.0,
    baseline={("chat-en", "low"): FrozenBaseline(0.0104)},
    rollback_headroom_rps=40.0,
    fingerprint=Fingerprint(),
    labels=REAL,
    denied_cohorts=("code",),
    policy={"enter_below_rps": 8.0, "leave_above_rps": 9.5, "window_s": 300, "dwell_s": 300},
)


def written(tmp_path: Path, **changes: Any) -> str:
    path = tmp_path / "certificate.json"
    path.write_text(certificate_json(replace(CERTIFICATE, **changes)))
    return str(path)


def settings(certificate: str, **values: Any) -> ProxySettings:
    base = {"url": "http://127.0.0.1:1"}
    draft = {"url": "http://127.0.0.1:2", "role": "candidate", "replicas": 4}
    made = parse_settings(
        {"arms": {"base": base, "draft": draft}, "certificate": certificate, **values},
        file="p.yaml",
        model=ProxySettings,
    )
    check(made, "p.yaml")
    return made


def log() -> Log:
    return Log(make_logger(io.StringIO()))


def plan(certificate: str, **values: Any) -> Any:
    made = settings(certificate, **values)
    return steering_plan(made, load_certificate(made), log())


def test_the_range_becomes_the_candidate_s(tmp_path: Path) -> None:
    """Rates, headroom, cohorts and expiry are those of the file."""
    proven = plan(written(tmp_path), routing={"arm": "draft"}).candidates["draft"].proven
    assert (proven.min_rps, proven.max_rps, proven.headroom_rps) == (0.5, 10, 40)
    assert proven.denied_cohorts == {"code"}
    assert proven.expires_s == pytest.approx(CERTIFICATE.expires.timestamp(), abs=1)


def test_thresholds_come_from_the_certificate_unless_given(tmp_path: Path) -> None:
    """load_aware without thresholds takes the certificate's; its own stand above them."""
    path = written(tmp_path)
    certified = plan(path, routing={"policy": "load_aware"}).load_aware
    assert certified == LoadAwareRules(8.0, 9.5)
    own = {"policy": "load_aware", "load_aware": {"enter_below_rps": 3, "leave_above_rps": 5}}
    assert plan(path, routing=own).load_aware == LoadAwareRules(3, 5)
    with pytest.raises(ConfigError, match="needs its thresholds"):
        plan(written(tmp_path, policy={}), routing={"policy": "load_aware"})


def test_a_simulated_proof_is_refused_unless_allowed(tmp_path: Path) -> None:
    """method_check evidence keeps the candidate out; allow_simulated: true lets it in."""
    path = written(tmp_path, labels=SIMULATED)
    assert plan(path).candidates["draft"].refused is Reason.NOT_EVIDENCE
    assert plan(path, allow_simulated=True).candidates["draft"].refused is None


def test_a_candidate_that_nobody_proved_is_refused_beside_a_certificate(tmp_path: Path) -> None:
    """The certificate names `draft`; `other` gets no traffic."""
    arms = {
        "base": {"url": "http://127.0.0.1:1"},
        "draft": {"url": "http://127.0.0.1:2", "role": "candidate"},
        "other": {"url": "http://127.0.0.1:3", "role": "candidate"},
    }
    made = plan(written(tmp_path), arms=arms)
    assert made.candidates["draft"].refused is None
    assert made.candidates["other"].refused is Reason.NOT_EVIDENCE


def test_a_certificate_for_nobody_here_is_refused(tmp_path: Path) -> None:
    """Its arm is not among the candidates: named, with the mend."""
    with pytest.raises(ConfigError, match=r"given to another arm \(got 'eagle'\).*draft"):
        plan(written(tmp_path, arm="eagle"))


def test_too_little_headroom_is_refused_or_forced(tmp_path: Path) -> None:
    """10/s × 4 replicas = 40/s: 39 is refused at start, force: true starts with a warning."""
    path = written(tmp_path, rollback_headroom_rps=39.0)
    with pytest.raises(ConfigError, match=r"40/s.*39/s: 1/s too much.*routing.force: true"):
        plan(path, routing={"arm": "draft"})
    lines = io.StringIO()
    made = settings(path, routing={"arm": "draft", "force": True})
    steering_plan(made, load_certificate(made), Log(make_logger(lines)))
    assert '"rollback headroom"' in lines.getvalue()


@pytest.mark.parametrize(
    ("changes", "values", "words"),
    [
        ({"epsilon_s": 0.003}, {}, "set epsilon_s: 0.003"),
        ({"load_classes": LoadClasses(3, 9)}, {}, "other load classes"),
        ({"slo": SLO(ttft_s=0.4)}, {}, "slo.ttft_s"),
    ],
)
def test_proven_under_other_settings(
    tmp_path: Path, changes: dict[str, Any], values: dict[str, Any], words: str
) -> None:
    """Another ε, load classes or SLO: refused, with the mend."""
    with pytest.raises(InputError, match=words):
        plan(written(tmp_path, **changes), **values)


def running(
    tmp_path: Path, **changes: Any
) -> AbstractAsyncContextManager[tuple[ScriptedEngine, ScriptedEngine, Proxied]]:
    values = changes.pop("values", {})
    return gateway(certificate=written(tmp_path, **changes), **values)


def test_expired_serves_the_baseline(tmp_path: Path) -> None:
    """An expired certificate does not stop the proxy: the candidate is refused, traffic flows."""

    async def script() -> None:
        over = {"expires": NOW - timedelta(seconds=1)}
        async with running(tmp_path, **over) as (base, _, proxy):
            assert state(proxy) == "refused"
            client = await proxy.dial()
            assert (await ask(client, base)).status == 200
            draft = (await proxy.status())["routing"]["candidates"]["draft"]
            assert draft["reason"] == "certificate_expired"

    dialogue(script())


def test_denied_cohort_in_traffic(tmp_path: Path) -> None:
    """Cohort `code` meets the baseline, the others the candidate."""

    async def script() -> None:
        values = {"cohorts": {"code": {}, "chat": {}}}
        async with running(tmp_path, values=values) as (base, draft, proxy):
            client = await proxy.dial()
            code = "x-breakeven-cohort: code\r\n"
            chat = "x-breakeven-cohort: chat\r\n"
            assert (await ask(client, base, headers=code)).status == 200
            assert (await ask(client, draft, headers=chat)).status == 200

    dialogue(script())


def test_allow_simulated_shouts(tmp_path: Path) -> None:
    """It is in /status, a gauge and a warning; without it the gauge is 0 and the arm refused."""

    async def script(allowed: bool) -> None:
        values = {"allow_simulated": allowed}
        async with running(tmp_path, labels=SIMULATED, values=values) as (_, _, proxy):
            assert state(proxy) == ("serving" if allowed else "refused")
            assert (await proxy.status())["simulated_evidence_allowed"] is allowed
            assert await proxy.total("simulated_evidence_allowed") == float(allowed)
            assert ("SIMULATED EVIDENCE" in proxy.log.getvalue()) is allowed

    dialogue(script(True))
    dialogue(script(False))


def test_an_engine_that_is_not_the_proven_one_gets_no_traffic(tmp_path: Path) -> None:
    """The contradiction comes from what the engine says; the candidate leaves at the next tick."""

    async def script() -> None:
        async with running(tmp_path) as (base, _, proxy):
            assert state(proxy) == "serving"
            proxy.proxy.gateway._contradiction = lambda: "k 5, proven 4"
            proxy.proxy.control.tick()
            draft = (await proxy.status())["routing"]["candidates"]["draft"]
            assert (draft["state"], draft["reason"]) == ("refused", "certificate_mismatch")
            client = await proxy.dial()
            assert (await ask(client, base)).status == 200
            proxy.proxy.gateway._contradiction = lambda: None
            proxy.proxy.control.tick()
            await until(lambda: state(proxy) == "serving")

    dialogue(script())


def test_the_model_of_the_certificate_is_asked_for(tmp_path: Path) -> None:
    """/v1/models must name the proven model where the configuration names none."""

    async def script() -> None:
        proven = {"fingerprint": Fingerprint(model="proven-model")}
        async with running(tmp_path) as (_, draft, proxy):
            assert FAST["interval_s"] < 1
            proxy.proxy.gateway._certificate = replace(CERTIFICATE, **proven)
            await until(lambda: state(proxy) == "unhealthy")
            draft.models = b'{"data": [{"id": "proven-model"}]}'
            await until(lambda: state(proxy) == "serving")

    dialogue(script())
