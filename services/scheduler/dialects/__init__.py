"""Reading what models write: reasoning, tool calls and the text that a person may see.

Pure functions over text. `salvage.read_reply` is the way in; each other module knows one way of writing.
"""
