"""Roles of the reward stage, one a file."""
