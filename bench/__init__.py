"""Measures the engine beside its floors: `python -m bench [NAMES…] [--quick] [--json]`.

`figures` says what is measured and against what, `groups` measure, `report` writes and prints. A floor is
the least that the same work costs on this machine with plain nats-py or httpx, taken in the same run.
"""
