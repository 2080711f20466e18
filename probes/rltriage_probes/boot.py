"""Entry of the worker, started by path in the user's interpreter: `python .../boot.py`.

Makes this one package importable and nothing beside it: in a wheel the folder above holds the server's
dependencies, which the user's code must not see. The file has to parse on every Python that a user may
name, Python 2.7 included, so that an old one gets a sentence and not a syntax error.
"""

# pyright: reportTypeCommentUsage=false
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 10)


def refusal(version, executable):
    # type: (tuple[int, int], str) -> str
    """The line that a too old Python answers with, or an empty string.

    It is `contract.Failed` as JSON, written out because nothing of the package can be imported then.
    """
    if version >= OLDEST:
        return ""
    import json

    failed = {
        "op": "failed",
        "id": 0,
        "kind": "bad_request",
        "happened": "%s is Python %d.%d; the probes need Python %d.%d or newer."
        % ((executable,) + tuple(version) + OLDEST),
        "do": "Name a newer interpreter that has torch: `python` in [pipeline] of the manifest, or --python.",
        "last_words": "",
    }
    return json.dumps(failed)


def make_importable():
    # type: () -> None
    """Let `rltriage_probes` be imported, without its folder (Python puts it there) or its parent on the path."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != HERE]
    if "rltriage_probes" in sys.modules:
        return
    import importlib.util

    init = os.path.join(HERE, "__init__.py")
    spec = importlib.util.spec_from_file_location("rltriage_probes", init, submodule_search_locations=[HERE])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rltriage_probes"] = module
    spec.loader.exec_module(module)


def main(arguments):
    # type: (list[str]) -> int
    """Run as the worker, or with `--zygote [ROOT]` or `--run-one` as one of the processes that it starts."""
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or os.curdir) != HERE]
    line = refusal(sys.version_info[:2], sys.executable)
    if line:
        print(line)
        sys.stdout.flush()
        return 1
    make_importable()
    from rltriage_probes import sandbox, serve

    if arguments[:1] == ["--zygote"]:
        return sandbox.zygote_main(*arguments[1:])
    if arguments == ["--run-one"]:
        return sandbox.run_one_main()
    return serve.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
