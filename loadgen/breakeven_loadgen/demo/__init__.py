"""`loadgen demo`: the whole loop on the simulated engine. Rests on nothing real, and says so."""
