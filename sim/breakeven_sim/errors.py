"""Errors of the simulator.

SimError
├── SimInputError   the user's fault: a flag, a draft file, a trace (exit 2)
└── EngineDied      the simulated engine is gone (exit 1)

Independent of the other rooms on purpose: the simulator imports none of them.
"""

from __future__ import annotations


class SimError(Exception):
    """Root of every error that this package raises."""


class SimInputError(SimError):
    """Bad input; the message quotes the value and says the mend."""


class EngineDied(SimError):
    """The simulated engine is gone: `--fault die`, or a bug in the step loop."""
