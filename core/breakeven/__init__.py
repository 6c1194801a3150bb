"""Breakeven's shared, pure library: bytes, numbers and times in, values out.

Nothing here awaits, opens, reads a clock or the environment; what does lives in a
shell room (`breakeven_proxy`, `breakeven_loadgen`) or in `breakeven_wire`.
"""

__version__ = "0.1.0"
