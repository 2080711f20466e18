"""Roles of the loss stage, one a file."""
