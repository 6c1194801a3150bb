"""Decides for the relay: which arm, is there room, and what an arm's state is."""
