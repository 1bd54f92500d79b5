"""The command line: what it takes, what it says, and its exit codes."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tokenswarm import __version__, cli, launch
from tokenswarm.records import BadInput

CORPUS = launch.data_folder("workloads") / "sample_sharegpt.json"


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "w.yaml"
    path.write_text(yaml.safe_dump({
        "name": "small", "seed": 3,
        "backend": {"kind": "openai-completions", "model": "m"},
        "tokenizer": {"source": "tiktoken", "path": "cl100k_base"},
        "prompts": {"path": str(CORPUS), "input_tokens": 40, "output_tokens": 5},
        "load": {"mode": "open", "arrivals": "constant", "rate_per_s": 4, "duration": "10s"},
    }))  # fmt: skip
    return path


def usage_error(*argv):
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    return end.value.code


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "COMMAND"),
        (["rnu"], "invalid choice: 'rnu'"),
        (["run", "w.yaml"], "--host"),
        (["run"], "WORKLOAD.yaml"),
        (["run", "w.yaml", "--host", "http://h", "--workers", "-1"], "from 0 to 1024, got '-1'"),
        (["run", "w.yaml", "--host", "http://h", "--workers", "x"], "from 0 to 1024, got 'x'"),
        (["run", "w.yaml", "--host", "http://h", "--users", "3"], "--users"),
        (["check"], "WORKLOAD.yaml"),
        (["prompts", "w.yaml", "-n", "many"], "many"),
    ],
)
def test_bad_usage_is_exit_code_2(argv, text, capsys):
    assert usage_error(*argv) == 2
    assert text in capsys.readouterr().err


def test_every_command_has_one_line_of_help(capsys):
    assert usage_error("--help") == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert name in shown
        assert "\n" not in command.help
    assert "exit codes:" in shown


def test_examples_of_the_help_are_no_mistakes(monkeypatch, capsys):
    monkeypatch.chdir(launch.data_folder("workloads").parent)
    checks = [line.split() for line in cli.parser().epilog.splitlines() if " check " in line]
    assert [words[1] for words in checks] == ["check"]
    assert cli.main(checks[0][1:]) == 0
    assert "users: 8" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name != "simulate"])
def test_every_option_says_what_it_does(name):
    options = cli.parser()._subparsers._group_actions[0].choices[name]._actions
    assert [action.dest for action in options if not action.help] == []


def test_the_version(capsys):
    assert usage_error("--version") == 0
    assert capsys.readouterr().out == f"tokenswarm {__version__}\n"


def test_a_file_that_is_not_there(capsys):
    assert cli.main(["check", "/nowhere/w.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tokenswarm: /nowhere/w.yaml")


def test_each_mistake_has_its_own_line(workload, capsys):
    sets = ["--set", "load.rate_per_s=0", "--set", "prompts.input_tokens=none", "--set", "sed=1"]
    assert cli.main(["check", str(workload), *sets]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("tokenswarm: ") for line in lines)


def test_check_prints_the_resolved_workload_and_the_plan(workload, capsys):
    assert cli.main(["check", str(workload), "--set", "load.rate_per_s=2"]) == 0
    out = capsys.readouterr().out
    resolved = yaml.safe_load(out)  # the plan is comments
    assert resolved["load"]["rate_per_s"] == 2
    assert resolved["timeouts"]["connect"] in ("10s", 10, 10.0)
    assert "POST <host>/v1/completions" in out
    assert "stage main: 2 requests/s for 10 s (measured)" in out
    assert "20 arrivals (constant)" in out
    assert "first due at (s): 0.0000, 0.5000, 1.0000" in out
    assert "40+5, 40+5" in out
    assert "first prompts, counted anew: 40, 40 tokens" in out
    assert "SLO error_ratio" in out


def test_prompts_as_json(workload, capsys):
    assert cli.main(["prompts", str(workload), "-n", "3", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert {row["input_tokens"] for row in rows} == {40}
    assert {row["output_tokens"] for row in rows} == {5}
    assert len({row["prompt"] for row in rows}) == 3


def test_no_prompts_are_asked_for(workload, capsys):
    assert cli.main(["prompts", str(workload), "-n", "0"]) == 2
    assert "-n: must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (BadInput("one", "two"), 2, "tokenswarm: one\ntokenswarm: two\n"),
        (KeyboardInterrupt(), 130, ""),
        (RuntimeError("ours"), 4, "RuntimeError: ours"),
    ],
)
def test_what_a_command_raises_is_an_exit_code(monkeypatch, capsys, caplog, raised, code, text):
    def fails(args):
        raise raised

    command = cli.Command("fails", lambda parser: None, fails)
    monkeypatch.setitem(cli.COMMANDS, "fails", command)
    assert cli.main(["fails"]) == code
    assert text in capsys.readouterr().err + caplog.text


def test_a_reader_that_goes_away_is_no_error(workload):
    """tokenswarm check w.yaml | head -1"""
    command = [sys.executable, "-m", "tokenswarm.cli", "check", str(workload)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_engine_has_its_own_options(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["simulate", "--help"])
    assert end.value.code == 0
    assert "--engine" in capsys.readouterr().out
    assert cli.main(["simulate", "--engine", "defualt"]) == 2
    assert "Did you mean 'default'?" in capsys.readouterr().err


def test_the_files_that_travel_with_the_package_are_found():
    assert launch.locustfile().name == "stream.py"
    assert launch.locustfile().exists()
    assert (launch.data_folder("workloads") / "demo.yaml").exists()
