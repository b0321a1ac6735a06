"""Follows the first screen of README.md, word for word, in a bare Debian root: what a new user would do.

Usage, as root: try_readme.py [--folder FOLDER] [--keep]. It needs mmdebstrap, git and up to five minutes.

The root is made by mmdebstrap with this machine's apt sources, and has apt and nothing else. The commands are the
`sh` blocks that come before the second heading; only `<this repository>` is replaced, by a clone in the root. What
README.md shows in its `text` blocks must be in what was printed, line by line, whatever the numbers are. Where pip
finds its packages is taken from this machine's settings. The root has mounts and processes of its own, which end with
the script.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
#: Where the user of the root is at home.
HOME = "/srv"
#: Where the clone lies in the root.
REPOSITORY = "/srv/globalstep.git"
#: Where the certificates lie that this machine's pip trusts; the root makes its usual place anew.
CERTIFICATES = "/srv/certificates.crt"
#: Of the environment, what says where packages come from.
PASSED_ON = re.compile(r"PIP_(?!CERT)|https?_proxy$|no_proxy$", re.IGNORECASE)


def blocks(page: str, kind: str) -> list[str]:
    r"""Give the fenced blocks of a kind that come before a page's second heading.

    >>> blocks("# a\n```sh\nls\n```\n## b\n```sh\nrm\n```\n", "sh")
    ['ls\n']
    """
    return re.findall(
        rf"^```{kind}\n(.*?)^```$", re.split(r"^## ", page, maxsplit=1, flags=re.MULTILINE)[0], re.M | re.S
    )


def missing_lines(shown: str, printed: str) -> list[str]:
    r"""Give the lines that a page shows and nobody has printed; numbers and the space between words may differ.

    >>> missing_lines("step 10  loss 0.5\nbye", "step 7 loss 0.25")
    ['bye']
    """

    def shape(line: str) -> str:
        return " ".join(re.sub(r"\d[\d,.]*", "#", line).split())

    there = {shape(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line.strip() and shape(line) not in there]


def apt_sources() -> list[Path]:
    """Give the files that name Debian's own packages."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    return [path for path in files if path.is_file() and "debian-archive-keyring" in path.read_text()] or files[:1]


def pip_settings(environ: Mapping[str, str]) -> tuple[dict[str, Path], list[Path]]:
    """Give the files that pip on this machine is set up by, by where they go, and the folders that they name."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    own = {"/etc/pip.conf": Path("/etc/pip.conf"), f"{HOME}/.config/pip/pip.conf": Path.home() / ".config/pip/pip.conf"}
    files = {place: path for place, path in own.items() if path.exists()}
    trusted = [value.strip("'\"") for name, value in settings.items() if name.endswith(".cert")]
    if trusted:
        files[CERTIFICATES] = Path(trusted[-1])
    words = {
        word.strip("'\"") for value in [*settings.values(), *environ.values()] for word in re.split(r"\s|\\n", value)
    }
    named = {Path(word.removeprefix("file://")) for word in words if re.match(r"(file://)?/", word)}
    # An index's files lie beside its pages.
    folders = {folder.parent if folder.name == "simple" else folder for folder in named}
    return files, sorted(folder for folder in folders if folder.is_dir())


def make_root(root: Path, suite: str, files: Mapping[str, Path]) -> None:
    """Make a bare root, with a clone of this repository and the files in it."""
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", suite, root, *apt_sources()], check=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", "--no-local", HERE, f"{root}{REPOSITORY}"], check=True)
    for place, path in {**files, "/etc/resolv.conf": Path("/etc/resolv.conf")}.items():
        there = Path(f"{root}{place}")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, there)


def run_in(root: Path, commands: str, folders: Iterable[Path], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run commands in a root, showing what they print; give the exit code and what it was."""
    mounts = [f"mount -t proc proc '{root}/proc'", f"mount --rbind /dev '{root}/dev'"]
    for folder in folders:
        mounts += [f"mkdir -p '{root}{folder}'", f"mount --bind -o ro '{folder}' '{root}{folder}'"]
    script = "\n".join(["set -e", *mounts, f"exec chroot '{root}' /bin/sh -ex /srv/commands"])
    (root / "srv" / "commands").write_text(f"cd {HOME}\n{commands}")
    plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}
    # Whatever is mounted and started in there is gone when the shell ends.
    with subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env={**plain, **environ},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            print(f"    {line}", end="", flush=True)
            printed.append(line)
    return process.returncode, "".join(printed)


def main() -> int:
    """Follow the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where to make the root (default: a temporary folder)")
    parser.add_argument("--suite", default="bookworm", help="of Debian (default: bookworm)")
    parser.add_argument("--keep", action="store_true", help="leave the root where it is")
    args = parser.parse_args()
    page = (HERE / "README.md").read_text()
    commands = "".join(blocks(page, "sh")).replace("<this repository>", REPOSITORY)
    environ = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
    files, folders = pip_settings(environ)
    if CERTIFICATES in files:
        environ["PIP_CERT"] = CERTIFICATES
    root = Path(tempfile.mkdtemp(prefix="readme-", dir=args.folder)) / "root"
    try:
        make_root(root, args.suite, files)
        code, printed = run_in(root, commands, folders, environ)
    finally:
        if not args.keep:
            shutil.rmtree(root.parent)
    missing = missing_lines("\n".join(blocks(page, "text")), printed)
    for line in missing:
        print(f"README.md shows a line that was not printed: {line}", file=sys.stderr)
    print("README.md's first screen works." if code == 0 and not missing else f"It does not work (exit code {code}).")
    return code or (1 if missing else 0)


if __name__ == "__main__":
    sys.exit(main())
