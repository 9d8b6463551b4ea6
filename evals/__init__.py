"""How good models are at work in this engine: tasks with deterministic checks, run through the whole of it and reported."""
