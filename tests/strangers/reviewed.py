"""Mutants that a person looked at and found right: (base, operator, `before -> after`) -> why.

An entry is a claim that the changed function is a legitimate variant under what its base declares. It is not a place
for what rltriage misses.
"""

LEGITIMATE: dict[tuple[str, str, str], str] = {}
