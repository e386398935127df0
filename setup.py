"""Are the inner modules of the emulated engine compiled when Heddle is built?

Only where HEDDLE_COMPILE=1 asks for it: that takes a C compiler and half a minute. Everything else
about the build is in pyproject.toml, the names of the modules too. The same source serves both, and
both give the same events bit for bit (tests/compiled). Limit: an editable install stays pure
Python, or edits would do nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from setuptools import setup

HERE = Path(__file__).parent
ROOMS = ("collector", "controller", "models")
# Only what is compiled is checked here; pyright has checked everything (make check).
OPTIONS = ("--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases")


def extensions() -> list[Any]:
    """The modules in C, under their real names: mypy tells a module's name by its folders."""
    import tomllib
    from mypyc.build import mypycify

    names = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["heddle"]["compiled"]
    named = HERE / "build" / "named" / "heddle"
    named.mkdir(parents=True, exist_ok=True)
    for room in ROOMS:
        link = named / room
        link.unlink(missing_ok=True)
        link.symlink_to(HERE / room, target_is_directory=True)
    os.environ["MYPYPATH"] = str(named.parent)
    return mypycify(
        [*OPTIONS, *(f"{named.parent}/{name.replace('.', '/')}.py" for name in names)],
        opt_level="3",
        target_dir=str(HERE / "build" / "c"),
        group_name="heddle_emulator",
    )


wanted = os.environ.get("HEDDLE_COMPILE") == "1"
# The first question of every build is what it needs; mypyc is not here yet.
asked = "egg_info" in sys.argv
if wanted and "editable_wheel" in sys.argv:
    sys.exit("an editable install is not compiled: leave HEDDLE_COMPILE or -e away")
setup(
    setup_requires=["mypy>=2.4,<3"] if wanted else [],
    ext_modules=extensions() if wanted and not asked else [],
)
