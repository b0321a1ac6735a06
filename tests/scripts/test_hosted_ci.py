"""A common host's CI, and the hooks before a commit, run what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_targets_and_files_are_there():
    named = (ROOT / ".github/workflows/ci.yml").read_text() + (ROOT / ".pre-commit-config.yaml").read_text()
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert targets.issuperset(re.findall(r"run: make (\w+)", named))
    assert all((ROOT / path).is_file() for path in re.findall(r"(?:tests|scripts)/[\w/]+\.py|\.ci/run", named))
