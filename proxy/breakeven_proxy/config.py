"""The proxy's configuration: one frozen dataclass, built once by the CLI from YAML and flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from breakeven.errors import ConfigError, InputError
from breakeven.load import LoadClasses
from breakeven.settings import load_settings, settings_class
from breakeven.slo import SLO
from breakeven.units import Seconds
from breakeven_proxy.routing_settings import RoutingSettings, check_routing
from breakeven_wire import Origin, Stamps

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
"""Names of arms and cohorts: they become label values."""

OTHER = "other"
"""The cohort of requests that name none, or none of the configured ones."""

MAX_COHORTS = 64
"""Cohorts multiply most series; more is a mistake."""

Count = Annotated[int, Field(gt=0)]
Size = Annotated[int, Field(ge=0)]
Positive = Annotated[Seconds, Field(gt=0)]


@settings_class
class ArmSettings:
    """One engine, or a fleet of equal ones behind one URL.

    `metrics_urls`: one per replica; empty means `url` + /metrics. `exclusive`: all traffic of the
    arm goes through this proxy, so that token sums can be compared. `k`: draft tokens per cycle
    that the arm claims; 0 claims no speculation. `system_fingerprint`: what its answers carry.
    """

    url: str
    role: Literal["baseline", "candidate"] = "baseline"
    replicas: Count = 1
    metrics_urls: tuple[str, ...] = ()
    exclusive: bool = False
    fleet_cost_usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    k: Size | None = None
    system_fingerprint: str | None = None
    ca_file: str | None = None
    tls_verify: bool = True


@settings_class
class SloSettings:
    """Bounds of a good response, seconds (None: no bound), and the share that must be good."""

    ttft_s: Positive | None = None
    tpot_s: Positive | None = None
    gap_p99_s: Positive | None = None
    e2e_s: Positive | None = None
    objective: Annotated[float, Field(gt=0, lt=1)] = 0.99

    def slo(self) -> SLO:
        """The core's SLO."""
        return SLO(
            ttft_s=self.ttft_s,
            tpot_s=self.tpot_s,
            gap_p99_s=self.gap_p99_s,
            e2e_s=self.e2e_s,
            objective=self.objective,
        )


@settings_class
class CohortSettings:
    """What a cohort stands for; exported in recordings."""

    task: str = OTHER
    lang: str = OTHER


@settings_class
class LoadClassSettings:
    """Upper bounds of low and normal load, requests per second and replica."""

    low_max: Annotated[float, Field(gt=0)] = 4.0
    normal_max: Annotated[float, Field(gt=0)] = 12.0


@settings_class
class AdmissionSettings:
    """Bounds per arm: requests in flight, requests that wait, and how long one may wait."""

    max_inflight: Count = 256
    max_queue: Size = 64
    queue_timeout_s: Positive = 5.0


@settings_class
class TimeoutSettings:
    """Deadlines, seconds.

    head_s: a client's request head. body_s: a client's request body (grows with its size).
    connect_s, first_byte_s, idle_s: the engine's connection, answer, and silence inside it.
    keepalive_s: an idle client. drain_s: what SIGTERM leaves streams to finish.
    """

    connect_s: Positive = 5.0
    head_s: Positive = 10.0
    body_s: Positive = 60.0
    first_byte_s: Positive = 300.0
    idle_s: Positive = 300.0
    keepalive_s: Positive = 75.0
    drain_s: Seconds = 30.0


@settings_class
class LimitSettings:
    """Bounds in bytes, and of client connections."""

    head_bytes: Annotated[int, Field(ge=1024)] = 65536
    body_bytes: Count = 134217728
    connections: Count = 16384


@settings_class
class RecordingSettings:
    """A redacted arrival trace: rotated JSONL files in `directory`.

    `salt_file` holds the secret (≥ 16 bytes) that keys prefix ids; without it a random salt is
    used, and ids of two runs do not match. `max_mb`, `keep`: rotation.
    """

    directory: str
    salt_file: str | None = None
    block_bytes: Annotated[int, Field(ge=64)] = 2048
    max_mb: Count = 64
    keep: Count = 8
    session_header: str | None = None


@settings_class
class TracingSettings:
    """OpenTelemetry spans over OTLP/HTTP, sampled by the trace id."""

    endpoint: str
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01
    service_name: str = "breakeven-proxy"


@settings_class
class ProxySettings:
    """`breakeven-proxy serve`; the keys of --config."""

    listen: str = "127.0.0.1:8100"
    admin: str = "127.0.0.1:8101"
    stamps: Literal["kernel", "loop"] = "kernel"
    epsilon_s: Positive = 0.002
    token_counts: Literal["observe", "request"] = "observe"
    retry_stale: bool = True
    allow_arm_header: bool = False
    arms: Mapping[str, ArmSettings] = Field(default_factory=dict)
    routing: RoutingSettings = RoutingSettings()
    slo: SloSettings = SloSettings()
    cohorts: Mapping[str, CohortSettings] = Field(default_factory=dict)
    load_classes: LoadClassSettings = LoadClassSettings()
    admission: AdmissionSettings = AdmissionSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    limits: LimitSettings = LimitSettings()
    trace_recording: RecordingSettings | None = None
    tracing: TracingSettings | None = None
    certificate: str | None = None
    allow_simulated: bool = False
    admin_token_file: str | None = None
    scrape_interval_s: Positive = 5.0

    def classes(self) -> LoadClasses:
        """The core's load classes."""
        return LoadClasses(self.load_classes.low_max, self.load_classes.normal_max)

    def chosen_arm(self) -> str:
        """The arm of the single policy."""
        if self.routing.arm is not None:
            return self.routing.arm
        baselines = [name for name, arm in self.arms.items() if arm.role == "baseline"]
        return baselines[0] if baselines else next(iter(self.arms))


def read_settings(path: str | None) -> ProxySettings:
    """The settings of a file, not yet checked against each other; defaults without one.

    Raises:
        ConfigError: the file cannot be read, or holds what cannot be.
    """
    if path is None:
        return ProxySettings()
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", file=path, mend="give a readable YAML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"is not UTF-8 at byte {error.start}", file=path, mend="save it as UTF-8"
        ) from None
    return load_settings(text, file=path, model=ProxySettings)


def with_flags(
    settings: ProxySettings,
    *,
    file: str | None,
    upstream: str | None,
    arm: str | None,
    listen: str | None,
    admin: str | None,
    stamps: Stamps | None,
) -> ProxySettings:
    """The settings with a command line's flags laid over them, checked as a whole.

    Raises:
        ConfigError: see `check`.
    """
    if upstream is not None:
        if settings.arms:
            raise ConfigError(
                "arms stand in the configuration as well",
                file=file,
                key="--upstream",
                mend="give either",
            )
        settings = replace(settings, arms={arm or "baseline": ArmSettings(url=upstream)})
    elif arm is not None:
        settings = replace(settings, routing=RoutingSettings(policy="single", arm=arm))
    if listen is not None:
        settings = replace(settings, listen=listen)
    if admin is not None:
        settings = replace(settings, admin=admin)
    if stamps is not None:
        settings = replace(settings, stamps=stamps)
    check(settings, file)
    return settings


def check(settings: ProxySettings, file: str | None) -> None:
    """Checks what one key says against the others.

    Raises:
        ConfigError: with file, key, value and mend.
    """

    def wrong(key: str, what: str, value: object, mend: str) -> ConfigError:
        return ConfigError(what, file=file, key=key, value=value, mend=mend)

    if not settings.arms:
        raise ConfigError(
            "no engine is named", file=file, key="arms", mend="give --upstream URL, or arms"
        )
    for kind, names in (("arms", settings.arms), ("cohorts", settings.cohorts)):
        for name in names:
            if not NAME.match(name):
                mend = "use a-z, 0-9, dot, dash and underscore, at most 63"
                raise wrong(kind, "not a name", name, mend)
    if len(settings.cohorts) > MAX_COHORTS:
        raise wrong("cohorts", "too many", len(settings.cohorts), f"at most {MAX_COHORTS}")
    for name, arm in settings.arms.items():
        for key, url in [("url", arm.url), *(("metrics_urls", u) for u in arm.metrics_urls)]:
            try:
                Origin.parse(url)
            except InputError as error:
                mend = error.mend or ""
                raise wrong(f"arms.{name}.{key}", error.what, error.value, mend) from None
        if arm.ca_file is not None and not Path(arm.ca_file).is_file():
            raise wrong(f"arms.{name}.ca_file", "no such file", arm.ca_file, "give a PEM file")
    roles = {name: arm.role for name, arm in settings.arms.items()}
    check_routing(settings.routing, roles, file, certified=settings.certificate is not None)
    classes = settings.load_classes
    if classes.low_max >= classes.normal_max:
        raise wrong(
            "load_classes.normal_max", "must be above low_max", classes.normal_max, "raise it"
        )
    addresses = [parse_address(getattr(settings, k), key=k, file=file) for k in ("listen", "admin")]
    if addresses[0] == addresses[1] and addresses[0][1] != 0:
        raise wrong("admin", "the same address as listen", settings.admin, "choose another port")
    recording = settings.trace_recording
    if recording is not None and not Path(recording.directory).is_dir():
        raise wrong(
            "trace_recording.directory", "no such directory", recording.directory, "make it"
        )
    trips = settings.routing.state_file
    if trips is not None and (not Path(trips).parent.is_dir() or Path(trips).is_dir()):
        # Found out at the first trip, it would be too late: a restart would arm the arm again.
        mend = "name a file in a directory that exists"
        raise wrong("routing.state_file", "cannot hold the tripped arms", trips, mend)


_PORT = re.compile(r"[0-9]{1,5}\Z")
"""`isdigit` alone would take superscripts, which are no numbers."""


def parse_address(text: str, *, key: str, file: str | None) -> tuple[str, int]:
    """HOST and PORT of "HOST:PORT" or "[V6]:PORT"; port 0 lets the system choose.

    Raises:
        ConfigError: not of that shape.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.match(port) or int(port) > 65535:
        raise ConfigError(
            "not HOST:PORT", file=file, key=key, value=text, mend="write e.g. 127.0.0.1:8100"
        )
    return host.strip("[]") or "127.0.0.1", int(port)
