"""Roles of the advantages stage, one a file."""
