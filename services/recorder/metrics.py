"""What the recorder tells about itself at /metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

POSITION = Gauge("recorder_position", "Sequence of the last fact whose rows are stored", ["projection"])
LAG = Gauge("recorder_lag", "Facts in the log whose rows are not stored yet", ["projection"])
STUCK = Gauge("recorder_stuck", "1 while a projection cannot handle a fact and tries again", ["projection"])
ACTIVE = Gauge("recorder_active", "1 for the recorder that writes, 0 for one that stands by")
FACTS = Counter("recorder_facts", "Facts stored")
FAILURES = Counter("recorder_failures", "Attempts that a projection failed", ["projection"])
OUTAGES = Counter("recorder_outages", "Times that PostgreSQL or the log was away")
MENDED = Counter("recorder_mended_values", "Values that had to be changed to be stored")
UNREADABLE = Counter("recorder_unreadable_facts", "Facts that no reader of this version can parse")
