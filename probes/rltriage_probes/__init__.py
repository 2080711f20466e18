"""Probes: run in the user's interpreter; torch and the standard library only, Python 3.10+."""
