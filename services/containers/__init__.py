"""Where commands of a project run: its container, or plain processes when there is no Docker."""
