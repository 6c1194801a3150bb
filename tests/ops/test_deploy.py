"""Manifests, compose, units and Containerfiles: checked by the tools that read them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ops.rulefiles import ROOT

pytestmark = pytest.mark.ops
BIN = Path(sys.executable).parent
KUBERNETES = ROOT / "deploy/kubernetes"
FOLDERS = (
    "overlays/baseline", "overlays/candidate", "overlays/rollback", "overlays/monitoring",
    "loadgen",
)  # fmt: skip
CRDS = {"PodMonitor", "PrometheusRule"}
GRACE_S = 150


def run(
    *command: str | Path, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """The command's result; two minutes at most."""
    return subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **env},
        cwd=ROOT,
    )


def built(folder: str) -> list[dict[str, Any]]:
    """The objects of a kustomization."""
    result = run(BIN / "kubectl", "kustomize", KUBERNETES / folder)
    assert result.returncode == 0, result.stderr
    assert not result.stderr, f"kustomize warns: {result.stderr}"
    return list(yaml.safe_load_all(result.stdout))


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The object of this kind and name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_manifests_fit_their_schemas(folder: str, tmp_path: Path) -> None:
    """kubernetes-validate --strict takes every object, CRDs by their own schemas."""
    objects = built(folder)
    plain = [o for o in objects if o["kind"] not in CRDS]
    if plain:
        path = tmp_path / "objects.yaml"
        path.write_text(yaml.safe_dump_all(plain), "utf-8")
        result = run(BIN / "kubernetes-validate", "--strict", path)
        said = result.stdout + result.stderr
        assert result.returncode == 0, said
        assert "WARN" not in said, said
        assert "no schema" not in said.lower(), said
        assert said.count("passed for resource") == len(plain), said
    custom = [o for o in objects if o["kind"] in CRDS]
    if custom:
        lines = "".join(json.dumps(o) + "\n" for o in custom)
        result = run("node", ROOT / "deploy/crd/check.mjs", stdin=lines)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == f"{len(custom)} checked"


def test_the_crd_check_can_fail() -> None:
    """A rule without an expression, and a kind without a schema, are refused."""
    bad_rule = {
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": {"name": "x"},
        "spec": {"groups": [{"name": "g", "rules": [{"record": "x"}]}]},
    }  # fmt: skip
    unknown = {"apiVersion": "monitoring.coreos.com/v9", "kind": "PodMonitor"}
    for wrong in (bad_rule, unknown):
        assert run("node", ROOT / "deploy/crd/check.mjs", stdin=json.dumps(wrong)).returncode == 1


def test_generated_manifests_did_not_drift() -> None:
    """The PrometheusRule and the dashboards ConfigMap are what the sources give."""
    result = run(sys.executable, KUBERNETES / "generate.py", "--check")
    assert result.returncode == 0, result.stderr


def test_runbook_links_can_be_given_an_address() -> None:
    """--runbooks URL makes the alerts' links open."""
    sys.path.insert(0, str(KUBERNETES))
    try:
        import generate  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    text = generate.prometheus_rule("https://wiki.example/runbooks/")
    assert "runbook_url: https://wiki.example/runbooks/BreakEvenLost.md" in text


def test_the_dashboards_configmap_fits() -> None:
    """A ConfigMap holds at most 1 MiB."""
    text = (KUBERNETES / "overlays/monitoring/dashboards.yaml").read_bytes()
    assert len(text) < 1_000_000


def deployments() -> list[dict[str, Any]]:
    return [o for o in built("overlays/candidate") if o["kind"] == "Deployment"]


def test_the_sidecar_is_native_and_asks_only_itself_to_start() -> None:
    """startupProbe: /livez (itself); readiness: /readyz (the engine); it outlives the engine."""
    for deployment in deployments():
        pod = deployment["spec"]["template"]["spec"]
        (proxy,) = pod["initContainers"]
        assert proxy["restartPolicy"] == "Always"
        assert proxy["startupProbe"]["httpGet"]["path"] == "/livez"
        assert proxy["livenessProbe"]["httpGet"]["path"] == "/livez"
        assert proxy["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_drain_arithmetic() -> None:
    """preStop + --shutdown-timeout + the proxy's drain end before the grace period does."""
    for deployment in deployments():
        pod = deployment["spec"]["template"]["spec"]
        (engine,) = pod["containers"]
        pre_stop = int(engine["lifecycle"]["preStop"]["exec"]["command"][1])
        (shutdown,) = [
            int(a.split("=")[1]) for a in engine["args"] if a.startswith("--shutdown-timeout=")
        ]
        arm = deployment["metadata"]["labels"]["breakeven/arm"]
        config = yaml.safe_load((KUBERNETES / f"arms/{arm}/proxy.yaml").read_text("utf-8"))
        drain = config["timeouts"]["drain_s"]
        assert (pre_stop, shutdown) == (15, 90)
        assert pod["terminationGracePeriodSeconds"] == GRACE_S
        assert pre_stop + shutdown + drain < GRACE_S


def test_pods_are_locked_down() -> None:
    """Non-root by number, read-only root, no capabilities, no account token; no `latest`."""
    for folder in ("overlays/candidate", "loadgen"):
        for item in built(folder):
            if item["kind"] not in {"Deployment", "Job"}:
                continue
            pod = item["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["runAsUser"] > 0
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is False
            for container in pod["containers"] + pod.get("initContainers", []):
                locked = container["securityContext"]
                assert locked["readOnlyRootFilesystem"] is True
                assert locked["allowPrivilegeEscalation"] is False
                assert locked["capabilities"] == {"drop": ["ALL"]}
                assert ":" in container["image"]
                assert not container["image"].endswith(":latest")


def test_the_arm_of_the_pod_label_is_the_arm_of_the_config() -> None:
    """breakeven/arm on the pod, the config's arm, its role and k, and the engine's flags agree."""
    for deployment in deployments():
        arm = deployment["spec"]["template"]["metadata"]["labels"]["breakeven/arm"]
        config = yaml.safe_load((KUBERNETES / f"arms/{arm}/proxy.yaml").read_text("utf-8"))
        assert list(config["arms"]) == [arm]
        settings = config["arms"][arm]
        (engine,) = deployment["spec"]["template"]["spec"]["containers"]
        flags = [a for a in engine["args"] if a.startswith("--speculative-config=")]
        k = json.loads(flags[0].split("=", 1)[1])["num_speculative_tokens"] if flags else 0
        assert settings["k"] == k
        assert settings["role"] == ("candidate" if k else "baseline")


def test_rollback_leaves_only_the_baseline() -> None:
    """The candidate has 0 pods, the Service selects the baseline's, which has both arms' pods."""
    normal, back = built("overlays/candidate"), built("overlays/rollback")
    assert one(back, "Deployment", "breakeven-draft-k4")["spec"]["replicas"] == 0
    total = sum(o["spec"]["replicas"] for o in normal if o["kind"] == "Deployment")
    assert one(back, "Deployment", "breakeven-baseline")["spec"]["replicas"] == total
    selector = one(back, "Service", "breakeven")["spec"]["selector"]
    assert selector == {"breakeven/serve": "true", "breakeven/arm": "baseline"}
    assert one(normal, "Service", "breakeven")["spec"]["selector"] == {"breakeven/serve": "true"}
    for deployment in (o for o in back if o["kind"] == "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        chosen = selector.items() <= labels.items()
        assert chosen == (labels["breakeven/arm"] == "baseline")


def test_the_podmonitor_finds_the_pods_and_takes_the_arm_from_their_label() -> None:
    """Selector, port and relabelling match what the Deployments say."""
    monitor = one(built("overlays/monitoring"), "PodMonitor", "breakeven")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (relabel,) = endpoint["relabelings"]
    assert relabel == {
        "sourceLabels": ["__meta_kubernetes_pod_label_breakeven_arm"],
        "targetLabel": "arm",
    }
    assert endpoint["honorLabels"] is True
    for deployment in deployments():
        pod = deployment["spec"]["template"]
        assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert "breakeven/arm" in pod["metadata"]["labels"]
        ports = {port["name"] for port in pod["spec"]["initContainers"][0]["ports"]}
        assert endpoint["port"] in ports


def test_the_loadgen_job_gives_each_pod_its_own_shard() -> None:
    """Indexed; as many shards as completions, all at once, none started twice."""
    job = one(built("loadgen"), "Job", "loadgen")["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"]
    assert job["backoffLimit"] == 0
    assert f"--shard=$(JOB_COMPLETION_INDEX)/{job['completions']}" in container["args"]
    assert "--start-at=$(START_AT)" in container["args"]


@pytest.mark.parametrize(
    "path",
    [
        "deploy/compose/proxy.yaml",
        "deploy/kubernetes/arms/baseline/proxy.yaml",
        "deploy/kubernetes/arms/draft-k4/proxy.yaml",
    ],
)  # fmt: skip
def test_proxy_configs_are_accepted_by_the_proxy(path: str) -> None:
    """`breakeven-proxy check` takes every config that we ship."""
    result = run(BIN / "breakeven-proxy", "check", "--config", path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_loadgen_flags_of_the_manifests_exist() -> None:
    """Every option of the Job stands in `loadgen replay --help`, as the sim's do in its own."""
    (container,) = one(built("loadgen"), "Job", "loadgen")["spec"]["template"]["spec"]["containers"]
    known = run(BIN / "loadgen", "replay", "--help").stdout
    for argument in container["args"][2:]:
        assert re.search(rf"{argument.split('=')[0]}\b", known), argument
    inspected = run(BIN / "loadgen", "trace", "verify", KUBERNETES / "loadgen/trace.jsonl")
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text("utf-8"))
    known = run(BIN / "breakeven-sim", "serve", "--help").stdout
    for name in ("sim-baseline", "sim-draft"):
        for argument in compose["services"][name]["command"][1:]:
            assert not argument.startswith("--") or argument in known


@pytest.mark.parametrize("profile", ["gpu", "sim"])
def test_compose_is_valid_and_listens_on_loopback(profile: str) -> None:
    """docker-compose config takes it; every port is bound to 127.0.0.1; every service is locked."""
    result = run(
        BIN / "docker-compose", "-f", "deploy/compose/compose.yaml", "--profile", profile, "config",
        "--format", "json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    services = json.loads(result.stdout)["services"]
    assert {"proxy", "prometheus", "alertmanager", "grafana"} < services.keys()
    engines = {name for name in services if name.startswith(("vllm", "sim"))}
    assert engines == {
        "gpu": {"vllm-baseline", "vllm-draft"}, "sim": {"sim-baseline", "sim-draft"}
    }[profile]  # fmt: skip
    for name, service in services.items():
        for port in service.get("ports") or []:
            assert port["host_ip"] == "127.0.0.1", name
        assert not service["image"].endswith(":latest")
        if not name.startswith("vllm"):
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
        for volume in service.get("volumes") or []:
            if volume["type"] == "bind":
                assert Path(volume["source"]).exists(), volume["source"]
    if profile == "gpu":
        for name in engines:
            (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
            assert device["capabilities"] == ["gpu"]


EXACT_METERING = (
    "--enable-force-include-usage",
    "--per-request-spec-decode-metrics",
    "--custom-histogram-buckets",
)


def test_engines_are_started_so_that_metering_is_exact() -> None:
    """Every vLLM of compose and Kubernetes has the flags that README names."""
    compose = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text("utf-8"))
    commands = [compose["services"][name]["command"] for name in ("vllm-baseline", "vllm-draft")]
    commands += [d["spec"]["template"]["spec"]["containers"][0]["args"] for d in deployments()]
    readme = (ROOT / "deploy/README.md").read_text("utf-8")
    for flag in EXACT_METERING:
        assert flag in readme
        for command in commands:
            assert any(argument.startswith(flag) for argument in command), flag
    for command in commands:
        (buckets,) = [a for a in command if a.startswith("--custom-histogram-buckets=")]
        assert json.loads(buckets.split("=", 1)[1])["request_queue_time_seconds"][0] < 0.3


def test_the_systemd_unit_is_valid_and_hardened(tmp_path: Path) -> None:
    """systemd-analyze verifies it and rates its exposure below 2; stop time covers the drain."""
    unit = tmp_path / "breakeven-proxy.service"
    text = (ROOT / "deploy/systemd/breakeven-proxy.service").read_text("utf-8")
    # verify asks that the program exists; everything else stays as it is.
    unit.write_text(text.replace("/opt/breakeven/bin/breakeven-proxy", "/bin/true"), "utf-8")
    verified = run("systemd-analyze", "verify", unit)
    assert verified.returncode == 0, verified.stderr
    assert not verified.stderr.strip(), verified.stderr
    rated = run("systemd-analyze", "security", "--offline=true", "--threshold=20", unit)
    assert rated.returncode == 0, rated.stdout[-500:]
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, flags=re.MULTILINE)
    assert int(stop) > 30


@pytest.mark.parametrize(("name", "extras"), [("proxy", "proxy,otel"), ("loadgen", "loadgen,sim")])
def test_containerfiles_are_pinned_and_not_root(name: str, extras: str) -> None:
    """An exact base, a numeric user, only the extras that the image needs."""
    text = (ROOT / f"deploy/containers/{name}.Containerfile").read_text("utf-8")
    assert re.search(r"^ARG PYTHON_IMAGE=python:\d+\.\d+\.\d+-slim-\w+$", text, flags=re.MULTILINE)
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", text, flags=re.MULTILINE)
    assert f"'.[{extras}]'" in text
    assert "-c constraints.txt" in text
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE):
        for part in source.split():
            assert (ROOT / part).exists(), part
    ignored = (ROOT / f"deploy/containers/{name}.Containerfile.dockerignore").read_text("utf-8")
    assert ignored.startswith("*\n")


@pytest.mark.timeout(400)
def test_the_proxy_image_carries_nothing_of_loadgens(tmp_path: Path) -> None:
    """What the proxy's Containerfile installs has no numpy, scipy, pyarrow, … and still starts."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    source = tmp_path / "src"
    source.mkdir()
    for part in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source)
    for part in ("core", "wire", "proxy", "loadgen", "sim"):
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [str(venv / "bin/pip"), "install", "--quiet", "-c", "constraints.txt", ".[proxy,otel]"],
        check=True, timeout=300, cwd=source,
    )  # fmt: skip
    listed = json.loads(run(venv / "bin/pip", "list", "--format", "json").stdout)
    names = {item["name"].lower().replace("_", "-") for item in listed}
    heavy = {"numpy", "scipy", "pyarrow", "statsmodels", "pandas", "rich", "matplotlib"}
    assert not names & heavy
    result = run(venv / "bin/breakeven-proxy", "check", "--config", "deploy/compose/proxy.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
