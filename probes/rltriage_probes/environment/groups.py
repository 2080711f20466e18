"""Builders of groups: every member of a GRPO group attempts the same problem, alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rltriage_probes.contract import Check
from rltriage_probes.environment import world
from rltriage_probes.environment.building import GROUP_SIZES, Situation
from rltriage_probes.environment.driving import Session, Trace, short
from rltriage_probes.environment.episodes import Exam
from rltriage_probes.environment.pitfalls import GROUP, GROUP_SIZE, SHARED
from rltriage_probes.environment.target import NOISE, Made, first_observations
from rltriage_probes.texts import agrees, violates

_GROUP = re.compile(r"\bgroups?\b|group_size|grpo|rloo|same (question|problem|prompt|task)|attempts? (at|of)", re.I)


def check(exam: Exam) -> Iterator[Check]:
    """Size, problems and separation of the members; nothing where no list of environments is made."""
    _, made = exam.session()
    if made.grouped:
        yield from _size(exam, made)
        if len(made.members) > 1:
            yield from _problems(exam)
            yield from _apart(exam)
    elif any(p.kind == "row" for p in exam.target.calls.reset_places):
        yield from _one_row(exam)


def _about_groups(exam: Exam) -> bool:
    loaded = exam.target.sources.loaded
    named = f"{loaded.qualname} {loaded.doc} {exam.prose}"
    return _GROUP.search(named.replace("_", " ")) is not None or _GROUP.search(named) is not None


def _problems(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.group", "do all members of a group get the same problem?"
    seen: list[int] = []
    for i in range(3):
        _, made = exam.session(Situation(seed=i, problem=i), NOISE + i)
        first = first_observations(exam.target, made, Situation(seed=i, problem=i), NOISE + i)
        different = list(dict.fromkeys(map(repr, first)))
        seen.append(len(different))
        if len(different) > 1:
            other = next(v for v in first if repr(v) != repr(first[0]))
            says = (
                f"{len(first)} environments are made as one group and show {len(different)} different first "
                f"observations, {short(first[0])} and {short(other)} among them"
            )
            numbers = {"members": float(len(first)), "problems": float(len(different))}
            yield violates(
                probe, asks, says, GROUP, severity="hard" if _about_groups(exam) else "soft", numbers=numbers
            )
            return
    yield agrees(probe, asks, f"{len(seen)} groups, in each of them one problem for all members")


def _size(exam: Exam, made: Made) -> Iterator[Check]:
    probe, asks = "environment.group_size", "has a group as many members as it says?"
    wanted = _declared_size(exam, made)
    if wanted is None:
        return
    if wanted == len(made.members):
        yield agrees(probe, asks, f"{wanted} members, as declared")
    else:
        says = f"{wanted} members are declared and {len(made.members)} are made"
        numbers = {"declared": float(wanted), "made": float(len(made.members))}
        yield violates(probe, asks, says, GROUP_SIZE, numbers=numbers)


def _declared_size(exam: Exam, made: Made) -> int | None:
    given = {p.name: v for p, v in made.given if p.name in GROUP_SIZES}
    held = {k.strip("_"): v for k, v in getattr(made.maker, "__dict__", {}).items()} if made.maker is not None else {}
    for name in GROUP_SIZES - {"n", "group", "num_samples"}:
        value = given.get(name, held.get(name))
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _apart(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.members", "do the members of a group share nothing?"
    _, made = exam.session()
    if len({id(m) for m in made.members}) < len(made.members):
        says = f"{len(made.members)} members are {len({id(m) for m in made.members})} object(s): they share one episode"
        yield violates(probe, asks, says, SHARED)
        return
    for play in exam.plays[:4]:
        alone = _member(exam, play.actions, disturbed=False)
        beside = _member(exam, play.actions, disturbed=True)
        difference = alone.difference(beside, "alone", "beside it")
        if difference:
            says = f"when another member of the group is stepped in turn, {difference}"
            yield violates(probe, asks, says, SHARED)
            return
    yield agrees(probe, asks, "a member's episode is the same whatever the others do")


def _member(exam: Exam, actions: tuple[Any, ...], *, disturbed: bool) -> Trace:
    """The episode of the second member while the first one is idle, or is stepped with the same actions."""
    _, made = exam.session()
    with world.kept_globals():
        world.seed_globals(NOISE)
        states = world.global_states()
    first = Session(exam.target.lab, made.members[0], exam.target.calls, Situation(), list(states))
    second = Session(exam.target.lab, made.members[1], exam.target.calls, Situation(), list(states))
    try:
        first.reset()
        trace = Trace(second.reset())
        running = disturbed
        for action in actions:
            running = running and not first.step(action).done
            trace.steps.append(second.step(action))
            if trace.steps[-1].done:
                break
    finally:
        first.close()
        second.close()
    return trace


def _one_row(exam: Exam) -> Iterator[Check]:
    """Environments that are handed their problem: two of one group must begin alike, whatever is drawn beside it."""
    probe, asks = "environment.group", "do all members of a group get the same problem?"
    if any(p.kind == "seed" for p in exam.target.places()):
        return
    one, two = exam.start(Situation(), NOISE), exam.start(Situation(), NOISE + 1)
    if one == two:
        yield agrees(probe, asks, "two instances with the same row begin alike")
    else:
        says = (
            f"two instances with the same row begin with {short(one)} and {short(two)}: what is drawn must be "
            f"drawn once a group"
        )
        yield violates(probe, asks, says, GROUP, severity="soft")
