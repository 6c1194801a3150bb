"""The sidecar: relays bytes between clients and engine arms and meters the streams."""
