"""Workflows as code: a run is its facts, and its code re-executes against them (ARCHITECTURE §4).

`history` is what the log says, `journal` adds what happens now, `context` is all that a topology sees,
`verify` re-executes a run from its log alone.
"""
