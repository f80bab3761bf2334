"""What the Makefile runs. Nothing here is part of the server."""
