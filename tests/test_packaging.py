"""Does the wheel hold what the tree holds, and does it work where only the base is installed?

The clean environment gets its dependencies as copies of this environment's files, so that the test
needs no network; which ones is read from the wheel's own metadata.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
ROOMS = ("app", "collector", "controller", "models", "dashboards")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UNPACKED = (".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that leftovers of earlier builds cannot slip in."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, place / "tree", ignore=shutil.ignore_patterns(*UNPACKED))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place]
    done = run(*build, place / "tree", cwd=place)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = place.glob("*.whl")
    return built


def needed(requirements: list[str] | None) -> Iterator[Requirement]:
    """Requirements without extras that hold for this Python."""
    for requirement in map(Requirement, requirements or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def base_distributions(wheel: Path) -> dict[str, Distribution]:
    """What a plain install of the wheel brings along, by name."""
    found: dict[str, Distribution] = {}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    queue = list(needed(re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)))
    while queue:
        requirement = queue.pop()
        if requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            queue.extend(needed(found[requirement.name].requires))
    return found


def copy_files(dist: Distribution, site: Path) -> None:
    for file in dist.files or []:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target)


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the base install and nothing else."""
    place = tmp_path_factory.mktemp("clean")
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    for dist in base_distributions(wheel).values():
        copy_files(dist, site)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin/python", "install", "-q"]
    done = run(*pip, "--no-deps", "--no-index", wheel, cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "bin/python"


def test_every_package_is_listed() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    found = {
        "heddle." + ".".join(p.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for p in (ROOT / room).rglob("__init__.py")
    }
    assert listed == found


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {p.parent for room in ROOMS for p in (ROOT / room).rglob("*.py")}
    assert not [f for f in folders if not (f / "__init__.py").exists()]


def test_the_wheel_holds_every_file_of_the_rooms(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    kinds = {".py", ".typed", ".sql", ".csv", ".json", ".md", ".toml"}
    wanted = {
        f"heddle/{p.relative_to(ROOT)}"
        for room in ROOMS
        for p in (ROOT / room).rglob("*")
        if p.suffix in kinds or p.name == "py.typed"
    }
    assert wanted <= held, sorted(wanted - held)
    for room in ROOMS:
        assert f"heddle/{room}/py.typed" in held


def test_the_wheel_installs_below_the_surname_alone(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"heddle"}
    assert "heddle/__init__.py" not in zipfile.ZipFile(wheel).namelist()


def test_the_license_travels_with_the_wheel(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith("/licenses/LICENSE"))
    assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_a_trainer_gets_opentelemetry_and_little_else(wheel: Path) -> None:
    brought = set(base_distributions(wheel))
    assert "opentelemetry-sdk" in brought
    heavy = {"duckdb", "numpy", "polars", "pyarrow", "torch", "fastapi", "httpx", "grpcio"}
    assert not heavy & brought


def test_the_trainers_library_imports_from_the_base_install(clean_python: Path) -> None:
    code = "import heddle.collector.tracing, heddle.collector.conventions, heddle.collector.ids"
    done = run(clean_python, "-W", "error", "-c", code, cwd=clean_python.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["duckdb", "numpy", "polars", "fastapi", "httpx", "typer"])
def test_the_base_install_has_no_services(clean_python: Path, name: str) -> None:
    done = run(clean_python, "-c", f"import {name}", cwd=clean_python.parent)
    assert f"No module named '{name}'" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["demo"]])
def test_the_command_without_extras_says_what_to_install(
    clean_python: Path, arguments: list[str]
) -> None:
    done = run(clean_python.parent / "heddle", *arguments, cwd=clean_python.parent)
    assert done.returncode != 0
    assert "heddle-rollout[" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_constraints_name_no_host_and_pin_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin) for pin in pins)


def test_the_changelog_opens_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [PROJECT["project"]["version"]])
