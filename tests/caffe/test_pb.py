"""The schema against the target's own: a digest stands here, the table itself beside the project."""

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

import caffe_recipes.caffe
from caffe_recipes.caffe.dialects import field_dialects

FOLDER = Path(caffe_recipes.caffe.__file__).parent
REFERENCE = Path(__file__).parents[3] / "shared/reference/caffe_schema.json"
# SHA-256 of caffe_schema.json's messages and enums, as JSON with sorted keys and without spaces.
SCHEMA_DIGEST = "1ed04c61413fafc7672cefb75e526104932769a5c0f042ecd9a58be578079b28"

_FIELD = descriptor_pb2.FieldDescriptorProto


def compiled_schema() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "pb.binpb").read_bytes()).file[0]
    messages = {}
    for message in file.message_type:
        entry: dict[str, Any] = {"fields": [field_entry(field) for field in message.field]}
        if message.enum_type:
            entry["enums"] = enum_entries(message.enum_type)
        messages[message.name] = entry
    return {"messages": messages, "enums": enum_entries(file.enum_type)}


def enum_entries(enums: Iterable[descriptor_pb2.EnumDescriptorProto]) -> dict[str, dict[str, int]]:
    return {enum.name: {value.name: value.number for value in enum.value} for enum in enums}


def field_entry(field: descriptor_pb2.FieldDescriptorProto) -> dict[str, Any]:
    named = field.type_name.removeprefix(".caffe.")
    entry = {
        "number": field.number,
        "name": field.name,
        "label": _FIELD.Label.Name(field.label).removeprefix("LABEL_").lower(),
        "type": named or _FIELD.Type.Name(field.type).removeprefix("TYPE_").lower(),
    }
    if named:
        entry["kind"] = "enum" if field.type == _FIELD.TYPE_ENUM else "message"
    if field.HasField("default_value"):
        entry["default"] = field.default_value
    if field.options.packed:
        entry["packed"] = True
    return entry


def digest_of(schema: dict[str, Any]) -> str:
    """Hash messages and enums independently of the order of the fields."""
    by_number = {
        name: {**entry, "fields": sorted(entry["fields"], key=lambda field: int(field["number"]))}
        for name, entry in schema["messages"].items()
    }
    text = json.dumps(
        {"messages": by_number, "enums": schema["enums"]}, sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(text.encode()).hexdigest()


def test_schema_has_every_message_and_field_of_the_target() -> None:
    messages = compiled_schema()["messages"]
    assert len(messages) == 104
    assert sum(len(entry["fields"]) for entry in messages.values()) == 684
    assert digest_of(compiled_schema()) == SCHEMA_DIGEST


@pytest.mark.skipif(
    not REFERENCE.exists(), reason="../shared/reference is not here; the digest holds the same"
)
def test_schema_equals_the_reference_field_by_field() -> None:
    reference = json.loads(REFERENCE.read_text())
    compiled = compiled_schema()
    assert compiled["enums"] == reference["enums"]
    assert list(compiled["messages"]) == list(reference["messages"])
    for name, entry in reference["messages"].items():
        assert compiled["messages"][name] == entry, name
    assert digest_of(reference) == SCHEMA_DIGEST


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_descriptor_set_and_stub_are_what_the_proto_compiles_to(tmp_path: Path) -> None:
    outputs = [f"--descriptor_set_out={tmp_path / 'pb.binpb'}", f"--pyi_out={tmp_path}"]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", *outputs, "caffe.proto"]
    subprocess.run(protoc, check=True)
    assert (tmp_path / "pb.binpb").read_bytes() == (FOLDER / "pb.binpb").read_bytes()
    assert (tmp_path / "caffe_pb2.pyi").read_bytes() == (FOLDER / "pb.pyi").read_bytes()


def test_comments_name_the_fork_that_knows_a_field() -> None:
    message, marked = "", 0
    for line in (FOLDER / "caffe.proto").read_text().splitlines():
        message = found[1] if (found := re.match(r"message (\w+)", line)) else message
        field = re.match(r"  \w+ [\w.]+ (\w+) = .*; // (Intel|SSD|this fork only)", line)
        if field:
            marked += 1
            known = field_dialects(message, field[1])
            assert "bvlc" not in known, line
            assert ("intel" in known) == (field[2] != "this fork only"), line
    assert marked > 30


def test_a_foreign_schema_of_the_same_package_does_not_clash() -> None:
    program = """
from google.protobuf import descriptor_pb2, descriptor_pool
foreign = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe")
foreign.message_type.add(name="NetParameter").field.add(name="foreign", number=1, type=9, label=1)
descriptor_pool.Default().Add(foreign)
from caffe_recipes.caffe import pb
print(pb.NetParameter(name="ours").name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("ours\n", "")
