"""The commands and files that contributors and services use exist."""

import re

import pytest
import yaml

from tests.support.documents import spans
from tests.support.programs import ROOT
from tf_onebit import __version__

FORGE = ROOT / ".github"
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_paths_for_contributors_exist():
    named = [
        span for span in spans(ROOT / "CONTRIBUTING.md") if re.fullmatch(r"[\w/.]+/[\w.]*", span)
    ]
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_changelog_has_this_version_and_a_part_for_the_next():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[:2] == ["Unreleased", __version__]


@pytest.mark.parametrize("path", sorted(FORGE.rglob("*.yml")), ids=lambda path: path.name)
def test_services_run_targets_of_make_alone(path):
    commands = re.findall(r"\brun: (.*)", path.read_text())
    assert all(re.fullmatch(r"make [\w-]+", command) for command in commands)
    assert {command.split()[1] for command in commands} <= set(TARGETS)


def test_every_test_of_make_is_run_by_a_service():
    jobs = yaml.safe_load((FORGE / "workflows" / "ci.yml").read_text())["jobs"]
    run = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert {f"make {name}" for name in ("lint", "docs", "test-unit", "test-parallel")} <= run


@pytest.mark.parametrize("path", sorted(FORGE.glob("ISSUE_TEMPLATE/*")), ids=lambda path: path.name)
def test_forms_of_issues_are_complete(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_commits_are_checked_by_the_ruff_that_make_installs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (local,) = (repository["hooks"] for repository in hooks if repository["repo"] == "local")
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    for hook in local:
        program, command = hook["entry"].split()[:2]
        assert f"{program.replace('.venv', '$(VENV)')} {command} " in lint
