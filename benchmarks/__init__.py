"""Measurements of the server as its users meet it: over HTTP, with real workers, on each database."""
