"""The committed gRPC code is what the contract generates."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_grpc_code_regenerates_without_a_difference(tmp_path: Path) -> None:
    plugins = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            "-I",
            "shared",
            *outputs,
            "pillion/contracts/executor.proto",
        ],
        cwd=ROOT,
        env=os.environ | {"PATH": plugins},
        check=True,
    )
    made = sorted((tmp_path / "pillion/contracts").iterdir())
    assert [path.name for path in made] == ["executor_pb2.py", "executor_pb2.pyi", "executor_pb2_grpc.py"]
    for path in made:
        committed = ROOT / "shared/pillion/contracts" / path.name
        assert committed.read_text() == path.read_text(), f"{path.name}: generate it again"
