"""The message classes of `caffe.proto`, in a private descriptor pool.

The pool is private because pycaffe and others register `caffe.*` in protobuf's default pool, where two
schemas with the same name clash. The types are in `pb.pyi`; `make proto` writes it and `pb.binpb`.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

_file = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("pb.binpb").read_bytes()).file[0]
_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file)

DESCRIPTOR = _pool.FindFileByName(_file.name)

for _name, _descriptor in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = message_factory.GetMessageClass(_descriptor)
for _name, _enum in DESCRIPTOR.enum_types_by_name.items():
    globals()[_name] = EnumTypeWrapper(_enum)
    for _value in _enum.values:
        globals()[_value.name] = _value.number
