"""Files of models that attack `import-model`."""

import random
import zipfile
from pathlib import Path

import pytest

from tests.fork_server import ForkServer

from .attack import attacked, refused


def test_bytes_that_are_no_model_are_one_line(folder: Path, fork_server: ForkServer) -> None:
    pytest.importorskip("onnx")
    (folder / "noise.onnx").write_bytes(random.Random(0).randbytes(1 << 20))
    refused(attacked(fork_server, folder, "import-model", "noise.onnx"), "noise.onnx", "is not an ONNX model")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * (1 << 20), "is not JSON"),
        (b"[" + b"{}," * (5 << 20) + b"{}]", "is no torch.export archive"),
        (b" " * (1 << 26), "has more than"),
    ],
    ids=["nested", "as large as may be", "64 MB of nothing"],
)
def test_archives_that_unpack_to_much_are_one_line(
    text: bytes, words: str, folder: Path, fork_server: ForkServer
) -> None:
    with zipfile.ZipFile(folder / "bomb.pt2", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/models/model.json", text)
    refused(attacked(fork_server, folder, "import-model", "bomb.pt2"), "bomb.pt2", words)
    assert not (folder / "autotune.db").exists()
