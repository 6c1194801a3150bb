"""A simulated vLLM engine: an independent witness of the wire format. Never evidence.

`breakeven_sim.engine` is the pure discrete-step model on a virtual clock; `breakeven_sim.server`
serves it over HTTP in real time; `breakeven_sim.sweep` prints tables of it.
"""
