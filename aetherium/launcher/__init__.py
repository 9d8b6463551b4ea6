"""The local engine: embedded infrastructure and every service, under one supervisor."""
