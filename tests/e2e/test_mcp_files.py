"""The files from which clients, plugin marketplaces and the registry learn of the server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rltriage import __version__

ROOT = Path(__file__).resolve().parents[2]


def read(name: str) -> Any:
    return json.loads((ROOT / name).read_text("utf-8"))


def test_every_file_states_the_version_of_the_package() -> None:
    registry = read("server.json")
    assert read(".claude-plugin/plugin.json")["version"] == __version__
    assert registry["version"] == __version__
    assert [p["version"] for p in registry["packages"]] == [__version__]


def test_the_registry_entry_keeps_to_the_registry_s_limits() -> None:
    registry = read("server.json")
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", registry["name"])
    assert len(registry["description"]) <= 100
    assert registry["packages"][0]["transport"] == {"type": "stdio"}


def test_the_readme_proves_to_the_registry_who_owns_the_package() -> None:
    assert f"mcp-name: {read('server.json')['name']}" in (ROOT / "README.md").read_text("utf-8")


def test_plugin_and_marketplace_agree_on_the_name() -> None:
    plugin, market = read(".claude-plugin/plugin.json"), read(".claude-plugin/marketplace.json")
    assert [(p["name"], p["source"]) for p in market["plugins"]] == [(plugin["name"], "./")]
    assert list(read(".mcp.json")["mcpServers"]) == [plugin["name"]]
