"""The one measured HTTP/1.1 client connection to an engine, shared by proxy and generator."""
