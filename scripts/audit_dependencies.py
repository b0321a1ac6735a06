"""Asks pip-audit whether a pinned dependency has a known vulnerability; says which could not be asked about.

Usage: audit_dependencies.py PIP_AUDIT REQUIREMENTS. Ends with 1 if there is a vulnerability. Without a way to the
vulnerability service nothing is known, which is said and is no failure: a build must not depend on who answers.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main(pip_audit: str, requirements: str) -> int:
    """Ask, and print what is known."""
    done = subprocess.run(
        [pip_audit, "--no-deps", "--disable-pip", "--requirement", requirements,
         "--format", "json", "--progress-spinner", "off"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        items = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"pip-audit could not be asked: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return 0
    asked = [item for item in items if "skip_reason" not in item]
    bad = [item for item in asked if item["vulns"]]
    for item in bad:
        for vulnerability in item["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no release yet"
            print(f"{item['name']} {item['version']}: {vulnerability['id']}, mended in {fixed}")
    print(f"{len(asked)} of {len(items)} dependencies checked, {len(bad)} with known vulnerabilities")
    if len(asked) < len(items):
        print(f"{len(items) - len(asked)} could not be checked: the vulnerability service was not reached for them")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
