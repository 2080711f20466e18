"""Roles of the logprobs stage, one a file."""
