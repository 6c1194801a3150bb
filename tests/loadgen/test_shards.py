"""Workers, shards and merge: the same run as a single process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loadgen.conftest import Run
from tests.support.target import scripted

from breakeven.errors import InputError, NotReadyError
from breakeven_loadgen.replay.merge import merge
from breakeven_loadgen.replay.results import read_record, read_rows, write_record

SAME = ("index", "intended_s", "content_hash", "asked_output_tokens", "cancel_after", "warmup")


def pick(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in SAME) for row in rows]


OPTIONS: dict[str, Any] = {
    "trace": "synthetic:in=6,out=3", "arrival": "poisson", "rate": 100.0, "requests": 60,
    "warmup": 0.1, "seed": 5, "max_inflight": 61,
}  # fmt: skip


def test_workers_are_one_run(run: Run) -> None:
    """Three workers offer the same arrivals, times and bytes as one process, each once."""
    with scripted() as target:
        one, one_rows = run(target.url, **OPTIONS, metrics_url=(target.url,))
        many, many_rows = run(target.url, **OPTIONS, workers=3, metrics_url=(target.url,))
    assert pick(one_rows) == pick(many_rows)
    assert many.summary["arrivals"] == one.summary["arrivals"]
    assert len(read_record(many.folder)["clients"]) == 3
    gates = {g["name"]: g["passed"] for g in many.summary["gates"]}
    assert gates["accounting"] is True
    assert gates["tokens"] is True, "the parent's pages span all workers"
    assert sorted(p.name for p in many.folder.iterdir()) == [
        "engine.parquet", "provenance.json", "requests.parquet", "summary.json",
    ]  # fmt: skip


def test_merged_shards_are_one_run(run: Run, tmp_path: Path) -> None:
    """Shards run apart, merged in any order, equal the single run."""
    with scripted() as target:
        _, one_rows = run(target.url, **OPTIONS)
        parts = [run(target.url, **OPTIONS, shard=f"{i}/3")[0].folder for i in (2, 0, 1)]
    out = tmp_path / "all"
    out.mkdir()
    result = merge(out, parts)
    assert pick(read_rows(out).to_pylist()) == pick(one_rows)
    assert result.summary["state"] == "finished"
    assert result.summary["arrivals"]["never_started"] == 0


def test_a_missing_shard_is_said(run: Run, tmp_path: Path) -> None:
    """Two of three: partial, with the missing shard named."""
    with scripted() as target:
        parts = [run(target.url, **OPTIONS, shard=f"{i}/3")[0].folder for i in (0, 2)]
    result = merge(tmp_path, parts)
    assert result.summary["state"] == "incomplete", "nothing was killed"
    assert result.exit_code == 130
    assert "shards 1 of 3 are missing" in result.summary["notes"]
    assert result.summary["arrivals"]["never_started"] == 20


def test_parts_of_different_runs_do_not_merge(run: Run, tmp_path: Path) -> None:
    """Another seed, or the same shard twice, is refused by name."""
    with scripted() as target:
        a = run(target.url, **OPTIONS, shard="0/2")[0].folder
        b = run(target.url, **(OPTIONS | {"seed": 6}), shard="1/2")[0].folder
    with pytest.raises(InputError, match="another run"):
        merge(tmp_path, [a, b])
    with pytest.raises(InputError, match="holds shard 0 of 2"):
        merge(tmp_path, [a, a])


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"labels": {"engine": "simulated"}}, "labels"),
        ({"slo": {"ttft_s": 0.1}}, "slo"),
        ({"epsilon_s": 0.001}, "epsilon_s"),
        ({"target": {"model": "other"}}, "target.model"),
        ({"target": {"version": "9.9"}}, "target.version"),
        ({"options": {"arm": "draft"}}, "arm"),
        ({"options": {"acceptance": "synthetic"}}, "acceptance"),
    ],
)
def test_parts_measured_otherwise_do_not_merge(
    run: Run, tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    """One schedule, but another arm, engine or judgement: no one result under one label."""
    with scripted() as target:
        a, b = (run(target.url, **OPTIONS, shard=f"{i}/2")[0].folder for i in (0, 1))
    record = read_record(b)
    for name, value in change.items():
        old = record[name]
        record[name] = old | value if isinstance(old, dict) else value
    write_record(b, record)
    with pytest.raises(InputError, match="measured otherwise than the first") as caught:
        merge(tmp_path, [a, b])
    assert caught.value.key == key
    assert caught.value.file == str(b)


def test_shards_may_reach_the_target_by_other_addresses(run: Run, tmp_path: Path) -> None:
    """Each machine has its own way there, and its own paths: still one run."""
    with scripted() as target:
        a = run(target.url, **OPTIONS, shard="0/2")[0].folder
        b = run(target.url + "/v1", **OPTIONS, shard="1/2")[0].folder
    assert merge(tmp_path, [a, b]).summary["arrivals"]["offered"] == 60


def test_more_workers_than_slots_are_refused(run: Run) -> None:
    """--max-inflight is global: a worker without a slot is bad input."""
    with scripted() as target, pytest.raises(InputError, match="max-inflight"):
        run(target.url, **(OPTIONS | {"max_inflight": 2}), workers=3)


def test_a_worker_that_cannot_start_says_why(run: Run) -> None:
    """The first worker's error is the run's."""
    with pytest.raises(NotReadyError, match="/v1/models"):
        run("http://127.0.0.1:1", **OPTIONS, workers=2)
