"""YAML settings: one frozen object, or every fault with its line and mend."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, field
from typing import Literal

import pytest

from breakeven.errors import ConfigError
from breakeven.settings import load_settings, parse_settings, settings_class
from breakeven.units import Seconds


@settings_class
class Arm:
    url: str
    replicas: int = 1
    cost_usd: float | None = None
    role: Literal["baseline", "candidate"] = "candidate"


@settings_class
class Config:
    listen: str = "127.0.0.1:8100"
    epsilon_s: float = 0.002
    max_inflight: int = 256
    timeout: Seconds = 3.0
    arms: dict[str, Arm] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    spare: Arm | None = None


def load(text: str) -> Config:
    return load_settings(text, file="proxy.yaml", model=Config)


def test_a_full_file_becomes_one_frozen_object() -> None:
    """Nested classes, mappings, tuples and durations."""
    config = load(
        "listen: 0.0.0.0:1\nmax-inflight: 7\ntimeout: 500ms\nrates: [1, 2.5]\n"
        "arms:\n  base-1: {url: 'http://h', role: baseline, cost_usd: 3}\n"
    )
    assert config.max_inflight == 7
    assert config.timeout == 0.5
    assert config.rates == (1.0, 2.5)
    assert config.arms["base-1"] == Arm(url="http://h", role="baseline", cost_usd=3.0)
    with pytest.raises(FrozenInstanceError):
        config.listen = "x"  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_gives_the_defaults(text: str) -> None:
    """Nothing said is nothing changed."""
    assert load(text) == Config()


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("lisen: 3", 1, ["lisen", "unknown key", "did you mean listen?"]),
        ("\narms:\n  a:\n    ulr: x\n    url: y", 4, ["arms.a.ulr", "did you mean url?"]),
        ("spare: {url: x, replica: 2}", 1, ["spare.replica", "did you mean replicas?"]),
        ("zzz: 1", 1, ["unknown key", "known keys: listen, epsilon_s"]),
        ("arms:\n  a: {replicas: 2}", 2, ["arms.a.url", "required key is missing"]),
        ("a: 1\nlisten: x\nlisten: y", 3, ["listen", "given twice"]),
        ("epsilon_s: .nan", 1, ["epsilon_s", "finite", "nan"]),
        ("rates: [1, .inf]", 1, ["rates.1", "finite"]),
        ("max_inflight: 3.5", 1, ["max_inflight", "integer", "3.5"]),
        ("max_inflight: yes", 1, ["max_inflight", "integer", "True"]),
        ("max_inflight: '3'", 1, ["max_inflight", "integer"]),
        ("timeout: 5 parsecs", 1, ["timeout", "unknown unit", "5 parsecs", "500ms"]),
        ("timeout: -1s", 1, ["timeout", "negative"]),
        ("arms: {a: {url: x, role: boss}}", 1, ["arms.a.role", "baseline", "boss"]),
        ("arms: {a: null}", 1, ["arms.a", "mapping"]),
        ("- 1", 1, ["must be a mapping"]),
        ("listen: x\n  bad: [", 2, ["not valid YAML"]),
        ("listen: \x07", None, ["not valid YAML"]),
    ],
)
def test_a_fault_names_line_key_value_and_mend(
    text: str, line: int | None, parts: list[str]
) -> None:
    """The place comes from the YAML node, the mend from the nearest known key."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    errors = [caught.value, *caught.value.also]
    assert any(error.line == line for error in errors), str(caught.value)
    assert caught.value.file == "proxy.yaml"
    for part in parts:
        assert part in str(caught.value)


def test_all_faults_of_a_file_are_told_at_once() -> None:
    """Mending one at a time is no way to write a configuration."""
    with pytest.raises(ConfigError) as caught:
        load("lisen: 1\nmax_inflight: x\nspare: {urll: z}\n")
    assert len(str(caught.value).splitlines()) == 4  # spare lacks its url as well


def test_a_secret_is_not_quoted() -> None:
    """A password in a URL of the wrong place stays out of the message."""
    with pytest.raises(ConfigError) as caught:
        load("max_inflight: http://me:hunter2@host/")
    assert "hunter2" not in str(caught.value)


def test_aliases_cannot_explode() -> None:
    """A few lines of YAML that stand for billions of values are refused."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join(['*a' + str(i - 1)] * 10)}]" for i in range(1, 12)]
    with pytest.raises(ConfigError, match="too large"):
        load("\n".join(lines))


def test_flags_are_checked_by_the_same_classes() -> None:
    """What needs no file is refused in the same words."""
    assert parse_settings({"max_inflight": 3}, file="flags", model=Config).max_inflight == 3
    with pytest.raises(ConfigError, match="flags: max_inflights: unknown key"):
        parse_settings({"max_inflights": 3}, file="flags", model=Config)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_flag_that_is_not_finite_never_becomes_the_default(value: float) -> None:
    """JSON has no NaN: it would arrive as null, and null is a default."""
    with pytest.raises(ConfigError, match="cost_usd: a number must be finite") as caught:
        parse_settings({"spare": {"url": "u", "cost_usd": value}}, file="flags", model=Config)
    assert caught.value.key == "spare.cost_usd"
    with pytest.raises(ConfigError, match=r"rates\.1: a number must be finite"):
        parse_settings({"rates": [1.0, value]}, file="flags", model=Config)


def test_whole_numbers_beyond_64_bits_and_lone_surrogates_name_their_line() -> None:
    """What JSON cannot carry is a fault of the file, not of the program."""
    with pytest.raises(ConfigError, match=r"proxy\.yaml:2: max_inflight: .*64 bits"):
        load("listen: x\nmax-inflight: 99999999999999999999999\n")
    with pytest.raises(ConfigError, match=r"proxy\.yaml:1: listen: text that is no UTF-8"):
        load('listen: "\\ud800"\n')
