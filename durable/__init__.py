"""The engine: durable workflows as a Django app. Knows no HTTP."""

__version__ = "0.1.0"
