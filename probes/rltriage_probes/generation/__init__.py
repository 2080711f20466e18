"""Roles of the generation stage, one a file."""
