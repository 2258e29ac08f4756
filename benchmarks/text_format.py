"""Compare our parser of prototxt text with protobuf's C++ parser on texts that are spoilt at random.

    python benchmarks/text_format.py [--texts 20000] [--seed 0]

Each text is given to both; what one takes and the other refuses, or reads as another message, is printed.
Ours refuses two things on purpose: strings that are not UTF-8, and `\\X41`, which only the newest C++ takes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

import caffe_recipes.caffe
from caffe_recipes.caffe import pb
from caffe_recipes.caffe.prototxt import decode_prototxt, guess_class, parse_prototxt
from caffe_recipes.errors import PrototxtError

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(caffe_recipes.caffe.__file__).parent
SHORT = (
    b"test_iter: [1, 0x1F, 017] test_iter: [] base_lr: 1.5f gamma: - .5 # \xe9\nsolver_mode: 1",
    b"net: \"a\\x41\\101\\u00e9\" 'b' # c\n'd', display: 1; debug_info: True",
    b"max_iter: 4294967296 solver_mode: CPU power: 1e99",
    b"layer: [{ name: 'a' include < phase: 1 >, param { lr_mult: inf decay_mult: -nan } }, { }]",
    b"layer { blobs { data: [1, 3.4028235e+38, 18446744073709551616] shape { dim: [] } } };",
    b"input_dim: -3 state { level: -0 }",
)


def load_spoil() -> Callable[[bytes, random.Random], bytes]:
    """Take the mutations of tests/fuzz."""
    spec = importlib.util.spec_from_file_location("spoiling", ROOT / "tests" / "fuzz" / "conftest.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def spoil(text: bytes, draw: random.Random) -> bytes:
        for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
            way: Callable[[bytes, random.Random], bytes] = draw.choice(module._WAYS)
            text = way(text, draw)
        return text

    return spoil


def parse_with_cpp(name: str, text: bytes, source: int, target: int) -> bytes | None:
    """Give a text to protoc in this process; standard input and output are files then."""
    for descriptor in (source, target):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(source, text)
    os.lseek(source, 0, os.SEEK_SET)
    failed = protoc.main(
        ["protoc", f"--descriptor_set_in={FOLDER / 'pb.binpb'}", f"--encode=caffe.{name}", "caffe.proto"]
    )
    os.lseek(target, 0, os.SEEK_SET)
    return None if failed else os.read(target, 1 << 26)


def parse_with_ours(name: str, text: bytes) -> bytes | None:
    """Read a text as every command does."""
    with contextlib.suppress(PrototxtError):
        message = parse_prototxt(decode_prototxt(text, "text"), getattr(pb, name))
        return bytes(message.SerializeToString(deterministic=True))
    return None


def difference(text: bytes, ours: bytes | None, theirs: bytes | None, name: str) -> str:
    """Name what the two parsers disagree about, or nothing."""
    if theirs is not None:
        read = getattr(pb, name)()
        try:
            read.ParseFromString(theirs)
            theirs = read.SerializeToString(deterministic=True)
        except Exception as error:  # a string that is not UTF-8
            theirs = str(error).encode()
    if ours == theirs:
        return ""
    if ours is None and b"\\X" in text:
        return "expected: a capital X"
    if ours is None and theirs is not None:
        try:
            text.decode()
        except UnicodeDecodeError:
            return "expected: not UTF-8"
        return "expected: escapes that are not UTF-8" if b"\\" in text else "ours refuses"
    if theirs is None and text.startswith(b"\xef\xbb\xbf"):
        return "expected: a byte-order mark"
    return "ours takes" if theirs is None else "read differently"


def main() -> None:
    """Spoil, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    spoil = load_spoil()
    files = sorted((ROOT / "prototxt").rglob("*.prototxt"))
    whole = [path.read_bytes() for path in files if path.stat().st_size < 3000]
    found: Counter[str] = Counter()
    output = os.dup(1)
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        os.dup2(source.fileno(), 0)
        os.dup2(target.fileno(), 1)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)
        for index in range(given.texts):
            draw = random.Random(f"{given.seed}.{index}")
            text = spoil(draw.choice([*SHORT, *SHORT, *whole]), draw)
            name = guess_class(text.decode(errors="replace")).DESCRIPTOR.name
            ours, theirs = parse_with_ours(name, text), parse_with_cpp(name, text, 0, 1)
            both = "both read" if ours is not None else "both refuse"
            kind = difference(text, ours, theirs, name) or both
            found[kind] += 1
            if not kind.startswith(("both", "expected")):
                os.write(output, f"{kind} {name} {index}: {text[:300]!r}\n".encode())
    os.write(output, "".join(f"{count:7,} {kind}\n" for kind, count in found.most_common()).encode())
    sys.exit(any(not kind.startswith(("both", "expected")) for kind in found))


if __name__ == "__main__":
    main()
