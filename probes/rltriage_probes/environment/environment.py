"""Role `environment`: a class or factory of environments, or a builder of groups of them.

No formula says what an environment pays. So it is driven: made and reset many times, with the actions that its source
and its problems suggest, and its episodes are compared with each other. An episode must depend on the problem, the
seed and the actions, and on nothing else: not on the episode before it, not on another instance, not on what the
caller does with an observation. What it promises in its docstring (a limit, a reward for malformed actions) it must
keep.

Runs are made comparable: each begins with the module globals and class attributes of the import, and each instance
has the process's random generators to itself. Where a difference goes away by putting one of these back, that is the
cause, and the finding says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rltriage_probes.contract import Check, Raised
from rltriage_probes.environment import actions, crowd, episodes, groups, target, world
from rltriage_probes.environment.building import Situation
from rltriage_probes.environment.driving import Trace, as_number, short
from rltriage_probes.environment.episodes import Exam, Play
from rltriage_probes.environment.pitfalls import (
    AFTER_DONE,
    ALIAS,
    FLAGS,
    GLOBAL_RNG,
    GOLD,
    INPUT,
    LEAK,
    LIMIT_SHIFT,
    NEVER_DONE,
    NONFINITE,
    PITFALLS,
    RAISES,
    REPLAY,
    SEED,
    SHARED,
    STUCK,
)
from rltriage_probes.environment.snapshots import frozen, shaken
from rltriage_probes.model import CallFailed, Case, Role, Subject
from rltriage_probes.reading import prose
from rltriage_probes.texts import accidental, agrees, quote, violates

_CARRIES_OVER = prose(
    r"curriculum|adaptive|persist\w*|across episodes|between episodes|lifelong|continual|remembers|never (resets"
    r"|cleared)"
    r"|long-term memory|warm start|carr(y|ies) over"
)
_LIVE = prose(r"\blive\b|same (list|object|array)|by reference|not copied|no copy|shared with|is the environment's own")
_RANDOM = prose(r"deterministic|reproduc\w*|\bseed\w*|same episode|repeatable")
_PAYS_MALFORMED = prose(
    r"(malformed|invalid|unparse?able|illegal|unknown|bad|wrong|broken)[^.;]{0,50}"
    r"(gives?|gets?|earns?|costs?|returns?|ends?|penal|reward|score|0\b|-\d|is told|observation|message|error text)"
    r"|never raises"
)
_LIMIT_PROMISE = prose(
    r"(after|at most|up to|within|maximum of|no more than|ends? (after|at)|truncat\w+ (after|at)|done (after|at"
    r"|when|once))"
    r"[^.;]{0,40}(turn|step|move|attempt|guess|action|call|round|\bmax_)"
)
_REFUSES = prose(
    r"(after|behind|beyond|once)[^.;]{0,25}(done|end|over|finished|terminated)[^.;]{0,40}"
    r"(raises?|refus|no(thing| reward| further)|ignored|\b0\b|error|no-?op|not allowed)"
)
_TRUNCATES = prose(r"truncat\w*")
_ABSTAINS = prose(
    r"\bNone\b[^.;]{0,40}(reward|until|intermediate|not (yet )?(final|known))|reward[^.;]{0,40}\bNone\b|Optional"
)
_DRAWS = re.compile(
    r"\.(choice|choices|randint|randrange|random|sample|shuffle|integers|uniform|normal|permutation|gauss)\("
)


def run(subject: Subject) -> Iterator[Check]:
    """All checks of an environment, or of a builder's group and of its first member."""
    bound = subject.bound
    assert isinstance(bound, target.EnvironmentTarget)
    exam = Exam(bound, subject.doc, subject.source)
    try:
        exam.explore()
    except CallFailed as e:
        outcome = Raised(error=e.error, where=e.where, case="the first episode")
        yield Check(probe="environment.call", asks="does an episode begin?", outcome=outcome)
        return
    try:
        yield from groups.check(exam)
        repeatable = yield from _replay(exam)
        yield from _seeds(exam)
        yield from _process_generators(exam)
        if repeatable:
            yield from _reset(exam)
            yield from _instances(exam)
            yield from _observations(exam)
        yield from _inputs(exam)
        yield from _rewards(exam)
        yield from _gold(exam)
        yield from _limit(exam)
        yield from _after_done(exam)
        yield from _malformed(exam)
        if repeatable:
            yield from crowd.check(exam)
        yield exam.latency()
    finally:
        bound.world.restore()


# Reset


def _reset(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.reset", "does reset give a clean start?"
    for before in exam.plays:
        found = _leak(exam, before)
        if found is None:
            continue
        says, numbers = found
        text = f"after an episode ({before.says}) and a reset, {says}"
        excused = bool(_CARRIES_OVER.search(exam.prose))
        yield violates(probe, asks, text, LEAK, severity="soft" if excused else "hard", numbers=numbers)
        return
    yield agrees(probe, asks, f"a reset after {len(exam.plays)} kinds of episode gives a fresh instance's episode")


def _leak(exam: Exam, before: Play) -> tuple[str, dict[str, float]] | None:
    """What an episode leaves behind: the next one compared with one after a reset without an episode between."""
    control, _ = exam.session()
    control.reset()
    owned = [world.generator_state(g) for g in world.own_generators(control.env)]
    states = control.states
    second = control.reset()
    after = exam.plays_for(control)
    control.close()
    for play in after:
        control, _ = exam.session()
        control.reset()
        control.reset()
        want = Trace(second, control.play(play.actions))
        used, _ = exam.session()
        used.reset()
        taken = used.play(before.actions)
        generators = world.own_generators(used.env)
        if len(generators) == len(owned):
            for generator, state in zip(generators, owned, strict=True):
                world.set_generator_state(generator, state)
        used.states = states
        got = Trace(used.reset(), used.play(play.actions))
        control.close()
        used.close()
        difference = want.difference(got, "without that episode", "behind it")
        if difference and not _by_shared_state(exam, before, play, want):
            return difference, {"steps before the reset": float(len(taken))}
    return None


def _by_shared_state(exam: Exam, before: Play, play: Play, want: Trace) -> bool:
    """Whether the leak is gone once globals and class attributes are put back: what instances share, named there."""
    used, _ = exam.session()
    used.reset()
    used.play(before.actions)
    if not exam.target.world.changed():
        used.close()
        return False
    exam.target.world.restore()
    got = Trace(used.reset(), used.play(play.actions))
    used.close()
    return not want.difference(got)


# Seeds and generators


def _replay(exam: Exam):  # noqa: ANN202  a generator of checks that ends with whether episodes repeat
    """The same problem, seed and actions give the same episode: without that nothing else can be compared."""
    probe, asks = "environment.replay", "do the same actions give the same observations and rewards?"
    for play in exam.plays:
        first, again = exam.trace(play), exam.trace(play)
        difference = first.difference(again)
        if difference:
            seed = exam.target.seeded_by
            says = f"two fresh instances{f' with one seed ({seed})' if seed else ''}, the same actions: {difference}"
            promised = bool(seed or _RANDOM.search(exam.prose))
            reward = any(word in difference for word in ("reward", "end of the episode"))
            yield violates(probe, asks, says, REPLAY, severity="hard" if promised or reward else "soft")
            return False
    steps = sum(len(p.actions) for p in exam.plays)
    yield agrees(probe, asks, f"{len(exam.plays)} episodes of {steps} actions repeat exactly in a fresh instance")
    return True


def _seeds(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.seed", "does the seed decide the episode?"
    seed = exam.target.seeded_by
    exam.uses_process = False
    for play in exam.plays:
        difference = exam.trace(play, noise=target.NOISE).difference(exam.trace(play, noise=target.NOISE + 1))
        if not difference:
            continue
        exam.uses_process = True
        if seed:
            says = (
                f"{seed} is given one seed, and with another state of the process's generators {difference}: "
                "the episode is drawn from those and not from the seed"
            )
            yield violates(probe, asks, says, SEED)
            return
        break
    drawn = any(_DRAWS.search(s) for s in exam.reset_sources())
    starts = {exam.beginning(Situation(seed=i), target.NOISE + i) for i in range(6)}
    if len(starts) == 1 and drawn and not exam.single_problem():
        says = "six instances with six seeds begin alike, though a problem is drawn: every episode is the same one"
        yield violates(probe, asks, says, STUCK, severity="soft", numbers={"seeds": 6.0, "different starts": 1.0})
        return
    if not seed and exam.uses_process:
        yield agrees(probe, asks, "takes no seed: draws from the process's generators")
    elif seed:
        yield agrees(probe, asks, f"{seed} decides the episode; {len(starts)} different starts from 6 seeds")
    else:
        yield agrees(probe, asks, "draws nothing, or from a generator of its own")


def _process_generators(exam: Exam) -> Iterator[Check]:
    """Whether the generators that belong to the trainer are set by the environment."""
    probe, asks = "environment.generators", "are the process's random generators left alone?"
    found: list[tuple[str, str]] = []
    for stage in ("making it", "reset", "a step"):
        names = _reseeded(exam, stage)
        found += [(stage, n) for n in names]
        if names:
            break
    if not found:
        yield agrees(probe, asks, "the process's generators are never seeded")
        return
    stage, names = found[0][0], ", ".join(n for _, n in found)
    given = stage == "reset" and any(p.kind == "seed" for p in exam.target.calls.reset_places)
    soft = stage == "making it" or (given and "torch" not in names)
    says = (
        f"{stage} seeds the process's generator of {names}: whatever the trainer drew before, the same numbers come "
        "after it, so that sampling, dropout and shuffling repeat themselves"
    )
    disturbed = _interleaved_without_own_generators(exam) if given else ""
    if disturbed:
        says += f"; and of two instances with seeds of their own, stepped in turn, {disturbed}"
    yield violates(probe, asks, says, GLOBAL_RNG, severity="soft" if soft and not disturbed else "hard")


def _reseeded(exam: Exam, stage: str) -> list[str]:
    """Generators whose state no longer depends on what it was before."""
    ends: list[list[str]] = []
    for noise in (101, 202):
        exam.target.world.restore()
        with world.kept_globals():
            world.seed_globals(noise)
            made = exam.target.recipe.make(Situation())
            if stage != "making it":
                session = episodes.plain_session(exam.target, made)
                world.seed_globals(noise)
                session.reset()
                if stage == "a step":
                    world.seed_globals(noise)
                    session.play(exam.plays[0].actions)
                session.close()
            ends.append(world.fingerprints())
    return [n for n, a, b in zip(world.global_names(), *ends, strict=False) if a == b]


def _interleaved_without_own_generators(exam: Exam) -> str:
    """Two seeded instances that share the process's generators, as in one real process: what goes wrong."""
    play = exam.plays[0]
    alone = exam.trace(play, noise=target.NOISE)
    exam.target.world.restore()
    with world.kept_globals():
        world.seed_globals(target.NOISE)
        one, _ = exam.target.session(Situation(), None, restore=False)
        two, _ = exam.target.session(Situation(seed=5, problem=1), None, restore=False)
        first = one.reset()
        two.reset()
        trace = Trace(first)
        for action in play.actions:
            trace.steps.append(one.step(action))
            if trace.steps[-1].done:
                break
            two.reset()
        one.close()
        two.close()
    return alone.difference(trace)


# Instances


def _instances(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.instances", "do two instances share nothing?"
    for play in exam.plays[:4]:
        found = _sequential(exam, play) or _interleaved(exam, play)
        if found:
            how, difference, changed = found
            says = f"{how}, {difference}"
            says += f"; they share {', '.join(changed[:3])}, which a run changes" if changed else ""
            yield violates(probe, asks, says, SHARED)
            return
    yield agrees(probe, asks, "one after another and in turn, instances have the episodes that they have alone")


def _sequential(exam: Exam, play: Play) -> tuple[str, str, list[str]] | None:
    alone = exam.trace(play)
    exam.target.world.restore()
    earlier, _ = exam.session(restore=False)
    earlier.episode(play.actions)
    changed = exam.target.world.changed()
    later, _ = exam.session(restore=False)
    trace = later.episode(play.actions)
    earlier.close()
    later.close()
    difference = alone.difference(trace, "alone", "after it")
    return (
        ("an instance that is made after another one's episode differs from the first", difference, changed)
        if difference
        else None
    )


def _interleaved(exam: Exam, play: Play) -> tuple[str, str, list[str]] | None:
    other_at = Situation(seed=3, problem=1)
    alone = exam.trace(play)
    others = exam.other_actions(other_at)
    exam.target.world.restore()
    one, _ = exam.session(restore=False)
    two, _ = exam.session(other_at, restore=False)
    try:
        trace = Trace(one.reset())
        two.reset()
        running = True
        for i, action in enumerate(play.actions):
            if running and i < len(others):
                running = not two.step(others[i]).done
            trace.steps.append(one.step(action))
            if trace.steps[-1].done:
                break
    finally:
        one.close()
        two.close()
    changed = exam.target.world.changed()
    difference = alone.difference(trace, "alone", "beside it")
    return ("with another instance stepped in turn, an episode changes", difference, changed) if difference else None


# What goes in and what comes out


def _inputs(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.inputs", "are the caller's data left as they were?"
    for play in exam.plays[:3]:
        session, made = exam.session()
        session.reset()
        resets = list(session.given)
        session.play(play.actions)
        session.close()
        placed = [
            *made.given,
            *zip((p for p in exam.target.calls.reset_places if p.kind != "default"), resets, strict=False),
        ]
        for place, value in placed:
            if place.kind == "seed" or place.name in ("state", "states", "state_dict") or callable(value):
                continue
            fresh = place.candidate.make(session.at)
            was, now = frozen(fresh, exact=True), frozen(value, exact=True)
            if was == now or type(fresh).__module__.startswith("rltriage_probes"):
                continue
            if was[0] == "list" == now[0] and sorted(map(repr, was[1])) == sorted(map(repr, now[1])):
                says = (
                    f"the caller's {place.name} are in another order after an episode: {short(now)} where {short(was)} "
                    f"was given"
                )
                yield violates(probe, asks, says, INPUT, severity="soft")
                return
            yield _written(exam, place.name, place.kind, was, now)
            return
    yield agrees(probe, asks, "rows, data sets and settings are the same after an episode")


def _written(exam: Exam, name: str, kind: str, was: Any, now: Any) -> Check:
    probe, asks = "environment.inputs", "are the caller's data left as they were?"
    says = f"the caller's {name} is {_part(was, now)} after an episode"
    again = _second_reset(exam)
    if again:
        says += f"; a second reset with the same object begins otherwise: {again}"
    return violates(probe, asks, says, INPUT, severity="hard" if again or kind in ("row", "rows") else "soft")


def _part(was: Any, now: Any) -> str:
    """The smallest part that changed."""
    a, b = was, now
    while isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x != y]
        if len(pairs) != 1:
            break
        a, b = pairs[0]
    return f"{short(b)} where it was {short(a)}" if a != was else f"{short(now)} where it was {short(was)}"


def _second_reset(exam: Exam) -> str:
    """How a second instance begins that is given the very objects of the first one."""
    session, _ = exam.session()
    first = session.reset()
    positional = [v for p, v in zip(exam.target.calls.reset_places, session.given, strict=False) if p.positional]
    places = [p for p in exam.target.calls.reset_places if p.kind != "default"]
    named = {p.name: v for p, v in zip(places, session.given, strict=False) if not p.positional}
    try:
        second = session.reset((positional, named))
    except CallFailed as e:
        return e.error
    finally:
        session.close()
    return "" if first == second else f"{short(second)} and not {short(first)}"


def _observations(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.observation", "is an observation a value of its own?"
    play = max(exam.plays, key=lambda p: len(p.actions))
    session, _ = exam.session()
    kept: list[tuple[int, Any, Any]] = [(0, session.reset(), None)]
    kept[0] = (0, kept[0][1], session.last)
    for i, action in enumerate(play.actions, 1):
        step = session.step(action)
        kept.append((i, frozen(step.observation), step.observation))
        if step.done:
            break
    session.close()
    live = bool(_LIVE.search(exam.prose))
    for i, was, value in kept:
        if frozen(value) != was:
            when = "of reset" if i == 0 else f"of step {i}"
            says = (
                f"the observation {when} was {short(was)} and has become {short(frozen(value))} while the episode "
                f"went on"
            )
            yield violates(
                probe,
                asks,
                says,
                ALIAS,
                severity="soft" if live else "hard",
                numbers={"steps after it": float(len(kept) - 1 - i)},
            )
            return
    found = _sensitive(exam)
    if found:
        says = f"the caller adds to the observation that it got, and {found}"
        yield violates(probe, asks, says, ALIAS, severity="soft")
        return
    yield agrees(probe, asks, "an observation stays as it was, and changing it changes nothing")


def _sensitive(exam: Exam) -> str:
    for play in exam.plays:
        want = exam.trace(play)
        session, _ = exam.session()
        first = session.reset()
        changed = shaken(session.last)
        if not changed:
            session.close()
            continue
        trace = Trace(first)
        try:
            for action in play.actions:
                trace.steps.append(session.step(action))
                if trace.steps[-1].done:
                    break
                shaken(session.last)
        except CallFailed as e:
            return f"the next step raises {e.error}"
        finally:
            session.close()
        difference = want.difference(trace)
        if difference:
            return difference
    return ""


# Rewards


def _rewards(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.reward", "is every reward a finite number?"
    missing = 0
    exam.malformed()
    for action, step in exam.all_steps():
        value = as_number(step.reward)
        if value == value and abs(value) != float("inf"):
            continue
        if step.reward is None:
            missing += 1
            if not step.done or exam.pays_nowhere:
                continue
            soft = action in actions.MALFORMED or bool(_ABSTAINS.search(exam.prose))
            says = f"the episode ends with {quote(action)}, and the reward is None"
            yield violates(probe, asks, says, NONFINITE, severity="soft" if soft else "hard")
            return
        if isinstance(step.reward, (Mapping, list, tuple, str)):
            continue
        yield violates(probe, asks, f"{quote(action)} earns {quote(step.reward)}", NONFINITE)
        return
    extra = f"; None on {missing} steps that end nothing" if missing else ""
    yield agrees(probe, asks, f"{len(exam.all_steps())} rewards, all finite{extra}")


def _gold(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.answer", "does the right answer earn the most?"
    best, gold, wrong = exam.standing()
    if gold is None or wrong is None:
        if best is not None:
            yield agrees(probe, asks, f"rewards from {best[0]:g} to {best[1]:g} over {len(exam.tried)} first actions")
        return
    (gold_action, paid), (wrong_action, less) = gold, wrong
    if paid > less:
        yield agrees(probe, asks, f"{quote(gold_action)} earns {paid:g}, {quote(wrong_action)} earns {less:g}")
    elif paid < less:
        says = f"the right answer {quote(gold_action)} earns {paid:g}, {quote(wrong_action)} earns {less:g}"
        yield violates(probe, asks, says, GOLD, severity="hard" if exam.sure_of_gold else "soft")
    else:
        says = f"{len(exam.tried)} first actions, among them {quote(gold_action)}, all earn {paid:g}"
        yield agrees(probe, asks, says)


# The end


def _limit(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.limit", "does an episode end, and when it should?"
    name, limit = exam.limit()
    longest = (limit or 12) + 4
    ends = [exam.endless(action, longest) for action in exam.waiting[:3]]
    if not ends:
        yield agrees(probe, asks, "every action that was tried ends the episode")
        return
    last, steps = min(((e, n) for e, n, _ in ends), key=lambda e: (not _ended(e[0]), e[1] != limit, e[1]))
    if last is None or not last.done:
        if name and exam.compares(name):
            says = f"{name} = {limit}, and after {longest} steps the episode still goes on"
            hard = bool(_LIMIT_PROMISE.search(exam.prose)) and len({e[1] for e in ends}) == 1
            yield violates(
                probe,
                asks,
                says,
                NEVER_DONE,
                severity="hard" if hard else "soft",
                numbers={"limit": float(limit), "steps": float(longest)},
            )
        else:
            yield agrees(probe, asks, f"no end of its own within {longest} steps: the caller limits the episode")
        return
    counts = {e[1] for e in ends if e[0] is not None and e[0].done}
    if name and abs(max(counts) - limit) == 1 and len(counts) == 1 and exam.compares(name):
        says = f"{name} = {limit}, and the episode ends at step {max(counts)}"
        hard = bool(_LIMIT_PROMISE.search(exam.prose))
        yield violates(
            probe,
            asks,
            says,
            LIMIT_SHIFT,
            severity="hard" if hard else "soft",
            numbers={"limit": float(limit), "steps": float(max(counts))},
        )
        return
    if last.truncated is not None and name and steps == limit:
        yield from _flags(exam, last, name, limit)
        return
    yield agrees(
        probe, asks, f"ends at step {steps}" + (f", as {name} = {limit} says" if name and steps == limit else "")
    )


def _ended(last: Any) -> bool:
    return last is not None and last.done


def _flags(exam: Exam, last: Any, name: str, limit: int) -> Iterator[Check]:
    probe, asks = "environment.flags", "is running out of steps told apart from coming to an end?"
    if last.truncated and not last.terminated:
        yield agrees(probe, asks, f"truncated, not terminated, at {name} = {limit}")
    else:
        says = f"at {name} = {limit} the episode has terminated={last.terminated}, truncated={last.truncated}"
        yield violates(probe, asks, says, FLAGS, severity="hard" if _TRUNCATES.search(exam.prose) else "soft")


def _after_done(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.after_done", "is a step behind the end refused?"
    paid = 0.0
    for play in exam.plays:
        session, _ = exam.session()
        session.reset()
        taken = session.play(play.actions)
        if not taken or not taken[-1].done:
            session.close()
            continue
        try:
            more = session.step(play.actions[len(taken) - 1])
        except CallFailed as e:
            yield agrees(probe, asks, f"a step after the end raises {quote(e.error)}")
            return
        finally:
            session.close()
        value = as_number(more.reward)
        promised = bool(_REFUSES.search(exam.prose))
        if more.done and not (promised and value):
            paid = max(paid, abs(value) if value == value else 0.0)
            continue
        says = f"after the end another {quote(play.actions[len(taken) - 1])} earns {value:g}, done={more.done}"
        says += "; the docstring says that it is refused" if promised else ". Does the rollout loop stop at the end?"
        yield violates(probe, asks, says, AFTER_DONE, severity="hard" if promised else "soft")
        return
    says = f"earns up to {paid:g} again: the caller has to stop" if paid else "pays nothing"
    yield agrees(probe, asks, f"a step after the end {says}")


def _malformed(exam: Exam) -> Iterator[Check]:
    probe, asks = "environment.malformed", "does it take what a policy says early in training?"
    failed = exam.malformed()
    if failed is None:
        return
    promised = bool(_PAYS_MALFORMED.search(exam.prose))
    bad = [(a, e) for a, e in failed if accidental(e) or promised]
    if not bad:
        yield agrees(probe, asks, "takes, or refuses on purpose, every malformed action that was tried")
        return
    action, e = bad[0]
    says = f"{quote(action)} raises {e.error} at {e.where}"
    says += "; the docstring says what such an action gives" if promised else ". Does the rollout loop catch that?"
    yield violates(
        probe,
        asks,
        says,
        RAISES,
        severity="hard" if promised else "soft",
        numbers={"actions that raise": float(len(bad))},
    )


def example(intent: Mapping[str, Any]) -> Case:
    """Environments have no tensors: the binder of this role makes what it needs."""
    return Case(name="none", inputs={})


ROLE = Role(
    name="environment",
    stage="environment",
    asks="environment, or builder of a group: reset -> observation, step(action) -> observation, reward, end",
    takes=(),
    needs=(),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
    bind=target.bind,
)
