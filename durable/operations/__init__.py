"""What the outside asks of the engine: one verb a module, one transaction each."""
