"""A simulated vLLM engine: an independent witness of the wire format. Never evidence."""
