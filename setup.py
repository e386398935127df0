"""Are the inner modules of the emulated engine compiled when Heddle is built?

Only where HEDDLE_COMPILE=1 asks for it: that takes a C compiler and half a minute. Everything else
about the build is in pyproject.toml, the names of the modules too. The same source serves both, and
both give the same events bit for bit (tests/compiled). Limit: an editable install stays pure
Python, or edits would do nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup

HERE = Path(__file__).parent
BUILD = HERE / "build"
ROOMS = ("collector", "controller", "models")
MYPY = "mypy>=2.4,<3"
# Only what is compiled is checked here; pyright has checked everything (make check). Neither what
# the builder has installed nor how they have set up mypy makes a difference.
OPTIONS = (
    "--config-file=", f"--cache-dir={BUILD / 'mypy'}", "--no-site-packages",
    "--ignore-missing-imports", "--follow-imports=silent", "--explicit-package-bases",
)  # fmt: skip
# A product and a sum are rounded twice, as Python does: processors with one instruction for both
# (every aarch64) would round once, and times would differ in the last bit.
EXACT = "-ffp-contract=off"


def wanted() -> bool:
    """Whether the variable says so; anything but 1 and 0 is refused."""
    said = os.environ.get("HEDDLE_COMPILE", "").strip()
    if said not in ("", "0", "1"):
        sys.exit(f"HEDDLE_COMPILE is 1 (compile the emulated engine) or 0, not {said!r}")
    if said == "1" and "editable_wheel" in sys.argv:
        sys.exit("an editable install is not compiled: leave HEDDLE_COMPILE or -e away")
    return said == "1"


def needs_compiler() -> None:
    """What a compiler lacks is hard to find in its own 200 lines."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(compiler):
        sys.exit(
            f"compiling needs {compiler}, a C compiler; on Debian: apt-get install gcc libc6-dev"
        )
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit("compiling needs Python's headers; on Debian: apt-get install python3-dev")


def extensions() -> list[Any]:
    """The modules in C, under their real names: mypy tells a module's name by its folders."""
    import tomllib

    if sys.platform != "win32":
        needs_compiler()
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit(f"compiling without build isolation takes mypy: pip install '{MYPY}' setuptools")
    names = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["heddle"]["compiled"]
    named = BUILD / "named" / "heddle"
    named.mkdir(parents=True, exist_ok=True)
    for room in ROOMS:
        link = named / room
        link.unlink(missing_ok=True)
        link.symlink_to(HERE / room, target_is_directory=True)
    os.environ["MYPYPATH"] = str(named.parent)
    made = mypycify(
        [*OPTIONS, *(f"{named.parent}/{name.replace('.', '/')}.py" for name in names)],
        opt_level="3",
        target_dir=str(BUILD / "c"),
        group_name="heddle_emulator",
    )
    for one in made:
        one.extra_compile_args = [*one.extra_compile_args, EXACT]
    return made


# Asked what a build needs, mypyc is not here yet; a source distribution holds no C.
builds = {"bdist_wheel", "build", "build_ext", "install"} & {*sys.argv}
compiles = wanted()
setup(
    setup_requires=[MYPY] if compiles else [],
    ext_modules=extensions() if compiles and builds else [],
)
