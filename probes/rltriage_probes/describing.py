"""The canonical signature of a role: what an adapter of it takes and gives."""

from __future__ import annotations

from collections.abc import Iterator

from rltriage_probes import registry
from rltriage_probes.contract import Described, DescribeRequest, Input, RoleDescription
from rltriage_probes.forms import DERIVED
from rltriage_probes.model import Role
from rltriage_probes.vocabulary import WORDS

RETURNS = {
    "per sample": "one number a sample [N], or [N, T]",
    "per token": "one number a token [B, T]",
    "scalar": "a scalar, or one number a token [B, T]",
    "mask": "a mask [B, T]",
    "text": "one text an input",
    "number": "one number an input",
}
"""What a function gives back, in words; what is not here the role's own line says."""


def describe(request: DescribeRequest) -> Described:
    """Raises `LookupError` for a role that has no probe."""
    names = request.roles or registry.names()
    return Described(id=request.id, roles=tuple(of_role(registry.role(name)) for name in names))


def of_role(role: Role) -> RoleDescription:
    said = role.asks.partition("->")[2].strip()
    return RoleDescription(
        name=role.name, stage=role.stage, asks=role.asks, returns=said or RETURNS.get(role.returns, ""),
        inputs=tuple(_inputs(role)),
    )  # fmt: skip


def _inputs(role: Role) -> Iterator[Input]:
    """Words under which the role's cases can hand something over."""
    given = role.example({}).inputs
    needed = [next((w for w in group if w in given), group[0]) for group in role.needs if group]
    for name in dict.fromkeys([*needed, *role.takes]):
        word = WORDS.get(name)
        reachable = name in given or bool(set(DERIVED.get(name, ())) & set(given))
        if word is not None and (reachable or word.kind == "scalar" or name in needed):
            yield Input(name=name, kind=word.kind, shape=word.shape, says=word.says, needed=name in needed)
