"""What goes wrong in environments, by id."""

from __future__ import annotations

from rltriage_probes.model import Pitfall

LEAK = Pitfall(
    id="ENV-RESET-LEAK",
    family="env-reset",
    says="keeps something of the last episode over a reset, so that an episode depends on the one before it",
)
REPLAY = Pitfall(
    id="ENV-NOT-REPEATABLE",
    family="env-nondeterminism",
    says="gives the same actions another observation or reward from one run to the next",
)
SEED = Pitfall(
    id="ENV-SEED-IGNORED",
    family="env-nondeterminism",
    says="takes a seed and draws from generators that the seed does not set",
)
STUCK = Pitfall(
    id="ENV-SEED-STUCK", family="env-nondeterminism", says="draws the same problem in every episode, whatever the seed"
)
GLOBAL_RNG = Pitfall(
    id="ENV-GLOBAL-RNG",
    family="env-nondeterminism",
    says="seeds the generators of the whole process, which the trainer and other environments draw from",
)
SHARED = Pitfall(
    id="ENV-SHARED-STATE", family="env-isolation", says="keeps an episode's state where other instances see it"
)
INPUT = Pitfall(
    id="ENV-ROW-MUTATED",
    family="env-isolation",
    says="writes into the row, data set or settings that the caller handed over",
)
ALIAS = Pitfall(
    id="ENV-OBSERVATION-ALIAS",
    family="aliasing",
    says="hands out its own mutable state as an observation, which later steps rewrite",
)
GROUP = Pitfall(
    id="ENV-GROUP-PROBLEM",
    family="grouping",
    says="gives the members of one group different problems, so that their rewards can't be compared",
)
GROUP_SIZE = Pitfall(
    id="ENV-GROUP-SIZE", family="grouping", says="makes another number of environments than the group has"
)
NONFINITE = Pitfall(
    id="ENV-REWARD-NOT-FINITE", family="nonfinite", says="pays NaN, infinity, None or something else that is no number"
)
GOLD = Pitfall(id="ENV-ANSWER-LOSES", family="sign", says="pays a wrong answer more than the right one")
NEVER_DONE = Pitfall(id="ENV-NEVER-DONE", family="truncation", says="has a limit that no episode ever reaches")
LIMIT_SHIFT = Pitfall(
    id="ENV-LIMIT-SHIFT", family="shift", says="ends an episode one step beside the limit that it declares"
)
FLAGS = Pitfall(
    id="ENV-TRUNCATED-AS-TERMINATED",
    family="truncation",
    says="reports running out of steps as a real end, so that the value of what would have followed is taken for 0",
)
AFTER_DONE = Pitfall(
    id="ENV-PAYS-AFTER-DONE", family="env-reset", says="goes on paying rewards behind the end of the episode"
)
RAISES = Pitfall(
    id="ENV-RAISES", family="reward-exception", says="raises on an action that a policy in training does produce"
)
PITFALLS = (
    LEAK, REPLAY, SEED, STUCK, GLOBAL_RNG, SHARED, INPUT, ALIAS, GROUP, GROUP_SIZE, NONFINITE, GOLD, NEVER_DONE,
    LIMIT_SHIFT, FLAGS, AFTER_DONE, RAISES,
)  # fmt: skip
