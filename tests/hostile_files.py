"""Files that cost far more to read than to write, for tests and for benchmarks/hostile_files.py.

`python -m tests.hostile_files FOLDER` reads them all in one process of limited memory, and prints what became
of each as JSON: the error that it ended in, or "read", with the seconds and the bytes of the file.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from caffe_recipes.authoring.adopt_cluster import AdoptOptions, find_trainer_path
from caffe_recipes.authoring.adopt_files import Adopted
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.datums import open_datums, write_datums
from caffe_recipes.caffe.dialects import OURS
from caffe_recipes.caffe.log_files import LogFile
from caffe_recipes.caffe.logs import LogSummary
from caffe_recipes.caffe.prototxt import load_prototxt
from caffe_recipes.caffe.weights import load_solverstate, load_weights
from caffe_recipes.cluster.hostfile import load_hostfile
from caffe_recipes.cluster.profiles import load_profile
from caffe_recipes.cluster.rank_exits import RankExitReader
from caffe_recipes.data.archives import load_archive, load_members
from caffe_recipes.data.images import load_classes
from caffe_recipes.data.manifest import load_manifest, manifest_path
from caffe_recipes.errors import CaffeRecipesError
from caffe_recipes.file_format import FORMAT
from caffe_recipes.limits import LIMITS_VARIABLE
from caffe_recipes.recipe.source import load_recipe
from caffe_recipes.render.tree import find_differences
from caffe_recipes.review.graph.picture import draw_graph
from caffe_recipes.review.inspect.summary import SummaryOptions, read_net, summarize
from caffe_recipes.review.inspect.sweep import read_logs
from caffe_recipes.review.lint.folders import lint_targets
from caffe_recipes.review.lint.inputs import LintOptions
from caffe_recipes.review.lint.scripts import Script
from caffe_recipes.run.journal import load_journal
from caffe_recipes.run.monitor.followed_run import FollowedRun
from caffe_recipes.run.monitor.run_files import FilePiece, LocalFiles, ReadRequest
from caffe_recipes.run.submit.submissions import Submission, SubmissionJournal, load_submissions
from caffe_recipes.tensorflow.records import read_records, write_records
from tests.run.recorded_run import finished, launched

# Of CPU for one attack, since the machine may be busy; those that grow with the square of the size take hours
MOST_S = 60
MEMORY_BYTES = 1_500_000_000  # of address space, libraries and all
_SOLVER = 'base_lr: 1\nlr_policy: "fixed"\nmax_iter: 10\nsnapshot_prefix: "a"\n'
_LAUGHS = "\n".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))
_MERGES = "\n".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))
_AXES = "dim: 9223372036854775807 " * 60_000

Attack = Callable[[Path], object]


def _yaml(text: str, load: Callable[[Path], object] = load_recipe) -> Attack:
    def attack(folder: Path) -> object:
        path = folder / "x.yaml"
        path.write_text(text)
        return load(path)

    return attack


def _profile(path: Path) -> object:
    return load_profile(str(path))


def _lint(files: dict[str, str], dialect: str = OURS) -> Attack:
    def attack(folder: Path) -> object:
        for name, text in files.items():
            (folder / name).write_text(text)
        return lint_targets([str(folder)], LintOptions(dialect=dialect))

    return attack


def _adopt_trainer(folder: Path) -> object:
    return find_trainer_path(Adopted(folder, folder, (), (), {}, Script(), "x" * 1_000_000), AdoptOptions())


def _log(line: str, number: int = 20) -> Attack:
    """Read a log of lines that each cost their own; `{i}` is the number of the line."""

    def attack(folder: Path) -> object:
        (folder / "x.log").write_text("".join(f"{line}\n".replace("{i}", str(i)) for i in range(number)))
        summary, ends = LogSummary(), RankExitReader()
        for lines in LogFile(folder / "x.log").read():
            for each in lines:
                summary.feed(each)
                ends.feed(each)
        return summary

    return attack


def _journal(number: int, *events: dict[str, object], is_watched: bool = True) -> Attack:
    """Load a journal that has such events `number` times, and watch it; `{i}` is the number of each."""
    head = {"time": "2026-11-20T12:00:00+00:00"}
    first = json.dumps({"format": FORMAT, **head, "event": "built", "lmdbs": []})
    lines = "".join(f"{json.dumps({**head, **event})}\n" for event in events)

    def attack(folder: Path) -> object:
        path = folder / "journal.jsonl"
        path.write_text(f"{first}\n" + "".join(lines.replace("{i}", str(i)) for i in range(number)))
        if is_watched:
            FollowedRun("x", str(folder), load_recipe("digits-local")).update(
                [FilePiece(0, path.read_bytes())]
            )
        return load_journal(path)

    return attack


def _submissions(folder: Path) -> object:
    head = '{"time": "2026-11-20T12:00:00+00:00", "event"'
    begun = [f'{head}: "submitting", "name": "{i}", "group": "", "script": ""}}\n' for i in range(60_000)]
    settled = [f'{head}: "submitted", "name": "{i}", "job_id": 1}}\n' for i in range(60_000)]
    (folder / "x").write_text(f'{{"format": {FORMAT}, {begun[0][1:]}' + "".join(begun[1:] + settled))
    return load_submissions(folder / "x")


def _script(text: str) -> Attack:
    return _lint({"x.prototxt": _SOLVER, "run.sh": text})


def _prototxt(text: str) -> Attack:
    def attack(folder: Path) -> object:
        path = folder / "x.prototxt"
        path.write_text(text)
        return load_prototxt(path, pb.NetParameter)

    return attack


def _binary(data: Callable[[], bytes], load: Callable[[Path], object] = load_weights) -> Attack:
    def attack(folder: Path) -> object:
        path = folder / "x.caffemodel"
        path.write_bytes(data())
        return load(path)

    return attack


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _png(width: int, height: int) -> bytes:
    """Make a PNG of one colour: as many pixels as one likes in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + width // 8)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _decode_image(folder: Path) -> object:
    import cv2

    from caffe_recipes.data.convert import decode_image

    (folder / "x.png").write_bytes(_png(32_000, 32_000))
    return decode_image((folder / "x.png").read_bytes(), cv2.IMREAD_COLOR).shape


def _train_on_image(folder: Path) -> object:
    from caffe_recipes.engine.transform import decode_datum

    (folder / "x.png").write_bytes(_png(32_000, 32_000))
    datum = pb.Datum(data=(folder / "x.png").read_bytes(), encoded=True)
    return decode_datum(datum, pb.TransformationParameter(force_color=True)).shape


def _limited(text: str, attack: Attack) -> Attack:
    """Run an attack under a smaller bound than the default, where the default's size takes long to write."""

    def run(folder: Path) -> object:
        os.environ[LIMITS_VARIABLE] = text
        try:
            return attack(folder)
        finally:
            del os.environ[LIMITS_VARIABLE]

    return run


def _large_record(folder: Path) -> object:
    write_datums(folder / "lmdb", [("a", pb.Datum(data=bytes(5000), channels=1, height=50, width=100))])
    with open_datums(folder / "lmdb") as datums:
        return len(datums[0].data)


def _tar_header(folder: Path) -> object:
    """Have a tar's header claim 3 GB of a sparse file for itself."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 3_000_000_000
    path = folder / "x.tar"
    path.write_bytes(info.tobuf(tarfile.USTAR_FORMAT))
    os.truncate(path, 3_100_000_000)
    with path.open("rb") as file:
        return load_members(str(path), file, 0, 3_100_000_000)


def _tar_pax(*payloads: bytes) -> Attack:
    """List a tar with such PAX headers."""

    def attack(folder: Path) -> object:
        blocks = bytearray()
        for payload in payloads:
            info = tarfile.TarInfo("pax")
            info.type, info.size = tarfile.XHDTYPE, len(payload)
            blocks += info.tobuf(tarfile.USTAR_FORMAT) + payload + bytes(-len(payload) % tarfile.BLOCKSIZE)
            blocks += tarfile.TarInfo("a.jpg").tobuf(tarfile.USTAR_FORMAT)
        (folder / "x.tar").write_bytes(bytes(blocks) + bytes(2 * tarfile.BLOCKSIZE))
        return load_archive(folder / "x.tar")

    return attack


def _tar_names(folder: Path) -> object:
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    block = info.tobuf(tarfile.USTAR_FORMAT) + b"a\0" + bytes(tarfile.BLOCKSIZE - 2)
    (folder / "x.tar").write_bytes(block * 5_000 + bytes(2 * tarfile.BLOCKSIZE))
    return load_archive(folder / "x.tar")


def _scans(folder: Path) -> object:
    """Decode a progressive JPEG whose last scan is repeated."""
    import cv2
    import numpy as np

    from caffe_recipes.data.convert import decode_image
    from caffe_recipes.engine.transform import decode_datum

    pixels = np.zeros((1500, 1000), np.uint8)
    data = bytes(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1])
    last = data.rindex(b"\xff\xda")
    many = data[:last] + data[last:-2] * 20_000 + data[-2:]
    with contextlib.suppress(ValueError):  # a trainer refuses it, too
        decode_datum(pb.Datum(data=many, encoded=True), pb.TransformationParameter())
        raise AssertionError("decoded")
    return decode_image(many, cv2.IMREAD_COLOR)


def _graph(folder: Path) -> object:
    """Draw a net whose layers read any of those before them."""
    choice, tops = Random(1).choice, [f"t{index}" for index in range(500)]
    lines = ['layer { name: "t0" type: "Input" top: "t0" input_param { shape { dim: 1 dim: 8 } } }']
    for index in range(1, len(tops)):
        read = " ".join(f'bottom: "{choice(tops[:index])}"' for _ in range(10))
        lines.append(f'layer {{ name: "t{index}" type: "Eltwise" top: "t{index}" {read} }}')
    (folder / "net.prototxt").write_text("\n".join(lines))
    net = read_net(str(folder / "net.prototxt"), SummaryOptions())
    return draw_graph(net, summarize(net))


def _many_outcomes(folder: Path) -> object:
    journal = SubmissionJournal(folder / "x.submissions.jsonl")
    journal.begin(Submission("x-a", "a", "x.sbatch", 0.0, argv=("w",) * 100_000))
    for number in range(3_000):
        journal.settle("x-a", number + 1)
    journal.close()
    return load_submissions(folder / "x.submissions.jsonl")


def _tar_members(folder: Path) -> object:
    path = folder / "x.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(1001):
            tar.addfile(tarfile.TarInfo(f"{number}"))
    with path.open("rb") as file:
        return load_members(str(path), file, 0, path.stat().st_size)


def _sparse(name: str, load: Callable[[Path], object]) -> Attack:
    def attack(folder: Path) -> object:
        path = folder / name
        path.touch()
        os.truncate(path, 4_000_000_000)
        return load(path)

    return attack


def _manifest(text: str) -> Attack:
    def attack(folder: Path) -> object:
        manifest_path(folder / "lmdb").write_text(text)
        return load_manifest(folder / "lmdb")

    return attack


def _tfrecord(folder: Path) -> object:
    from caffe_recipes.tensorflow.records import masked_crc32c

    length = struct.pack("<Q", 3_000_000_000)
    (folder / "x").write_bytes(length + struct.pack("<I", masked_crc32c(length)))
    os.truncate(folder / "x", 3_100_000_000)
    return next(read_records(folder / "x"))


def _checked_records(name: str, manifest: str = "", example: Callable[[], bytes] = bytes) -> Attack:
    """Check a folder of one TFRecord, with a manifest beside it."""

    def attack(folder: Path) -> object:
        from caffe_recipes.data.tfrecords import check_tfrecords

        (folder / "records").mkdir()
        write_records(folder / "records" / name, [example()])
        if manifest:
            (folder / "records.manifest.json").write_text(manifest)
        return check_tfrecords(folder / "records")

    return attack


def _in(name: str, look: Callable[[Path], object]) -> Attack:
    """Read a folder that holds a link to /dev/zero, as a repository may."""

    def attack(folder: Path) -> object:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/zero")
        with contextlib.chdir(folder):
            return look(path)

    return attack


def _compare_generated(path: Path) -> object:
    return find_differences({path.name: "base_lr: 1\n"}, path.parent)


def _look(path: Path) -> object:
    return LocalFiles().read([ReadRequest(str(path))])


def _read_logs(path: Path) -> object:
    return [list(lines) for _, lines in read_logs([path])]


def _pipe(name: str, load: Callable[[Path], object]) -> Attack:
    def attack(folder: Path) -> object:
        os.mkfifo(folder / name)
        return load(folder / name)

    return attack


def _predictions(shape: str, packed_bytes: int) -> Attack:
    def attack(folder: Path) -> object:
        from caffe_recipes.run.ensemble import load_predictions

        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode()
        data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head + b"\n" + bytes(packed_bytes)
        with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED) as file:
            for name in ("scores", "labels"):
                file.writestr(f"{name}.npy", data)
        return "read" if load_predictions(folder / "x.npz") else None

    return attack


def _mean(path: Path) -> object:
    from caffe_recipes.caffe.weights import load_mean

    return load_mean(str(path))


_DIMS = _field(100, _field(7, _field(7, _field(1, b"\1" * 20_000_000))))

_DIGITS = (Path(__file__).parent.parent / "caffe_recipes/recipes/digits-local.yaml").read_text()
_HEADERS = "1 images an iteration " * 40_000
_GLOG = "I1120 11:49:33.597681  6374"

ATTACKS: dict[str, Attack] = {
    "yaml: aliases of aliases": _yaml(f"name: x\na0: &a0 [{','.join('x' * 10)}]\n{_LAUGHS}\n"),
    "yaml: aliases of aliases as a key": _yaml(f"name: x\na0: &a0 [x, x]\n{_LAUGHS}\n? *a8\n: 1\n"),
    "yaml: merges of merges": _yaml(f"a0: &a0 {{k: 1}}\n{_MERGES}\n"),
    "yaml: an alias that holds itself": _yaml("name: &a [*a]"),
    "yaml: 30,000 open brackets": _yaml("name: " + "[" * 30_000),
    "yaml: 30,000 brackets": _yaml("name: " + "[" * 30_000 + "]" * 30_000),
    "yaml: 30,000 braces": _yaml("name: " + "{a: " * 30_000),
    "yaml: 30,000 dashes": _yaml("- " * 30_000),
    "yaml: a profile of 30,000 brackets": _yaml("name: " + "[" * 30_000, _profile),
    "yaml: 49,000 keys": _yaml("\n".join(f"k{i}: 1" for i in range(49_000))),
    "yaml: 9,000 keys": _yaml("\n".join(f"k{i}: 1" for i in range(9_000))),
    "yaml: a date that is none": _yaml("name: !!timestamp 99999-99-99"),
    "yaml: a number of 400,000 parts": _yaml("name: !!int " + "1:" * 400_000 + "1"),
    "yaml: a number of 900,000 digits": _yaml("name: " + "9" * 900_000),
    "yaml: a text of 900,000 zeros": _yaml(_DIGITS.replace("max_iter: ", f"max_iter: {'0' * 900_000}x", 1)),
    "yaml: 20,000 directives": _yaml(
        "".join(f"%TAG !{i}! tag:{i}\n" for i in range(20_000)) + "---\nname: x"
    ),
    "yaml: a tag of Python": _yaml("name: !!python/object/apply:os.system [x]"),
    "yaml: rows over a large base": _yaml(
        "family: f\ntitle: t\nbase:\n"
        + "".join(f"  k{i}: 1\n" for i in range(9_000))
        + "rows:\n"
        + "".join(f"  r{i}: {{}}\n" for i in range(501))
    ),
    "yaml: 4 GB": _sparse("x.yaml", load_recipe),
    "lint: newlines": _lint({"x.prototxt": "\n" * 1_000_000}),
    "lint: a script of newlines": _script("\n" * 900_000),
    "lint: a script of blanks": _script("for x in a" + " " * 900_000),
    "lint: a function of blanks": _script("function f" + " " * 900_000 + "x"),
    "lint: a list of blanks": _script("for x in ${a}; do x; done\n" * 100 + " " * 900_000),
    "lint: a script of chains": _script(
        "# Generated by `caffe-recipes generate \nreadonly PROTOTXT_DIR=x\n" + "chain() {\n" * 19_000
    ),
    "lint: a script that doubles a variable": _script("A=x\n" + "A=$A$A\n" * 100),
    "lint: a generated script of one word": _script(
        "# Generated by `caffe-recipes generate \nreadonly PROTOTXT_DIR=x\nchain() {\n  "
        + "x" * 900_000
        + "\n}"
    ),
    "lint: a comment of headers": _lint({"x.prototxt": f"# {_HEADERS}\n{_SOLVER}"}),
    "lint: a dialect's blanks": _lint(
        {"x.prototxt": f"layer {{ pooling_param {{ pool: {' ' * 100_000}MAX }} }}"}, "bvlc"
    ),
    "lint: a blob of 60,000 axes": _lint(
        {"x.prototxt": f"layer {{ type: 'Input' top: 'x' input_param {{ shape {{{_AXES}}} }} }}"}
    ),
    "adopt: a script of one word": _adopt_trainer,
    "log: a loss of 60,000 digits": _log(f"{_GLOG} sgd_solver.cpp:1] Iteration 0, loss = {'0' * 60_000}!"),
    "log: 200,000 ignored layers": _log(f"{_GLOG} net.cpp:1137] Ignoring source layer {{i}}", 200_000),
    "log: 200,000 values of two outputs in turn": _log(
        f"{_GLOG} caffe.cpp:330] a = 1\n{_GLOG} caffe.cpp:330] b = 1", 100_000
    ),
    "log: a line of labels": _log(f"[0] x{'[0] ' * 15_000}x[0] "),
    "log: a line of proxies": _log("hydra_proxy" * 5_000),
    "prototxt: 2 million layers": _prototxt("layer{}" * 2_000_000),
    "prototxt: a million inputs": _prototxt('input:"a"\n' * 1_000_000),
    "prototxt: 4 GB": _sparse("x.prototxt", lambda path: load_prototxt(path, pb.NetParameter)),
    "caffemodel: 10 million layers": _binary(lambda: _field(100, b"") * 10_000_000),
    "caffemodel: 10 million layers behind a group": _binary(
        lambda: b"\xfb\x3e\xfc\x3e" + _field(100, b"") * 10_000_000
    ),
    "caffemodel: 10 million blobs": _binary(lambda: _field(100, _field(7, b"") * 10_000_000)),
    "caffemodel: 20 million dimensions": _binary(lambda: _DIMS),
    "caffemodel: a blob of 150,000 axes": _binary(
        lambda: _field(100, _field(7, _field(7, (b"\x08" + _varint(2**63 - 1)) * 150_000)))
    ),
    "caffemodel: unknown fields": _binary(lambda: _field(2000, b"") * 5_000_000),
    "solverstate: 10 million blobs": _binary(lambda: _field(3, b"") * 10_000_000, load_solverstate),
    "mean file: 20 million dimensions": _binary(lambda: _field(7, _field(1, b"\1" * 20_000_000)), _mean),
    "mean file: 4 GB": _sparse("mean.binaryproto", _mean),
    "image: a PNG of 32,000 x 32,000": _decode_image,
    "image: a PNG of 32,000 x 32,000 in a record": _train_on_image,
    "lmdb: a record over the bound": _limited("record-bytes=5000", _large_record),
    "tar: a header of 3 GB": _tar_header,
    "tar: a PAX header of 500,000 digits": _tar_pax(b"9" * 500_000),
    "tar: PAX headers of 60,000 digits": _tar_pax(*[b"9" * 60_000] * 50),
    "tar: a PAX header of records without an end": _tar_pax(b"4 a\n" * 16_000),
    "tar: a sparse header that is malformed": _tar_pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
    "tar: a sparse map that is malformed": _tar_pax(b"21 GNU.sparse.map=a,\n"),
    "tar: a chain of 5,000 long names": _tar_names,
    "image: a JPEG of 20,000 scans": _scans,
    "graph: 500 layers of 10 wires": _graph,
    "submissions: 3,000 outcomes of a job with 100,000 words": _many_outcomes,
    "tar: members over the bound": _limited("tar-members=1000", _tar_members),
    "tfrecord: a record of 3 GB": _tfrecord,
    "tfrecord: a name that claims 10^17 files": _checked_records(f"train-00000-of-{10**17}"),
    "tfrecord: a manifest that claims 10^10 files": _checked_records(
        "train-00000-of-00001",
        f'{{"format": {FORMAT}, "records": {10**10}, "shards": {10**10}, "seed": 1, "prefix": "x", '
        '"classes": null, "plan": "", "sizes_bytes": [], "digests": []}',
    ),
    "tfrecord: 20 million values": _checked_records(
        "train-00000-of-00001",
        example=lambda: _field(1, _field(1, _field(2, _field(1, b"\n\0" * 20_000_000)))),
    ),
    "json: brackets": _manifest("[" * 1_000_000),
    "json: 4 GB": _sparse("lmdb.manifest.json", lambda path: load_manifest(path.with_name("lmdb"))),
    "classes: a list of 4 GB": _sparse("classes.txt", load_classes),
    "classes: a manifest of 4 GB": _sparse("classes.json", load_classes),
    "journal: 4 GB": _sparse("journal.jsonl", load_journal),
    "journal: 4 GB that are watched": _sparse("journal.jsonl", _look),
    "journal: a pipe": _pipe("journal.jsonl", _look),
    "log: a pipe that is watched": _pipe("x.log", lambda path: list(LogFile(path).read())),
    "log: a pipe": _pipe("x.log", _read_logs),
    "log: /dev/zero": _in("x.log", _read_logs),
    "generate: a solver that is /dev/zero": _in("solver_a.prototxt", _compare_generated),
    "generate: a solver of 4 GB": _sparse("solver_a.prototxt", _compare_generated),
    "lint: a recipe whose solver is /dev/zero": _in(
        "prototxt/digits-local/solver_collapse.prototxt",
        lambda path: lint_targets(["digits-local"], LintOptions()),
    ),
    "journal: launches of other phases from other weights on other hosts": _journal(
        20_000,
        {"event": "launched", **launched("{i}", host="{i}", hosts=["{i}"], weights={"{i}": ""})[1]},
        {"event": "failed", "reason": "", "phase": "{i}", "host": "{i}", "seconds": 1},
    ),
    "journal: checkpoints, branches and evaluations": _journal(
        60_000,
        {
            **{"event": "checkpointed", "phase": "{i}", "iteration": 1, "state": "", "state_sha256": ""},
            **{"model": "", "model_sha256": "", "state_path": "{i}", "model_path": ""},
        },
        {"event": "branched", "phase": "{i}", "folder": "{i}", "hosts": []},
        {"event": "evaluated", "phase": "{i}", "outputs": {"a": 1}, "log": ""},
        is_watched=False,
    ),
    "journal: processes of other jobs": _journal(
        80_000,
        {"event": "started", "pid": 1, "host": "a", "job": "1{i}"},
        {"event": "finished", **finished("{i}")[1]},
    ),
    "submissions: of other jobs": _submissions,
    "journal: brackets": lambda folder: (
        (folder / "journal.jsonl").write_text("[" * 1_000_000 + "\n"),
        load_journal(folder / "journal.jsonl"),
    ),
    "hostfile: folded": lambda folder: (
        (folder / "hostfile").write_text("c[000-999]-[000-999]-[000-999]\n"),
        load_hostfile(folder / "hostfile"),
    ),
    "hostfile: 4 GB": _sparse("hostfile", load_hostfile),
    "predictions: a header of 4 TB": _predictions("(1000000000, 1000)", 0),
    "predictions: zeros over the bound": _limited(
        "predictions-bytes=4000000", _predictions("(1000, 1000)", 4_000_000)
    ),
}


def _give_up(number: int, frame: object) -> None:
    raise AssertionError(f"takes over {MOST_S} s")


def main(folder: Path) -> None:
    """Read all, or those named; print {name: [outcome, seconds, bytes of the files]}."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    found = {}
    signal.signal(signal.SIGPROF, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    for number, (name, attack) in enumerate(ATTACKS.items()):
        home = folder / str(number)
        home.mkdir()
        start = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, MOST_S)
        signal.alarm(10 * MOST_S)  # for what waits
        try:
            became = "refused" if attack(home) is None else "read"
        except (CaffeRecipesError, ValueError, OSError, AssertionError) as error:
            became = f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
        seconds = round(time.perf_counter() - start, 2)
        written = sum(512 * path.stat().st_blocks for path in home.rglob("*") if path.is_file())
        found[name] = [became, seconds, written]
        for path in sorted(home.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
