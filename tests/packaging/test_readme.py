"""What the README promises: its commands exist, its configurations parse, its sample is what is printed."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

from rltriage import cli, manifest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_command_runs_the_example_and_the_second_all_tests() -> None:
    first, second = blocks("sh")[0].splitlines()

    assert (first, second) == ("make run", "make test")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    run, test = (re.search(rf"^{t}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE) for t in ("run", "test"))
    assert run is not None and "verify --example" in run[1]
    assert test is not None and "pytest -n auto -m 'not frameworks'" in test[1]
    assert second in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_sample_is_what_the_example_prints() -> None:
    shown = re.search(r"<!-- sample: begin -->\n```text\n(.*?)```\n<!-- sample: end -->", README, re.DOTALL)

    assert shown is not None
    assert shown[1] == script("readme_sample").sample(), "run: python scripts/readme_sample.py"


def test_every_command_line_of_the_readme_is_understood() -> None:
    lines = re.findall(r"(?:uvx )?rltriage ((?:init|verify|page|doctor|serve)[^`#\n]*)", "\n".join(blocks("sh")))
    lines += re.findall(r"`rltriage ([^`]+)`", README)

    assert len(lines) >= 6
    for line in lines:
        cli.build_parser().parse_args(line.split())


def test_every_script_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"scripts/\w+\.py", README))

    assert named
    assert [n for n in named if not (ROOT / n).is_file()] == []


def test_the_configurations_of_clients_parse_and_start_the_server() -> None:
    servers: list[dict[str, object]] = []
    for text in blocks("json"):
        data = json.loads(text)
        servers += (data.get("mcpServers") or data["servers"]).values()
    servers += [t["mcp_servers"]["rltriage"] for text in blocks("toml") if "mcp_servers" in (t := tomllib.loads(text))]

    assert len(servers) == 4
    for server in servers:
        assert server["command"] == "uvx"
        assert server["args"] == ["rltriage", "serve"]


def test_the_manifest_of_the_readme_is_understood_without_a_warning(tmp_path: Path) -> None:
    (text,) = (t for t in blocks("toml") if "[pipeline]" in t)

    understood = manifest.from_mapping(tomllib.loads(text), root=tmp_path)

    assert [t.role for t in understood.targets] == ["advantages", "policy_loss"]
    assert understood.warnings == ()


def test_the_files_that_the_readme_links_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]

    assert links
    assert [link for link in links if not (ROOT / link).is_file()] == []
