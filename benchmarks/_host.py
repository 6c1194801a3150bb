"""What the machine says of itself."""

from __future__ import annotations

import os


def stolen_s() -> float:
    """CPU seconds that the hypervisor took from this machine so far (proc(5), steal)."""
    with open("/proc/stat", encoding="ascii") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
