"""The command line: exit codes, messages, configuration files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.target import Call, Target, good, scripted

from breakeven import __version__
from breakeven.exitcodes import ExitCode
from breakeven_loadgen.cli import COMMANDS, run

CONV = Path(__file__).resolve().parents[1] / "data/traces/azure-2023-conv-head1000.csv"
MOON = CONV.with_name("mooncake-conversation-head1500.jsonl")


def replay(*args: str) -> ExitCode:
    return run(["replay", *args])


def test_help_lists_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the commands, the exit codes and an example."""
    assert run(["--help"]) is ExitCode.OK
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert all(code.meaning.split(";")[0].split(",")[0] in out for code in ExitCode)
    assert "loadgen demo" in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command's --help works and shows how it is called."""
    assert run([name, "--help"]) is ExitCode.OK
    assert "Example" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """One version string for all."""
    assert run(["--version"]) is ExitCode.OK
    assert capsys.readouterr().out == f"loadgen {__version__}\n"


@pytest.mark.parametrize("fault", [ValueError("CANARY"), KeyError("CANARY")])
def test_a_fault_of_ours_is_one_line_without_its_message(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1 with kind and place; a message could quote what was sent, and is not printed."""

    def broken(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr("breakeven_loadgen.worksheet_report.worksheet", broken)
    args = ["--baseline-ms", "1", "--k", "1", "--alpha", "1", "--draft-ms", "1", "--verify-ms", "1"]
    assert run(["worksheet", *args]) is ExitCode.ERROR
    err = capsys.readouterr().err
    assert f"internal error: {type(fault).__name__} at test_cli.py:" in err
    assert "CANARY" not in err
    assert "Traceback" not in err


def test_output_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk behind a redirect: exit 1, said in words."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("breakeven_loadgen.worksheet_report.print_worksheet", full)
    args = ["--baseline-ms", "1", "--k", "1", "--alpha", "1", "--draft-ms", "1", "--verify-ms", "1"]
    assert run(["worksheet", *args]) is ExitCode.ERROR
    assert "No space left on device; free space" in capsys.readouterr().err


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the hand is exit 2 with the nearest command."""
    assert run(["repaly"]) is ExitCode.USAGE
    assert "did you mean replay?" in capsys.readouterr().err


def test_unknown_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for options."""
    assert replay("x.csv", "--rat", "3") is ExitCode.USAGE
    assert "--rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "--trace: is missing"),
        (["synthetic:in=1,out=1"], "--url: is missing"),
        (["--rate", "0"], "--rate: a rate must be a finite number above 0"),
        (["--rate", "-3"], "--rate"),
        (["--rate", "nan"], "rate"),
        (["--rate", "inf"], "rate"),
        (["--duration", "0"], "--duration: must be above 0"),
        (["--duration", "5 parsecs"], "duration"),
        (["--requests", "0"], "--requests"),
        (["--max-inflight", "0"], "--max-inflight"),
        (["--cancel-share", "2"], "--cancel-share"),
        (["--arrival", "burst"], "--arrival"),
        (["--arrival", "trace"], "synthetic traffic has no times"),
        (["--shard", "4/4"], "--shard"),
        (["--shard", "0/2", "--workers", "2"], "--workers"),
        (["--start-at", "1"], "--start-at"),
        (["--window", "5:2"], "--window"),
        (["--goodput", "ttfb:1s"], "did you mean ttft?"),
        (["--goodput", "ttft:1parsec"], "unknown unit"),
        (["--token-ids", "9:3"], "--token-ids"),
        (["--header", "no colon"], "--header"),
        (["--abort-below", "0"], "--abort-below"),
        (["--content", "/none.jsonl"], "the pool cannot be read"),
        (["--metrics-listen", "nonsense"], "--metrics-listen"),
        (["--metrics-listen", "127.0.0.1:99999"], "--metrics-listen"),
        (["--metrics-listen", "127.0.0.1:\u00b2"], "--metrics-listen"),
        (["--rate", "1e-300"], "a run lasts a year at most"),
        (["--rate", "nan"], "finite (got nan)"),
        (["--usd-per-hour", "nan"], "--usd-per-hour: a number must be finite"),
        (["--min-goodput", "nan"], "--min-goodput: a number must be finite"),
        (["--min-goodput", "900"], "--min-goodput: must be a percentage"),
        (["--abort-below", "nan"], "--abort-below: a number must be finite"),
        (["--start-at", "nan"], "--start-at: a number must be finite"),
        (["--start-at", "1e300"], "in seconds (not milliseconds)"),
        (["--seed", "9" * 26], "--seed: a whole number beyond 64 bits"),
        (["--shard", "\u00b2/3"], "--shard: must be i/n"),
        (["--shard", "0/\u00b2"], "--shard: must be i/n"),
        (["--token-ids", "5:\u00b2"], "--token-ids"),
        (["--token-ids", "0:99999999999999999999"], "--token-ids"),
        (["--workers", "1000000"], "--workers"),
        (["--block-size", "0"], "--block-size: must be at least 1"),
        (["--warmup", "1h"], "all 2 arrivals fall into the warm-up"),
        (["--header", "Content-Length: 9"], "--header: cannot be set so (got 'Content-Length')"),
        (["--header", "X Y: 9"], "--header: cannot be set so"),
        (["--skip", "-1"], "--skip: must not be negative (got -1)"),
        (["--seed", "-2"], "--seed: must not be negative (got -2)"),
        (["--block", "-3"], "--block: must not be negative (got -3)"),
        (["--goodput", ""], "goodput: unknown SLO kind"),
        (["--workers", "2", "--metrics-listen", "127.0.0.1:9"], "--metrics-listen: cannot be used"),
        (
            [
                "synthetic:in=10000001,out=1",
                "--url",
                "http://127.0.0.1:1",
                "--out",
                "o",
                "--rate",
                "1",
                "--requests",
                "2",
            ],
            "at most 10000000 tokens (got 10000001)",
        ),
        (["--out", "a\0b"], "--out: cannot be used as a folder"),
    ],
)
def test_bad_input_is_exit_2_and_nothing_is_sent(
    args: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Option, value and mend are named; the target is not touched."""
    with scripted() as target:
        base: list[str] = []
        if args:
            base = ["synthetic:in=1,out=1"]
        if args and args[0].startswith("--"):
            base += ["--url", target.url, "--out", str(tmp_path / "o"), "--requests", "2"]
            if "--rate" not in args:
                base += ["--rate", "5"]
        elif args:
            base = []
        assert replay(*base, *args) is ExitCode.USAGE
        assert not target.calls
    assert not (tmp_path / "o").exists(), "nothing was written"
    err = capsys.readouterr().err
    assert words in err
    assert "command line" not in err, "a flag is named as it was typed"


def test_config_file_and_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys are the long options; a flag wins over the file."""
    path = tmp_path / "replay.yaml"
    with scripted() as target:
        path.write_text(
            f"trace: synthetic:in=4,out=2\nurl: {target.url}\nrate: 100\nrequests: 9\n"
            f"max-inflight: 50\narrival: constant\nwarmup: 10ms\nmetrics-url: [{target.url}]\n"
            f"out: {tmp_path / 'a'}\n"
        )
        code = replay("--config", str(path), "--requests", "4", "--json")
        assert len(target.calls) == 4
    assert code in (ExitCode.OK, ExitCode.NOT_EVIDENCE)
    summary = json.loads(capsys.readouterr().out)
    assert summary["arrivals"]["offered"] == 4
    assert summary["arrivals"]["warmup"] == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rat: 3\n", "c.yaml:1: rat: unknown key; did you mean rate?"),
        ("rate: 3\nduration: soon\n", "c.yaml:2: duration"),
        ("rate: [\n", "not valid YAML"),
        ("- 1\n", "must be a mapping"),
    ],
)
def test_bad_config_names_the_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """File, line, key and mend."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert replay("--config", str(path)) is ExitCode.USAGE
    assert words in capsys.readouterr().err


def test_a_page_that_is_no_engines_is_exit_3_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--metrics-url of something else: not ready (3), the flag and the URL are said."""
    with scripted() as target:
        url = f"{target.url}/health"
        args = ["--rate", "5", "--requests", "2", "--url", target.url, "--metrics-url", url]
        code = replay("synthetic:in=1,out=1", *args, "--out", str(tmp_path / "o"))
        assert code is ExitCode.UNREACHABLE
    assert f"--metrics-url {url}: " in capsys.readouterr().err


def test_unreachable_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing listens there: named, exit 3."""
    args = ["synthetic:in=1,out=1", "--rate", "5", "--requests", "2", "--out", str(tmp_path / "o")]
    assert replay(*args, "--url", "http://127.0.0.1:1") is ExitCode.UNREACHABLE
    assert "127.0.0.1:1/v1/models" in capsys.readouterr().err
    assert replay(*args, "--url", "http://127.0.0.1:1", "--workers", "2") is ExitCode.UNREACHABLE
    assert not (tmp_path / "o").exists(), "no empty folder is left behind"


def test_all_failed_is_exit_6_and_report_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run in which every request failed, then its report: tables, page, CSV."""

    async def script(call: Call, target: Target) -> None:
        await call.answer(500, b'{"error": {"message": "leak-canary"}}')

    out = tmp_path / "o"
    with scripted(script) as target:
        args = ["synthetic:in=1,out=1", "--rate", "50", "--requests", "5", "--url", target.url]
        assert replay(*args, "--out", str(out)) is ExitCode.ALL_FAILED
    capsys.readouterr()
    assert run(["report", str(out), "--csv", str(tmp_path / "rows.csv")]) is ExitCode.OK
    shown = capsys.readouterr().out
    assert "http_500" in (tmp_path / "rows.csv").read_text()
    assert "error" in shown
    page = (out / "report.html").read_text("utf-8")
    for text in (shown, page, (tmp_path / "rows.csv").read_text()):
        assert "leak-canary" not in text


def test_min_goodput_is_exit_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A threshold that was asked for and missed, unless a gate failed before it."""
    with scripted() as target:
        args = ["synthetic:in=1,out=4", "--rate", "50", "--requests", "5", "--url", target.url]
        args += ["--out", str(tmp_path / "o"), "--goodput", "ttft:1us", "--min-goodput", "99"]
        code = replay(*args)
    assert code in (ExitCode.THRESHOLD_MISSED, ExitCode.NOT_EVIDENCE)
    assert "below --min-goodput 99 %" in capsys.readouterr().out


def test_report_of_no_result_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is none of ours is named."""
    assert run(["report", str(tmp_path)]) is ExitCode.USAGE
    assert "no readable provenance.json" in capsys.readouterr().err
    (tmp_path / "provenance.json").write_text('{"breakeven_provenance": 1, "state": "finished"}')
    assert run(["report", str(tmp_path)]) is ExitCode.USAGE
    assert "is missing" in capsys.readouterr().err


def test_a_refused_merge_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, the part is named, and nothing was made."""
    code = run(["merge", str(tmp_path / "all"), str(tmp_path / "nosuch")])
    assert code is ExitCode.USAGE
    assert "nosuch" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_merge_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two shards by command line, one result."""

    async def script(call: Call, target: Target) -> None:
        await good(call, target)

    with scripted(script) as target:
        for i in (0, 1):
            replay("synthetic:in=1,out=2", "--rate", "50", "--requests", "8", "--url", target.url,
                   "--shard", f"{i}/2", "--out", str(tmp_path / f"s{i}"))  # fmt: skip
    capsys.readouterr()
    parts = [str(tmp_path / "s0"), str(tmp_path / "s1")]
    run(["merge", str(tmp_path / "all"), *parts, "--json"])
    assert json.loads(capsys.readouterr().out)["arrivals"]["offered"] == 8


# --- traces --------------------------------------------------------------------------------------


def test_trace_inspect(capsys: pytest.CaptureFixture[str]) -> None:
    """The facts of the README of the traces: rate, CV about 1, lengths; a picture."""
    assert run(["trace", "inspect", str(CONV)]) is ExitCode.OK
    out = capsys.readouterr().out
    assert "1,000 in 216.0 s" in out
    assert "█" in out
    assert run(["trace", "inspect", str(CONV), "--json"]) is ExitCode.OK
    facts = json.loads(capsys.readouterr().out)
    assert facts["arrivals"] == 1000
    assert sum(facts["counts"]) == 1000
    assert 0.8 < facts["gap_cv"] < 1.3


def test_trace_freeze_and_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A frozen public trace verifies; prefixes stay equal where they were, under new names."""
    frozen = tmp_path / "f.jsonl"
    assert run(["trace", "freeze", str(MOON), str(frozen), "--step", "100ms"]) is ExitCode.OK
    assert "warning: the step of 0.1 s" in capsys.readouterr().err
    assert run(["trace", "verify", str(frozen)]) is ExitCode.OK
    lines = [json.loads(line) for line in frozen.read_text().splitlines()]
    assert lines[1]["prefix"][0] == lines[2]["prefix"][0]
    assert len(lines) == 1501
    assert run(["trace", "freeze", str(MOON), str(frozen)]) is ExitCode.USAGE, "no overwriting"


def test_trace_verify_refuses_a_planted_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that is not allowed is named, its text never."""
    path = tmp_path / "t.jsonl"
    run(["trace", "convert", str(CONV), str(path)])
    with path.open("a") as file:
        file.write('{"t": 999, "in": 1, "out": 1, "prompt": "leak-canary"}\n')
    capsys.readouterr()
    assert run(["trace", "verify", str(path)]) is ExitCode.USAGE
    error = capsys.readouterr().err
    assert "t.jsonl:1002: prompt: field not allowed" in error
    assert "leak-canary" not in error


def test_converted_trace_replays_like_the_original(tmp_path: Path) -> None:
    """Converting changes neither times nor lengths."""
    from breakeven_loadgen.traffic.formats import load_trace

    path = tmp_path / "t.jsonl"
    run(["trace", "convert", str(CONV), str(path)])
    before, after = load_trace(str(CONV)).arrivals, load_trace(str(path)).arrivals
    assert [(a.in_tokens, a.out_tokens) for a in before] == [
        (a.in_tokens, a.out_tokens) for a in after
    ]
    assert all(abs(a.t - b.t) < 1e-8 for a, b in zip(before, after, strict=True))
