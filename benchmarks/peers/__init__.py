"""The same work on other systems, alternating with ours in one run: `python -m benchmarks.peers`.

The modules here run in two environments. What ends in `_worker`, `_starter` or `starter_process` runs in the peers'
own, `.venv-peers`, and may import of the project only what needs the standard library alone; everything else runs in
`.venv`.
"""
