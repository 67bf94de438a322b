# SPDX-License-Identifier: Apache-2.0
"""The pages: what they take from the code is in step with it, what they and the code cite exists, what they show works."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from sqsim.cli.app import app
from sqsim.policies import BUILT_IN
from sqsim.scenario.scenario import make_scenario

ROOT = Path(__file__).parents[2]
HOMES = [ROOT, ROOT / "docs", ROOT / "tests/data/sglang-schedules"]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "traces/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SOURCES = sorted(path for top in ("sqsim", "sqreal", "tests", "kernels") for path in (ROOT / top).rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
SCENARIO, COMMANDS, OWN_AGENTS, INDEX, MAP = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("scenario.md", "commands.md", "own-agents.md", "README.md", "architecture.md")
)
MAX_README_WORDS = 900


def found_page(name: str) -> Path | None:
    return next((home / name for home in HOMES if (home / name).is_file()), None)


def prose(path: Path) -> str:
    """The text on one line, comment signs gone."""
    return re.sub(r"\s+(# )?", " ", path.read_text(encoding="utf-8"))


def citations() -> list[tuple[Path, str, str]]:
    """Source, page and section of every `PAGE.md, "Section"` and `PAGE.md ("Section", "Section")`."""
    cited = re.compile(r'([\w./-]*[A-Z]{3,}\.md)(?:,| \() ((?:"[^"]+"(?:, )?)+)')
    return [
        (path, page, section)
        for path in SOURCES
        if path != Path(__file__)
        for page, sections in cited.findall(prose(path))
        for section in re.findall(r'"([^"]+)"', sections)
    ]


def tables():
    spec = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs/tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_say_what_the_code_says(page):
    text = page.read_text(encoding="utf-8")
    assert tables().filled(text) == text, "run .venv/bin/python docs/tables.py"


def test_every_table_stands_somewhere():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(f"<!-- table {name} -->" in text for name in tables().TABLES)


def test_every_page_that_code_cites_exists():
    cited = re.compile(r"[\w./-]*[A-Z]{3,}\.md\b|docs/[\w-]+\.md\b")
    others = [path for path in SOURCES if path != Path(__file__)]
    found = {(path.name, page) for path in others for page in cited.findall(path.read_text(encoding="utf-8"))}
    assert len(found) > 30
    assert not {(name, page) for name, page in found if found_page(page) is None}


def test_every_section_that_code_cites_exists():
    known = {page: prose(found_page(page)).lower() for _, page, _ in citations()}
    lost = [(path.name, page, part) for path, page, part in citations() if part.lower() not in known[page]]
    assert len(citations()) > 10
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_laws_are_numbered_and_their_tests_exist():
    page = (ROOT / "docs/LAWS.md").read_text(encoding="utf-8")
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == list(range(1, 12))
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page):
        (found,) = (path for room in ("sqsim", "sqreal") if (path := ROOT / "tests" / room / file).exists())
        tree = ast.parse(found.read_text(encoding="utf-8"))
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name
    cited = {
        int(n) for path in SOURCES for n in re.findall(r"\b[Ll]aw (\d+)", path.read_text(encoding="utf-8"))
    }
    assert cited <= set(range(1, 12))


def test_readme_is_short():
    assert len(README.split()) <= MAX_README_WORDS


def test_readmes_python_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    traces = ROOT / "traces/webdancer/sample_traj_cut.jsonl"
    (tmp_path / "mine.yaml").write_text(f"traces: {traces}\nload: {{concurrency: 2}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    shown, rate = capsys.readouterr().out.splitlines()
    assert shown
    assert float(rate) > 0


def test_pictures_are_small_and_shown():
    shown = {Path(link).name for link in re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)}
    pictures = list((ROOT / "docs/images").iterdir())
    assert {path.name for path in pictures} == shown
    assert all(path.stat().st_size < 200_000 for path in pictures)


def test_the_index_has_every_page():
    links = set(re.findall(r"\]\(([^)#]+)\)", INDEX))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= links


def test_the_map_has_every_room():
    block = MAP[MAP.index("## The map") :].split("```")[1]
    rooms = {path.name for path in (ROOT / "sqsim").glob("*.py")}
    rooms |= {f"{path.parent.name}/" for path in (ROOT / "sqsim").glob("*/__init__.py")}
    assert not {room for room in rooms if room not in block}


def test_every_source_file_that_a_page_names_exists():
    """Paths from the repository's root, or from the top of a package."""
    tops = [ROOT, ROOT / "sqsim", ROOT / "sqreal", ROOT / "sqreal/plugin", ROOT / "kernels/sqkernels"]
    named = {
        (page.name, path)
        for page in PAGES
        for path in re.findall(
            r"`([a-z_]\w*(?:/\w+)*/[a-z_]\w*\.(?:py|yaml))`", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 30
    assert not {(name, path) for name, path in named if not any((top / path).is_file() for top in tops)}


def test_the_scenario_that_is_shown_has_the_defaults():
    (shown,) = re.findall(r"```yaml\n(.*?)```", SCENARIO, re.DOTALL)
    assert make_scenario(yaml.safe_load(shown)) == make_scenario({"traces": "mine.jsonl.zst"})


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_table_has_every_key_of_every_policy(name):
    (row,) = re.findall(rf"^\| `{name}` \|(.*)$", SCENARIO, re.MULTILINE)
    keys = {key: each.default for key, each in BUILT_IN[name].model_fields.items() if key != "name"}
    assert yaml.safe_load("{" + ", ".join(re.findall(r"`(\w+: [\w.]+)`", row)) + "}") == keys


@pytest.mark.parametrize(
    "row", re.findall(r"^\| (`sqsim.*)$", COMMANDS, re.MULTILINE), ids=lambda row: row.split()[1].strip("`")
)
def test_commands_and_options_exist(row):
    command = row.split("`")[1].removeprefix("sqsim ")
    words = [word for word in command.split() if word.islower() and word.isalpha()]
    for line in [["trace", word] for word in words[1:]] if words[0] == "trace" else [words]:
        result = CliRunner().invoke(app, [*line, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert result.exit_code == 0, line
        assert not [flag for flag in re.findall(r" (--?[a-z-]+)", row) if flag not in result.output]


def test_the_example_of_own_agents_runs_as_it_stands(tmp_path):
    """Line by line, in a shell, on the session of traces/claude_code; with fewer draws of it."""
    (script,) = re.findall(r"```\n(\.venv/bin/sqsim trace import .*?)```", OWN_AGENTS, re.DOTALL)
    recorded, sqsim = tmp_path / ".claude/projects/MY-PROJECT", tmp_path / ".venv/bin/sqsim"
    for folder in (recorded, sqsim.parent):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "traces/claude_code/session.jsonl", recorded)
    sqsim.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from sqsim.cli.main import main; main()' \"$@\"\n")
    sqsim.chmod(0o755)
    assert "tasks: 100 " in script
    subprocess.run(
        ["bash", "-euc", script.replace("tasks: 100 ", "tasks: 4 ")],
        cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}, check=True, capture_output=True,
    )  # fmt: skip
    assert (tmp_path / "out/mine.html").stat().st_size > 100_000


def test_what_is_imported_has_its_line_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    modules = set()
    for path in (ROOT / "sqsim").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add((node.module or "").split(".")[0])
    own = {"sqsim", "pydantic_core", *sys.stdlib_module_names}
    names = {"yaml": "pyyaml"}
    assert not {name for name in modules - own if names.get(name, name) not in text}


@pytest.mark.parametrize("name", ["sqsim", "sqreal"])
def test_no_help_text_loses_what_stands_in_brackets(name):
    """To the printer of the help a bracket begins markup, and vanishes, unless it is escaped."""
    commands = [typer.main.get_command(importlib.import_module(f"{name}.cli.app").app)]
    texts = []
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        texts += [text for each in (command, *command.params) if (text := getattr(each, "help", None))]
    assert len(texts) > 20
    assert not [text for text in texts if re.search(r"(?<!\\)\[", text)]
