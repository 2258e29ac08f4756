"""Bounds on what is read: each holds, each can be raised, and the documents have them all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from caffe_recipes import limits
from caffe_recipes.cli.main import commands
from caffe_recipes.errors import InputError, RecipeError
from caffe_recipes.limits import LIMITS, LIMITS_VARIABLE, limit, parse_limits
from caffe_recipes.recipe.source import load_recipe
from tests.hostile_files import ATTACKS

ROOT = Path(__file__).resolve().parent.parent

# The part of an error that names the bound an attack runs into; others are refused or cost little.
BOUNDS = {
    "yaml: aliases of aliases": "yaml-values",
    "yaml: aliases of aliases as a key": "yaml-values",
    "yaml: merges of merges": "yaml-values",
    "yaml: an alias that holds itself": "recursive alias 'a'",
    "yaml: 30,000 open brackets": "yaml-depth",
    "yaml: 30,000 brackets": "yaml-depth",
    "yaml: 30,000 braces": "yaml-depth",
    "yaml: 30,000 dashes": "yaml-depth",
    "yaml: a profile of 30,000 brackets": "yaml-depth",
    "yaml: 49,000 keys": "yaml-values",
    "yaml: 9,000 keys": "unknown key",
    "yaml: a date that is none": "the tag",
    "yaml: a number of 400,000 parts": "the tag",
    "yaml: a number of 900,000 digits": "not YAML",
    "yaml: a text of 900,000 zeros": "max_iter: must be an integer",
    "yaml: 20,000 directives": "a YAML directive, which is not needed; remove the line",
    "yaml: a tag of Python": "the tag",
    "yaml: rows over a large base": "yaml-rows",
    "yaml: 4 GB": "yaml-bytes",
    "lint: newlines": "read",
    "lint: a script of newlines": "read",
    "lint: a script of blanks": "read",
    "lint: a function of blanks": "read",
    "lint: a list of blanks": "read",
    "lint: a script of chains": "read",
    "lint: a script that doubles a variable": "read",
    "lint: a generated script of one word": "read",
    "lint: a comment of headers": "read",
    "lint: a dialect's blanks": "read",
    "lint: a blob of 60,000 axes": "read",
    "adopt: a script of one word": "read",
    "log: a loss of 60,000 digits": "read",
    "log: 200,000 ignored layers": "read",
    "log: 200,000 values of two outputs in turn": "read",
    "log: a line of labels": "read",
    "log: a line of proxies": "read",
    "prototxt: 2 million layers": "prototxt-layers",
    "prototxt: a million inputs": "prototxt-values",
    "prototxt: 4 GB": "is a binary file",
    "caffemodel: 10 million layers": "weights-fields",
    "caffemodel: 10 million layers behind a group": "weights-fields",
    "caffemodel: 10 million blobs": "weights-fields",
    "caffemodel: 20 million dimensions": "weights-fields",
    "caffemodel: a blob of 150,000 axes": "blob 0 has ",
    "caffemodel: unknown fields": "weights-fields",
    "solverstate: 10 million blobs": "weights-fields",
    "mean file: 20 million dimensions": "is not a mean file",
    "mean file: 4 GB": "record-bytes",
    "image: a PNG of 32,000 x 32,000": "has over 100,000,000 pixels",
    "image: a PNG of 32,000 x 32,000 in a record": "has over 100,000,000 pixels",
    "lmdb: a record over the bound": "record-bytes",
    "tar: a header of 3 GB": "a header of 3,000,000,000 bytes",
    "tar: a PAX header of 500,000 digits": "a header of 500,224 bytes",
    "tar: PAX headers of 60,000 digits": "a header with a number of over 100 digits",
    "tar: a PAX header of records without an end": "does not give the classes",
    "tar: a sparse header that is malformed": "is not a complete tar: a header is malformed",
    "tar: a sparse map that is malformed": "is not a complete tar: a header is malformed",
    "tar: a chain of 5,000 long names": "is not a complete tar: a header is malformed",
    "image: a JPEG of 20,000 scans": "scans of 1500 x 1000 pixels, more than can be decoded",
    "graph: 500 layers of 10 wires": "read",
    "submissions: 3,000 outcomes of a job with 100,000 words": "read",
    "tar: members over the bound": "tar-members",
    "tfrecord: a record of 3 GB": "record-bytes",
    "tfrecord: a name that claims 10^17 files": "read",
    "tfrecord: a manifest that claims 10^10 files": "is not a manifest of TFRecords",
    "tfrecord: 20 million values": "weights-fields",
    "json: brackets": "is not a manifest",
    "json: 4 GB": "json-bytes",
    "classes: a list of 4 GB": "list-bytes",
    "classes: a manifest of 4 GB": "json-bytes",
    "journal: 4 GB": "journal-bytes",
    "journal: 4 GB that are watched": "journal-bytes",
    "journal: a pipe": "it is a pipe or a device",
    "log: a pipe that is watched": "it is a pipe or a device",
    "log: a pipe": "it is a pipe or a device",
    "log: /dev/zero": "it is a pipe or a device",
    "generate: a solver that is /dev/zero": "it is a device",
    "generate: a solver of 4 GB": "is over 16,000,000 bytes",
    "lint: a recipe whose solver is /dev/zero": "read",
    "journal: launches of other phases from other weights on other hosts": "read",
    "journal: checkpoints, branches and evaluations": "read",
    "journal: processes of other jobs": "read",
    "submissions: of other jobs": "read",
    "journal: brackets": "is not a journal line",
    "hostfile: folded": "names more than 100,000 hosts",
    "hostfile: 4 GB": "is over 10,000,000 bytes",
    "predictions: a header of 4 TB": "refused",
    "predictions: zeros over the bound": "refused",
}


@pytest.mark.promise("hostile files cost no more than their limit")
@pytest.mark.slow
def test_each_hostile_file_is_refused_within_its_bound(tmp_path: Path) -> None:
    """All in one process of 1.5 GB of address space."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile_files", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    became = {name: str(found[0]) for name, found in json.loads(done.stdout).items()}
    assert set(became) == set(ATTACKS)
    assert {name: text for name, text in became.items() if BOUNDS[name] not in text or "\n" in text} == {}


def test_each_attack_has_a_test() -> None:
    assert set(BOUNDS) == set(ATTACKS)


def test_the_document_names_each_bound_and_its_default() -> None:
    text = (ROOT / "docs" / "reviewing.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| ([\d,]+) \|", text, re.MULTILINE)
    assert {name: int(most.replace(",", "")) for name, most in rows} == dict(LIMITS)
    fixed = {most for name, most in vars(limits).items() if name.startswith("MOST_")}
    sizes = {limits.MOST_YAML_DEPTH, limits.MOST_TAR_HEADER_BYTES}
    assert f"({limits.MOST_YAML_DEPTH} at most)" in text
    assert f"headers of {limits.MOST_TAR_HEADER_BYTES >> 10} KiB" in text
    (sentence,) = re.findall(r"^These limits cannot be raised: (.*?)\. \[", text, re.MULTILINE | re.DOTALL)
    assert {int(most.replace(",", "")) for most in re.findall(r"[\d,]*\d", sentence)} == fixed - sizes


def test_a_bound_is_raised_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: " + "[" * 60 + "]" * 60)
    with pytest.raises(
        RecipeError, match=f"; if you trust it, raise the limit with {LIMITS_VARIABLE}=yaml-depth=N"
    ):
        load_recipe(path)
    monkeypatch.setenv(LIMITS_VARIABLE, "image-pixels=7,yaml-depth=70")
    with pytest.raises(RecipeError, match=r"name: must be text|missing"):
        load_recipe(path)
    assert (limit("image-pixels"), limit("yaml-values")) == (7, LIMITS["yaml-values"])


def test_a_bound_is_raised_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("name: " + "[" * 60 + "]" * 60)
    monkeypatch.setenv(LIMITS_VARIABLE, "yaml-values=50")
    monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "1")
    words = ["--limit", "yaml-depth=70", "--limit", "yaml-values=900", "show", str(path)]
    done = CliRunner().invoke(commands, words)
    assert "missing" in str(done.exception) or "must be text" in str(done.exception)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("yaml-dept=3", "unknown limit 'yaml-dept'; the limits are yaml-bytes, "),
        ("yaml-depth", "'yaml-depth' does not give a positive integer; write yaml-depth=50"),
        ("yaml-depth=0", "positive integer"),
        ("yaml-depth=-1", "positive integer"),
        ("yaml-depth=1e9", "positive integer"),
        (f"yaml-depth={'9' * 30}", "positive integer"),
    ],
)
def test_an_invalid_bound_is_refused(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_limits(text)
    done = CliRunner().invoke(commands, ["--limit", text, "recipes"])
    assert isinstance(done.exception, InputError)
    assert str(done.exception).startswith("--limit: ")
