"""LM Studio, simulated: its OpenAI protocol, both management APIs, a card with so much memory, and its faults.

    python -m simulators.lmstudio --config FILE --port 0 --port-file F

What it sends follows measurements and reports of the real server; no part of it is asked of the engine.
"""
