"""Short checks before a tool runs, each a module of its own, composed in one visible list in `router.py`."""
