"""Which tests are deep: run by `make test` and CI, left out of `make check`, which must stay under five minutes."""

from __future__ import annotations

import pytest

DEEP = {
    "test_reproduction.py": "executes the reproduction of every specimen in an interpreter of its own",
    "test_strangers.py": "judges hundreds of generated functions",
    "test_selftest.py": "starts the command several times",
    "test_train_step.py": "takes several training steps a specimen",
    "test_model_factory.py": "builds several models a specimen",
    "test_generate_role.py": "samples until a z-test can tell",
    "test_environment_role.py": "plays hundreds of episodes a specimen",
    "test_preference_loss.py": "a hundred mutants and every pair of options",
    "test_reward_model_loss.py": "as test_preference_loss.py",
    "test_gae.py": "every pair of options in each layout",
    "test_value_loss.py": "as test_gae.py",
    "test_reward_shaping.py": "as test_gae.py",
    "test_reward_role.py": "runs graders in processes of their own",
    "test_extract_answer.py": "every format in each specimen",
    "test_nurseries.py": "imports packages anew in processes of their own",
    "test_cli_targets.py": "starts the command once a test",
}
"""File -> why it takes long."""
PAGES_BLOCKS = ("test_the_probes_name_a_pages_bug", "test_the_probes_find_nothing_hard_in_a_pages_fix")
"""Both blocks of every page: `rltriage selftest` runs them too. `make check` runs one page in eight."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    pages = 0
    for item in items:
        name = item.name.split("[")[0]
        if name in PAGES_BLOCKS:
            pages += 1
            deep = pages % 8 != 0
        else:
            deep = item.path.name in DEEP
        if deep:
            item.add_marker(pytest.mark.deep)
