"""A wheel carries all that generation needs: templates, recipes and the schema."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ("stampede2-64n-72ep", "stampede2-448n-90ep", "digits-local")


def build_wheel(work: Path) -> Path:
    """Build in a copy, since setuptools writes build folders into the tree."""
    tree = work / "tree"
    tree.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("caffe_recipes", "templates", "tensorflow_programs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(tree)], check=True, cwd=work)
    return next(work.glob("*.whl"))


def install(wheel: Path, env: Path) -> Path:
    """Unpack the wheel into an empty environment that sees our dependencies, but not our checkout."""
    venv.create(env, with_pip=False)
    paths = {"base": str(env), "platbase": str(env)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return Path(sysconfig.get_path("scripts", "venv", paths)) / "python"


def shipped_files() -> set[str]:
    """Name every file that the package's folders hold, as a wheel has them."""
    package = (path for path in (ROOT / "caffe_recipes").rglob("*") if path.is_file())
    files = {str(path.relative_to(ROOT)) for path in package if "__pycache__" not in path.parts}
    programs = {f"caffe_recipes/{path.relative_to(ROOT)}" for path in ROOT.glob("tensorflow_programs/*.py")}
    templates = (path for path in (ROOT / "templates").iterdir() if path.is_file())
    return files | programs | {f"caffe_recipes/templates/{path.name}" for path in templates}


def test_an_installed_wheel_generates_the_committed_bytes(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path)
    assert set(zipfile.ZipFile(wheel).namelist()) >= shipped_files()
    python = install(wheel, tmp_path / "env")
    outside = tmp_path / "outside"
    outside.mkdir()
    code = (
        "import sys, caffe_recipes; from caffe_recipes.cli.main import main;"
        "print(caffe_recipes.__file__, flush=True); sys.argv[0] = 'caffe-recipes'; main()"
    )
    done = subprocess.run(
        [python, "-c", code, "generate", *RECIPES], cwd=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(tmp_path / "env")
    written = {path.relative_to(outside) for path in outside.rglob("*") if path.is_file()}
    folders = [f"{folder}/{name}" for name in RECIPES for folder in ("prototxt", "jobs")]
    committed = {
        path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    assert written == committed
    assert all((outside / path).read_bytes() == (ROOT / path).read_bytes() for path in written)
    program = Path(done.stdout.splitlines()[0]).parent / "tensorflow_programs" / "imagenet_to_gcs.py"
    done = subprocess.run(
        [python, program, "--help"], cwd=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: imagenet_to_gcs.py ")
