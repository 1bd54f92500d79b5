"""Imports point downward only, Locust stays in its corner, and nothing heavy is loaded early."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Lowest first. A module may import what stands in its own row or below. A name stands for a
# module, a package with all in it, and modules that are called NAME_something.
LAYERS = (
    ("tokenswarm", "records", "spec", "yaml_source"),
    ("backends", "sse", "shapes", "arrivals", "measure", "histogram", "snapshot", "slo",
     "validity", "compare", "economics", "drift", "lengths", "traces", "figures", "run",
     "resampling", "search", "steady", "samples", "clock", "target", "lookalike", "offload",
     "apart", "pace"),
    ("tokens", "prompts", "workload", "transport", "stream", "server_side", "simulator",
     "chat_template", "feed", "talks"),
    ("generator", "users", "distributed", "study", "calibrate", "probe", "check", "launch",
     "k8s_render"),
    ("exporters", "cli"),
    ("locustfiles", "demo"),
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MAY_IMPORT_LOCUST = {"locustfiles", "users", "distributed"}
HEAVY = {"locust", "gevent", "transformers", "tiktoken", "plotly", "scipy", "numpy", "pydantic",
         "yaml", "rich", "prometheus_client", "jinja2", "tokenizers"}  # fmt: skip


def layer_name(module: str) -> str:
    """The name in LAYERS of a dotted module: tokenswarm.tokens_hf -> tokens."""
    top, _, rest = module.partition(".")
    if top != "tokenswarm" or not rest:
        return top
    name = rest.partition(".")[0]
    while name not in RANK and "_" in name:
        name = name.rpartition("_")[0]
    return name


def sources():
    for top in ("tokenswarm", "exporters", "locustfiles"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if "_data" in path.parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path):
    """Dotted names that a file imports, functions included, with their lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


MODULES = dict(sources())


def test_every_module_has_its_layer():
    names = {layer_name(module) for module in MODULES}
    assert names - RANK.keys() == set()


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module):
    rank = RANK[layer_name(module)]
    upward = []
    for imported, line in imports(MODULES[module]):
        if imported.partition(".")[0] not in ("tokenswarm", "exporters", "locustfiles"):
            continue
        name = layer_name(imported)
        if name in RANK and RANK[name] > rank:
            upward.append(f"{MODULES[module].name}:{line}: {imported}")
    assert upward == []


def test_only_the_glue_imports_locust():
    guilty = {
        module
        for module, path in MODULES.items()
        for imported, _ in imports(path)
        if imported.partition(".")[0] == "locust"
    }
    assert {layer_name(module) for module in guilty} == MAY_IMPORT_LOCUST


def test_locustfiles_are_composition_only():
    for path in (ROOT / "locustfiles").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 40


def loaded_by(code: str) -> set[str]:
    """Top names of the modules that this code loads."""
    script = f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_command_line_loads_nothing_heavy():
    assert loaded_by("import tokenswarm.cli; tokenswarm.cli.parser()") & HEAVY == set()


def test_a_workers_modules_leave_the_slow_libraries_alone():
    slow = {"transformers", "tiktoken", "plotly", "scipy", "rich", "pandas"}
    assert loaded_by("import tokenswarm.distributed.worker") & slow == set()


def test_help_answers_in_a_blink():
    """Under 0.3 s where Python itself needs 0.05 s: four times as long, with slack."""

    def best(*command):
        times = []
        for _ in range(3):
            before = children_s()
            subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=ROOT)
            times.append(children_s() - before)
        return max(min(times), 0.03)  # some kernels count in steps of 10 ms, and Python is quick

    assert best("-m", "tokenswarm.cli", "--help") < 6 * best("-c", "pass") + 0.05


def children_s() -> float:
    """CPU time of the processes that have ended: other work on the machine does not count."""
    spent = os.times()
    return spent.children_user + spent.children_system
