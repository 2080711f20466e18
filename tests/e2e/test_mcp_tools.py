"""The tools as a client of either protocol era sees them, through the SDK's own client."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from rltriage import content
from rltriage.app import INSTRUCTIONS, build_server

pytestmark = pytest.mark.anyio

SNAPSHOTS = Path(__file__).parent / "snapshots"
ERAS = ("legacy", "auto")
DECLARED = {"algorithm": "grpo", "group_size": 4}


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return request.param


def client(era: str, progress_every_s: float = 4.0) -> Client:
    return Client(build_server(progress_every_s), mode=era, read_timeout_seconds=90)


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


# What is offered


async def test_every_tool_says_who_it_is_and_what_each_parameter_means(era: str) -> None:
    async with client(era) as c:
        tools = (await c.list_tools()).tools
    for tool in tools:
        assert tool.title, tool.name
        assert len(tool.description or "") < 2000, tool.name
        hints = tool.annotations
        assert hints is not None, tool.name
        assert None not in (
            hints.read_only_hint,
            hints.destructive_hint,
            hints.idempotent_hint,
            hints.open_world_hint,
        ), tool.name
        for name, schema in tool.input_schema.get("properties", {}).items():
            assert schema.get("description"), f"{tool.name}.{name}"
        assert (tool.output_schema is None) == (tool.name == "read_page")


async def test_the_interface_of_each_tool_is_the_recorded_one() -> None:
    """A change of the interface must be seen in review: RLTRIAGE_UPDATE_SNAPSHOTS=1 records it."""
    async with client("auto") as c:
        tools = (await c.list_tools()).tools
    for tool in tools:
        file = SNAPSHOTS / f"{tool.name}.json"
        text = (
            json.dumps(tool.model_dump(mode="json", by_alias=True, exclude_none=True), indent=2, sort_keys=True) + "\n"
        )
        if os.environ.get("RLTRIAGE_UPDATE_SNAPSHOTS"):
            file.write_text(text, "utf-8")
        assert text == file.read_text("utf-8"), tool.name
    assert {t.name for t in tools} == {p.stem for p in SNAPSHOTS.glob("*.json")}


async def test_the_instructions_reach_the_client_uncut(era: str) -> None:
    async with client(era) as c:
        assert c.instructions == INSTRUCTIONS
    assert len(INSTRUCTIONS.encode()) <= 2048


# What is found


async def test_a_right_function_is_clean_and_the_other_stages_stay_open(era: str, grpo: Path, user_python: str) -> None:
    async with client(era) as c:
        result = await c.call_tool(
            "check_advantages",
            {
                "target": "algos.py:compute_advantages",
                "project_root": str(grpo),
                "intent": DECLARED,
                "python": user_python,
            },
        )
    assert not result.is_error, text_of(result)
    data = result.structured_content
    assert data["verdict"] == "clean", data
    assert data["findings"] == []
    assert data["recognised"][0]["convention"]
    assert [s["status"] for s in data["stages"] if s["stage"] != "advantages"] == ["not_covered"] * 4
    assert "check_logprobs" in data["next_step"]


async def test_a_bug_is_named_with_numbers_in_both_forms_of_the_answer(era: str, grpo: Path, user_python: str) -> None:
    async with client(era) as c:
        result = await c.call_tool(
            "check_advantages",
            {
                "target": "algos.py:damped_advantages",
                "project_root": str(grpo),
                "intent": DECLARED,
                "python": user_python,
            },
        )
    data = result.structured_content
    assert data["verdict"] == "findings"
    finding = data["findings"][0]
    assert finding["families"] == ["epsilon"]
    assert finding["numbers"]
    assert finding["severity"] == "hard"
    for stated in (finding["pitfalls"][0], finding["message"], data["next_step"], data["summary"]):
        assert stated in text_of(result)
    assert next(iter(data)) == "summary"
    assert len(json.dumps(data)) < 32_000


async def test_a_pipeline_with_open_stages_is_never_called_complete(grpo: Path, user_python: str) -> None:
    manifest = {"pipeline": DECLARED, "targets": {"advantages": {"ref": "algos.py:compute_advantages"}}}
    async with client("auto") as c:
        result = await c.call_tool(
            "run_verify_pipeline", {"project_root": str(grpo), "manifest": manifest, "python": user_python}
        )
    data = result.structured_content
    assert data["verdict"] == "incomplete"
    assert "not complete" in data["summary"]
    assert "check_reward" in data["next_step"]


async def test_a_pipeline_without_a_manifest_is_found_in_the_source(grpo: Path, user_python: str) -> None:
    (grpo / "algos.py").write_text((grpo / "algos.py").read_text().split("\n\n\ndef loud_")[0])
    async with client("auto") as c:
        result = await c.call_tool("run_verify_pipeline", {"project_root": str(grpo), "python": user_python})
    assert not result.is_error, text_of(result)
    targets = {t for s in result.structured_content["stages"] for t in s["targets"]}
    assert "algos.py:compute_advantages" in targets or "algos.py:damped_advantages" in targets


async def test_the_embedded_example_has_findings_in_its_stages_and_the_answer_leads_to_a_page(user_python: str) -> None:
    from rltriage import cli

    async with client("legacy") as c:
        arguments = {"project_root": str(cli.example().parent), "python": user_python}
        data = (await c.call_tool("run_verify_pipeline", arguments)).structured_content
        assert data["verdict"] == "findings"
        page = next(page for f in data["findings"] for page in f["pages"])
        assert not (await c.call_tool("read_page", {"page_id": page})).is_error
    assert data["not_run"] == []
    assert [f["stage"] for f in data["findings"] if f["severity"] == "hard"] == sorted(
        (f["stage"] for f in data["findings"] if f["severity"] == "hard"),
        key=[s["stage"] for s in data["stages"]].index,
    )


async def test_an_input_that_nothing_could_be_bound_to_is_bound_by_the_next_call(grpo: Path, user_python: str) -> None:
    source = (
        "def f(q, group_size):\n    g = q.view(-1, group_size)\n    return (g - g.mean(1, keepdim=True)).view(-1)\n"
    )
    (grpo / "odd.py").write_text(source)
    call = {"target": "odd.py:f", "project_root": str(grpo), "python": user_python}
    async with client("auto") as c:
        first = (await c.call_tool("check_advantages", call)).structured_content
        second = (await c.call_tool("check_advantages", {**call, "bind": {"q": "rewards"}})).structured_content
    assert first["verdict"] == "incomplete"
    assert 'bind={"q": WORD}' in first["next_step"], first
    assert second["verdict"] == "clean", second


async def test_words_of_the_user_s_code_stay_out_of_summary_and_next_step(grpo: Path, user_python: str) -> None:
    async with client("auto") as c:
        result = await c.call_tool(
            "check_advantages", {"target": "algos.py:rude_advantages", "project_root": str(grpo), "python": user_python}
        )
    data = result.structured_content
    assert data["verdict"] == "incomplete"
    assert "IGNORE ALL" in json.dumps(data)
    own_words = {k: v for k, v in data.items() if k not in ("user_output", "findings", "not_run")}
    assert "IGNORE ALL" not in json.dumps(own_words)
    assert all("IGNORE ALL" not in f["message"] + f["next"] for f in data["findings"])


async def test_two_calls_at_once_are_both_answered(grpo: Path, user_python: str) -> None:
    verdicts: dict[str, str] = {}

    async def check(c: Client, name: str) -> None:
        result = await c.call_tool(
            "check_advantages",
            {"target": f"algos.py:{name}", "project_root": str(grpo), "intent": DECLARED, "python": user_python},
        )
        verdicts[name] = result.structured_content["verdict"]

    async with client("auto") as c, anyio.create_task_group() as tg:
        tg.start_soon(check, c, "compute_advantages")
        tg.start_soon(check, c, "damped_advantages")
    assert verdicts == {"compute_advantages": "clean", "damped_advantages": "findings"}


# What is refused


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("check_advantages", {"target": "algos.py:f", "settngs": {}}, "did you mean settings?"),
        ("check_advantage", {"target": "algos.py:f"}, "did you mean check_advantages?"),
        ("check_advantages", {"target": "algos.py:f", "timeout_s": 0}, "timeout_s"),
        ("check_loss", {"target": "algos.py:f", "role": "advantages"}, "policy_loss"),
        ("check_advantages", {"target": "nowhere.py:f"}, "There is no file nowhere.py"),
        ("check_advantages", {"target": "src/algos.py:f"}, "Did you mean algos.py?"),
        ("check_advantages", {"target": "../algos.py:f"}, "outside of the project"),
        ("check_advantages", {"target": "algos.py"}, "names no function"),
        ("run_verify_pipeline", {"manifest_path": "no.toml"}, "There is no manifest no.toml"),
        ("run_verify_pipeline", {"manifest": {"targets": {"advantges": {"ref": "a.py:f"}}}}, "did you mean advantages"),
        ("read_page", {"page_id": "NO-SUCH-PAGE"}, "read_page lists all pages"),
    ],
)
async def test_a_foreseen_failure_says_how_to_do_it_right(
    tool: str, arguments: dict[str, Any], says: str, grpo: Path
) -> None:
    if tool != "read_page":
        arguments = {"project_root": str(grpo), **arguments}
    async with client("auto") as c:
        result = await c.call_tool(tool, arguments)
    assert result.is_error
    assert says in text_of(result)
    assert "Traceback" not in text_of(result)


async def test_an_interpreter_that_does_not_exist_is_no_crash(grpo: Path) -> None:
    async with client("auto") as c:
        result = await c.call_tool(
            "check_advantages",
            {"target": "algos.py:compute_advantages", "project_root": str(grpo), "python": "/no/such/python"},
        )
    assert "/no/such/python" in text_of(result)
    assert result.is_error or result.structured_content["verdict"] == "incomplete"


# Pages


async def test_a_page_is_the_same_by_tool_and_as_a_resource(era: str) -> None:
    page = content.list_pages()[0]
    async with client(era) as c:
        listed = {r.uri: r for r in (await c.list_resources()).resources}
        uri = f"rltriage://pages/{page.id}"
        read = (await c.read_resource(uri)).contents[0]
        tool = await c.call_tool("read_page", {"page_id": uri})
    assert listed[uri].mime_type == read.mime_type == "text/markdown"
    assert page.title in read.text
    assert tool.structured_content is None
    assert text_of(tool) == read.text


async def test_a_resource_that_does_not_exist_is_an_error_with_the_nearest_ids(era: str) -> None:
    async with client(era) as c:
        with pytest.raises(MCPError, match="no page"):
            await c.read_resource("rltriage://pages/NO-SUCH-PAGE")


# While a call runs


async def test_progress_grows_and_goes_on_while_a_function_is_silent(
    era: str, grpo: Path, user_python: str, endless_pids: Callable[[], list[int]]
) -> None:
    heard: list[float] = []
    silent_since = 10**6
    enough = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total == 100
        assert message
        heard.append(progress)
        if len(heard) >= silent_since + 5:
            enough.set()

    async def endless(c: Client) -> None:
        arguments = {"target": "algos.py:endless_advantages", "project_root": str(grpo), "python": user_python}
        await c.call_tool("check_advantages", arguments, progress_callback=hear)

    async with client(era, progress_every_s=0.2) as c, anyio.create_task_group() as tg:
        tg.start_soon(endless, c)
        await anyio.to_thread.run_sync(endless_pids)
        silent_since = len(heard)
        with anyio.fail_after(10):
            await enough.wait()
        tg.cancel_scope.cancel()
    assert all(a < b for a, b in itertools.pairwise(heard))
    assert heard[-1] < 100


async def test_a_cancelled_call_leaves_neither_child_nor_grandchild(
    era: str, grpo: Path, user_python: str, endless_pids: Callable[[], list[int]], deaths: Any
) -> None:
    async def endless(c: Client) -> None:
        arguments = {"target": "algos.py:endless_advantages", "project_root": str(grpo), "python": user_python}
        await c.call_tool("check_advantages", arguments)

    async with client(era) as c:
        async with anyio.create_task_group() as tg:
            tg.start_soon(endless, c)
            killed = deaths(await anyio.to_thread.run_sync(endless_pids))
            assert len(killed.pids) == 2
            tg.cancel_scope.cancel()
        survivors = await anyio.to_thread.run_sync(killed.survivors, 5.0)
        assert survivors == []
        again = await c.call_tool(
            "check_advantages",
            {
                "target": "algos.py:compute_advantages",
                "project_root": str(grpo),
                "intent": DECLARED,
                "python": user_python,
            },
        )
    assert again.structured_content["verdict"] == "clean"


async def test_a_function_that_never_returns_ends_with_the_budget_and_is_no_evidence(
    grpo: Path, user_python: str, endless_pids: Callable[[], list[int]], deaths: Any
) -> None:
    arguments = {
        "target": "algos.py:endless_advantages",
        "project_root": str(grpo),
        "python": user_python,
        "timeout_s": 8,
    }
    async with client("auto") as c:
        data = (await c.call_tool("check_advantages", arguments)).structured_content
        assert deaths(endless_pids()).survivors(5.0) == []
    assert data["verdict"] == "incomplete"
    assert data["not_run"][0]["do"]


async def test_a_pipeline_ends_with_its_budget_and_says_of_every_function_that_it_was_not_measured(
    grpo: Path, user_python: str
) -> None:
    ref = "algos.py:endless_advantages"
    targets = {name: {"ref": ref} for name in ("advantages", "advantages-2", "advantages-3", "advantages-4")}
    arguments = {
        "project_root": str(grpo),
        "manifest": {"targets": targets},
        "python": user_python,
        "timeout_s": 5,
        "detail": "full",
    }
    async with client("auto") as c:
        with anyio.fail_after(30):
            data = (await c.call_tool("run_verify_pipeline", arguments)).structured_content
    assert data["verdict"] == "incomplete"
    assert data["not_run"]
    assert all(n["do"] for n in data["not_run"])


def test_the_server_process_never_imports_torch_nor_a_probe() -> None:
    import subprocess

    code = (
        "import sys, rltriage.app; rltriage.app.build_server();"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'transformers', 'jinja2')"
        " or m.startswith('rltriage_probes.') and m != 'rltriage_probes.contract'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
