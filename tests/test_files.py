"""Files are written completely or not at all, and damage is detected."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import few, many
from safetensors import safe_open

from amgc import files, tensor_files
from amgc.files import FileFormatError
from amgc.runs.folder import RunError, RunFolder
from amgc.tensor_files import read, write

pytestmark = pytest.mark.cpus

KIND = "a test"
HEADER = {"classes": ["cat", 7, 0.5], "dim": 2}
TENSORS = {
    "mean": torch.arange(6, dtype=torch.float64).reshape(3, 2),
    "count": torch.tensor([3, 1, 4]),
    "empty": torch.zeros(0, 2),
    "number": torch.tensor(2.5),
}


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "model"
    write(path, KIND, HEADER, TENSORS)
    return path.read_bytes()


def _same(header, tensors):
    return (
        header == HEADER
        and tensors.keys() == TENSORS.keys()
        and all(torch.equal(tensors[k], TENSORS[k]) and tensors[k].dtype == TENSORS[k].dtype for k in TENSORS)
    )


def test_written_files_can_be_read(tmp_path):
    write(tmp_path / "model", KIND, HEADER, TENSORS)
    assert _same(*read(tmp_path / "model", KIND))
    assert _same(*read(str(tmp_path / "model"), KIND))


class Misaligned:
    """A safetensors file whose tensors start four or eight bytes off torch's alignment, as readers may return them."""

    def __init__(self, path, framework):
        self.file = safe_open(path, framework=framework)

    def __enter__(self):
        self.opened = self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def metadata(self):
        return self.opened.metadata()

    def keys(self):
        return self.opened.keys()

    def get_tensor(self, name):
        tensor = self.opened.get_tensor(name)
        shifted = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)
        return shifted.copy_(tensor)


def test_loaded_tensors_have_the_alignment_of_torch(tmp_path, monkeypatch):
    """On some CPUs products depend on the alignment of their operands, so a resumed run would not be bit-identical."""
    write(tmp_path / "model", KIND, HEADER, TENSORS)
    monkeypatch.setattr(tensor_files, "safe_open", Misaligned)
    header, tensors = read(tmp_path / "model", KIND)
    assert _same(header, tensors)
    assert [name for name, tensor in tensors.items() if tensor.data_ptr() % 64] == []


def test_products_of_loaded_tensors_are_bit_identical_to_those_of_the_saved_ones(tmp_path, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    written = {f"{n}": torch.randn(n, n, generator=generator) for n in (5, 33, 64, 130)}
    write(tmp_path / "model", KIND, {}, written)
    monkeypatch.setattr(tensor_files, "safe_open", Misaligned)
    for name, matrix in read(tmp_path / "model", KIND)[1].items():
        for product in (lambda m: m @ m[0], lambda m: m @ m.T, lambda m: m[0] @ m[0]):
            assert torch.equal(product(matrix), product(written[name])), name


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """A run writes a checkpoint while another process reads the last one. For torch, safetensors opens a file twice."""
    path, mixed = tmp_path / "model", tmp_path / "mixed"
    write(path, KIND, HEADER, TENSORS)
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
    newer = {name: tensor + 1 for name, tensor in TENSORS.items()}
    safetensors.torch.save_file(newer, mixed, metadata=old)
    reads = []

    def opened(given, framework):
        reads.append(given)
        if len(reads) > 1:
            return safe_open(given, framework)
        write(path, KIND, HEADER | {"dim": 3}, newer)
        return safe_open(mixed, framework)

    monkeypatch.setattr(tensor_files, "safe_open", opened)
    header, tensors = read(path, KIND)
    assert len(reads) == 2 and header["dim"] == 3 and torch.equal(tensors["mean"], newer["mean"])


def test_views_and_graphs_are_written_as_their_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4).requires_grad_()
    write(tmp_path / "model", KIND, {}, {"view": base.T[1:], "again": base})
    _, tensors = read(tmp_path / "model", KIND)
    assert torch.equal(tensors["view"], base.detach().T[1:]) and torch.equal(tensors["again"], base.detach())


def test_writing_the_same_twice_gives_the_same_bytes(tmp_path, intact):
    write(tmp_path / "model", KIND, HEADER, dict(reversed(TENSORS.items())))
    assert (tmp_path / "model").read_bytes() == intact


@many
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path_factory, intact, data):
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(intact[: data.draw(st.integers(0, len(intact) - 1))])
    with pytest.raises(FileFormatError):
        read(path, KIND)


def test_a_file_with_something_appended_is_refused(tmp_path, intact):
    (tmp_path / "model").write_bytes(intact + b"\0" * 8)
    with pytest.raises(FileFormatError):
        read(tmp_path / "model", KIND)


def test_a_flipped_bit_anywhere_is_refused_or_harmless(tmp_path, intact):
    """Spaces after the header of a safetensors file may become other blanks, which is harmless."""
    path = tmp_path / "flipped"
    believed = []
    for position in range(len(intact)):
        bit = 1 << position % 7
        path.write_bytes(intact[:position] + bytes([intact[position] ^ bit]) + intact[position + 1 :])
        try:
            content = read(path, KIND)
        except FileFormatError:
            continue
        if not _same(*content):
            believed.append((position, bit, intact[max(0, position - 12) : position + 12]))
    assert not believed, f"{len(believed)} damaged files were believed, such as {believed[:3]}"


@many
@given(data=st.data())
def test_any_other_byte_anywhere_is_refused_or_harmless(tmp_path_factory, intact, data):
    position = data.draw(st.integers(0, len(intact) - 1))
    byte = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "other"
    path.write_bytes(intact[:position] + bytes([byte]) + intact[position + 1 :])
    try:
        content = read(path, KIND)
    except FileFormatError:
        return
    assert _same(*content)


@few
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "arbitrary"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        read(path, KIND)


def _foreign(metadata):
    return safetensors.torch.save({"mean": torch.zeros(2)}, metadata=metadata)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps({"weight": [1.0]}),
        b"PK\x03\x04" + b"\0" * 100,
        b'{"json": true}',
        _foreign(None),
        _foreign({"format": "pt"}),
        _foreign({"amgc": ""}),
        _foreign({"amgc": "no json"}),
        _foreign({"amgc": "[1, 2]"}),
        _foreign({"amgc": "null"}),
        _foreign({"amgc": "{}"}),
        _foreign({"amgc": json.dumps({"kind": KIND, "version": 1, "header": []})}),
        _foreign({"amgc": json.dumps({"kind": KIND, "version": 1, "header": {}})}),
        _foreign({"amgc": json.dumps({"kind": KIND, "version": 1, "header": {}, "sha256": "00"})}),
    ],
)
def test_foreign_files_are_refused(tmp_path, content):
    (tmp_path / "foreign").write_bytes(content)
    with pytest.raises(FileFormatError, match="foreign"):  # the message names the file
        read(tmp_path / "foreign", KIND)


def test_a_pickle_is_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    torch.save(Bomb(), tmp_path / "model")
    with pytest.raises(FileFormatError):
        read(tmp_path / "model", KIND)
    assert not (tmp_path / "executed").exists()


def test_another_kind_is_refused_by_name(tmp_path):
    write(tmp_path / "model", "a recipe", {}, {})
    with pytest.raises(FileFormatError, match="holds a 'a recipe', not a 'a test'"):
        read(tmp_path / "model", KIND)


def test_a_newer_version_is_refused_by_number(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "VERSION", tensor_files.VERSION + 1)
    write(tmp_path / "model", KIND, {}, {})
    monkeypatch.undo()
    with pytest.raises(FileFormatError, match=f"has file version {tensor_files.VERSION + 1}; this amgc reads version"):
        read(tmp_path / "model", KIND)


def test_a_missing_file_and_a_directory_are_not_found(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(FileNotFoundError, match="there is no file"):
            read(path, KIND)


def test_a_missing_directory_is_not_found_when_writing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "missing" / "model", KIND, HEADER, TENSORS)


@pytest.mark.parametrize("step", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left")])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step, error):
    path = tmp_path / "model"
    write(path, KIND, HEADER, TENSORS)
    before = path.read_bytes()

    def interrupt(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, interrupt)
        with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OSError):
            write(path, KIND, {"other": True}, {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    write(path, KIND, {"other": True}, {})
    assert read(path, KIND)[0] == {"other": True} and list(tmp_path.iterdir()) == [path]


@pytest.mark.any_cpu
def test_a_full_disk_is_an_os_error_that_names_the_file(tmp_path):
    """safetensors raises its own error without an errno. A limit on the file size of the process simulates a full disk."""
    path = tmp_path / "kept.safetensors"
    program = f"""
import errno, resource, signal, torch
from amgc import files, tensor_files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tensor_files.write({str(path)!r}, "thing", {{}}, {{"a": torch.zeros(10)}})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    tensor_files.write({str(path)!r}, "thing", {{}}, {{"a": torch.ones(100_000)}})
except OSError as error:
    print(errno.errorcode[error.errno], error.filename)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["EFBIG", str(path)]
    assert not tensor_files.read(path, "thing")[1]["a"].any() and list(tmp_path.iterdir()) == [path]


def test_a_file_that_goes_while_it_is_opened_is_not_found(tmp_path, monkeypatch):
    path = tmp_path / "gone.safetensors"
    tensor_files.write(path, "thing", {}, {"a": torch.zeros(1)})
    path.unlink()
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    with pytest.raises(FileNotFoundError):
        tensor_files.read(path, "thing")


@pytest.mark.parametrize("header", [{"bad": {1, 2}}, {"bad": object()}])
def test_a_header_that_is_not_json_is_refused_before_anything_is_written(tmp_path, header):
    with pytest.raises(TypeError):
        write(tmp_path / "model", KIND, header, TENSORS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_the_file_has_the_permissions_of_an_ordinary_one(tmp_path):
    (tmp_path / "ordinary").write_bytes(b"")
    write(tmp_path / "model", KIND, HEADER, TENSORS)
    assert (tmp_path / "model").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "NaN"])
def test_a_number_that_is_not_finite_is_refused_where_it_has_no_meaning(tmp_path, number):
    with pytest.raises(ValueError, match="it holds"):
        files.parse_json(f'{{"seconds": {number}}}', finite=True)
    line = f'{{"task": 0, "correct": [1], "total": [2], "seconds": {{"train": {number}}}, "kept_bytes": 8}}\n'
    (tmp_path / "metrics.jsonl").write_text(line)
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 1 is damaged"):
        RunFolder(tmp_path).metrics()
    (tmp_path / "metrics.jsonl").write_text(line.replace(number, "1.5"))
    assert RunFolder(tmp_path).metrics()[0].seconds == {"train": 1.5}
