"""`make bench`: runs the benchmarks named on the command line, or all of them, one after another.

A benchmark is a module `benchmarks/<room>_<what>.py` with `main() -> int`. It measures in one run
against a peer and prints ratios; the machine is shared, so nothing here is a test. What was
recorded stands in benchmarks/RESULTS.md with machine, versions and date.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Hours, not minutes: only when named.
LONG = {"decision", "decision_vllm"}


def names() -> list[str]:
    """All benchmarks there are, by module name."""
    return sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def main(argv: list[str]) -> int:
    """Exit status: the number of benchmarks that failed, at most 1; 2 for an unknown name."""
    known = names()
    unknown = [name for name in argv if name not in known]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in argv or [name for name in known if name not in LONG]:
        print(f"\n=== {name}", flush=True)
        if importlib.import_module(f"benchmarks.{name}").main():
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return min(1, len(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
