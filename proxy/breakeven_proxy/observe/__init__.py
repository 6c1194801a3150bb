"""Hears what the relay sees and turns it into metrics, recordings, spans and logs."""
