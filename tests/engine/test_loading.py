"""The import ladder: how files that can't simply be imported are loaded, and what is never loaded."""

# ruff: noqa: E501  the code under examination is written as users write it

from __future__ import annotations

from pathlib import Path

import pytest

from rltriage_probes import loading
from rltriage_probes.contract import Block, LocateRequest, TargetSpec
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded, LoadFailed


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def load(root: Path, ref: str, block: Block | None = None) -> Loaded:
    return loading.load(root, TargetSpec(name="t", role="advantages", ref=ref, block=block))


def test_a_file_with_siblings_is_imported_as_its_author_runs_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/helper.py": "K = 3\n",
            "src/user.py": "from helper import K\ndef f(x, eps=1e-4):\n    return x * K + 7\n",
        },
    )
    got = load(tmp_path, "src/user.py:f")
    assert got.report.rung == "import"
    assert got.function(2) == 13
    assert got.report.line == 2
    assert set(got.literals) == {7.0, 1e-4, 3.0}


def test_an_edit_is_seen_by_the_next_load(tmp_path: Path) -> None:
    write(tmp_path, {"helper.py": "K = 1\n", "user.py": "from helper import K\ndef f():\n    return K\n"})
    assert load(tmp_path, "user.py:f").function() == 1
    write(tmp_path, {"helper.py": "K = 20\n"})
    assert load(tmp_path, "user.py:f").function() == 20


def test_a_package_whose_init_fails_is_passed_by(tmp_path: Path) -> None:
    write(tmp_path, {
        "pkg/__init__.py": "raise RuntimeError('needs a cluster')\n", "pkg/const.py": "K = 5\n",
        "pkg/sub/__init__.py": "from .algo import f\nimport nowhere_at_all\n", "pkg/sub/algo.py": "from ..const import K\ndef f():\n    return K\n",
    })  # fmt: skip
    for ref in ("pkg.sub.algo:f", "pkg/sub/algo.py:f"):
        got = load(tmp_path, ref)
        assert (got.report.rung, got.function()) == ("bare packages", 5)


def test_a_missing_library_is_stood_in_for_and_calling_it_is_no_result(tmp_path: Path) -> None:
    write(tmp_path, {"user.py": "import flashy\nfrom megalib.core import Trainer, register\n"
                     "@register('x')\ndef f(x):\n    return x + 1\nclass T(Trainer):\n    def g(self, x):\n        return x\n"
                     "def uses(x):\n    try:\n        return flashy.kernel(x)\n    except Exception:\n        return 0\n"})  # fmt: skip
    got = load(tmp_path, "user.py:f")
    assert got.report.rung == "stand-ins"
    assert set(got.report.stand_ins) == {"flashy", "megalib"}
    assert got.function(1) == 2
    assert load(tmp_path, "user.py:T.g").function(None, 3) == 3
    hidden = load(tmp_path, "user.py:uses")
    hidden.function(1)
    assert hidden.stand_ins is not None
    with pytest.raises(NotReached, match=r"flashy\.kernel"):
        hidden.stand_ins.check()


def test_a_guarded_import_is_never_stood_in_for(tmp_path: Path) -> None:
    write(tmp_path, {"user.py": "import megalib\nimport importlib.util\ntry:\n    import flashy\n    FLASH = True\n"
                     "except ImportError:\n    FLASH = False\ndef f():\n    return FLASH, importlib.util.find_spec('flashy') is not None\n"})  # fmt: skip
    assert load(tmp_path, "user.py:f").function() == (False, False)


def test_a_script_that_parses_arguments_is_cut_up(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\n"
                     "args = p.parse_args()\nEPS = 1e-4\ndef helper(x):\n    return x + EPS\ndef f(x):\n    return helper(x) * 2\n"})  # fmt: skip
    got = load(tmp_path, "train.py:f")
    assert got.report.rung == "extracted"
    assert got.function(1.0) == 2.0002


def test_a_script_that_trains_when_imported_is_not_run(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "def f(x):\n    return x\nfor step in range(10):\n    open('ran', 'w').close()\n    loss.backward()\n"
        },
    )
    assert load(tmp_path, "train.py:f").function(4) == 4
    assert not (tmp_path / "ran").exists()


def test_wrappers_of_torch_compile_are_taken_off(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "user.py": "import torch\n@torch.compile\ndef f(x):\n    return x\n@torch.compile(dynamic=True)\ndef g(x):\n    return x\n"
        },
    )
    for name in "fg":
        assert not hasattr(load(tmp_path, f"user.py:{name}").function, "_torchdynamo_orig_callable")


def test_a_class_stands_for_its_call(tmp_path: Path) -> None:
    write(tmp_path, {"user.py": "from torch import nn\nclass L(nn.Module):\n    def forward(self, x):\n        return x\n"
                     "class Base:\n    def run(self, x):\n        return x\nclass D(Base):\n    pass\n"
                     "class S:\n    @staticmethod\n    def h(x):\n        return -x\n"})  # fmt: skip
    assert load(tmp_path, "user.py:L").qualname == "L.forward"
    assert load(tmp_path, "user.py:D.run").kind == "method"
    assert load(tmp_path, "user.py:S.h").function(2) == -2


def test_lines_become_a_function_of_the_names_they_read(tmp_path: Path) -> None:
    write(tmp_path, {"user.py": "EPS = 1.0\nclass T:\n    def step(self, batch):\n        r = self.score(batch)\n"
                     "        g = r.view(-1, self.n)\n        adv = g - g.mean(1, keepdim=True) + EPS - EPS\n        return adv\n"})  # fmt: skip
    got = load(tmp_path, "user.py#L5-L6")
    assert list(got.signature().parameters) == ["r", "self"]
    by_text = load(tmp_path, "user.py", Block(start="g = r.view", stop="adv = g", output="adv.sum()"))
    assert by_text.report.line == 5


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("user.py:nope", "defines no nope"),
        ("gone.py:f", "no file gone.py"),
        ("gone_module:f", "no module gone_module"),
        ("user", "names no function"),
        ("broken.py:f", "can't be read as Python"),
        ("../outside.py:f", "outside the project root"),
        ("user.py#L90", "no line 90"),
        ("user.py:C", "several methods: a, b"),
    ],
)
def test_what_can_not_be_loaded_says_why(tmp_path: Path, ref: str, words: str) -> None:
    root = tmp_path / "project"
    write(
        root,
        {
            "user.py": "def f(): pass\nclass C:\n    def a(self): pass\n    def b(self): pass\n",
            "broken.py": "def f(:\n",
        },
    )
    write(tmp_path, {"outside.py": "def f(): pass\n"})
    with pytest.raises(LoadFailed, match=words):
        load(root, ref)


def test_packages_are_located_without_running_them(tmp_path: Path) -> None:
    write(tmp_path, {"third_party/trl/trl/__init__.py": "__version__ = '9.9'\nraise SystemExit\n"})
    got = loading.locate(LocateRequest(id=1, root=str(tmp_path), packages=("trl", "torch", "not_there_at_all")))
    assert set(got.packages) == {"trl", "torch"}
    assert got.packages["trl"].package == "trl 9.9"
    assert got.packages["trl"].file.endswith("third_party/trl/trl/__init__.py")
    assert got.packages["torch"].package.startswith("torch 2")
