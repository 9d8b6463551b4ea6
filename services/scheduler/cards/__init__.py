"""Card telemetry: what a machine tells about its GPUs, and "unknown" for whatever it does not (KS 6.10, SysfsGpuTelemetry).

`machine.py` reads it all once, `matching.py` finds the configured cards in it, `telemetry.py` does both at an interval.
What the figures mean for leases is the arbiter's.
"""
