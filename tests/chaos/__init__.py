"""Processes are killed at random moments while scripted runs go on; nothing may be lost and nothing done twice."""
