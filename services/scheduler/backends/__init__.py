"""Talking to inference servers: one module per kind of server, behind the `Backend` of `base`."""
