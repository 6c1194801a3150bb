"""Write the dashboards' JSON, or check that it did not drift: `python -m dashboards.generate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as dash
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from . import does_the_draft_pay, on_call, replay

FOLDER = Path(__file__).resolve().parent / "json"
SOURCES = {
    "does_the_draft_pay": does_the_draft_pay.build,
    "on_call": on_call.build,
    "replay": replay.build,
}


def numbered(build: Callable[[], dash.Dashboard]) -> model.Dashboard:
    """The dashboard with panel ids in order: links to a panel stay valid from import to import."""
    made = build().build()
    for number, panel in enumerate(made.panels or [], start=1):
        panel.id_val = number
    return made


def rendered() -> dict[str, str]:
    """File name -> JSON text, keys sorted, so that a diff shows what changed."""
    return {
        f"{name}.json": json.dumps(numbered(build), cls=JSONEncoder, indent=2, sort_keys=True)
        + "\n"
        for name, build in SOURCES.items()
    }


def drifted() -> list[str]:
    """Names whose committed file is not what the sources give, and files that no source gives."""
    texts = rendered()
    wrong = [
        name
        for name, text in texts.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text("utf-8") != text
    ]
    return wrong + [path.name for path in FOLDER.glob("*.json") if path.name not in texts]


def main(argv: list[str]) -> int:
    """Exit 1 with `--check` where a file drifted; write the files without it."""
    if argv == ["--check"]:
        wrong = drifted()
        if wrong:
            sys.stderr.write(f"drifted: {', '.join(wrong)}; run: python -m dashboards.generate\n")
        return 1 if wrong else 0
    if argv:
        sys.stderr.write("usage: python -m dashboards.generate [--check]\n")
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (FOLDER / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
