"""Team definitions that ship with the engine, as files."""
