"""Compile `caffe.proto` into `pb.binpb` (descriptor set) and `pb.pyi` (types), for `make proto`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run protoc (from grpcio-tools) and put its two outputs next to `caffe.proto`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        protoc = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{HERE}"]
        subprocess.run(
            [*protoc, f"--descriptor_set_out={out / 'pb.binpb'}", f"--pyi_out={out}", "caffe.proto"],
            check=True,
        )
        shutil.copyfile(out / "pb.binpb", HERE / "pb.binpb")
        shutil.copyfile(out / "caffe_pb2.pyi", HERE / "pb.pyi")


if __name__ == "__main__":
    main()
