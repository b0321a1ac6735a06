"""Print the packages of an image, from pyproject.toml: a layer made of them outlives every edit of the source.

`python3 image_requirements.py pyproject.toml worker examples,metrics` gives what globalstep needs with two of its
extras, and `ps` in place of `worker` what a PS task does.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

#: What a PS task never imports: models, images, TensorBoard's files.
NOT_OF_PS = ("pillow", "tensorboard")


def requirements(about: dict[str, Any], role: str, extras: list[str]) -> list[str]:
    """Give requirements as pip reads them.

    Args:
        about: pyproject.toml, parsed.
        role: "ps" or "worker".
        extras: Names of extras of globalstep.
    """
    project = about["project"]
    wanted = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    left_out = NOT_OF_PS if role == "ps" else ()
    return [one for one in wanted if re.split(r"[^\w.-]", one)[0] not in left_out]


if __name__ == "__main__":
    file, role, extras = sys.argv[1:]
    print("\n".join(requirements(tomllib.loads(Path(file).read_text()), role, extras.split(",") if extras else [])))
