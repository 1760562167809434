"""Files: read back exactly, refused with the cause when they are broken, and never lost."""

import errno
import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import numtrans
from numtrans import checkpoint
from numtrans.checkpoint import load_weights, read_arrays, save_weights, write_arrays, write_json, write_text
from numtrans.errors import CheckpointError
from numtrans.module import Module, Parameter

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(numtrans.__file__).parents[1])}


class Net(Module):
    def __init__(self, width=3):
        super().__init__()
        self.W = Parameter(np.arange(2.0 * width).reshape(2, width).astype(np.float32))
        self.b = Parameter(np.zeros(width))
        self.register_buffer("mean", np.ones(2))


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_weights(Net(), path, {"note": "é"})
    return path


def test_round_trip(tmp_path):
    arrays = {
        "f": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "empty": np.zeros((0, 2)),
        "scalar": np.array(3),
    }
    path = tmp_path / "a.safetensors"
    write_arrays(path, arrays, "test", {"x": [1, None, 0.1]})
    back, kind, settings = read_arrays(path)
    assert (kind, settings) == ("test", {"x": [1, None, 0.1]})
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_weights(good):
    net = Net()
    net.W.data[:], net.mean[:] = 7, 7
    held = net.W
    assert load_weights(net, good) == {"note": "é"}
    np.testing.assert_array_equal(net.W.data, Net().W.data)
    np.testing.assert_array_equal(net.mean, [1, 1])
    assert net.W is held


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (lambda whole: b"", "the file is empty"),
        (lambda whole: whole[:5], "truncated"),
        (lambda whole: whole[:50], "truncated: it has 50 bytes, its header ends at"),
        (lambda whole: whole[:-1], "truncated: it has .* bytes, expected"),
        (lambda whole: b"# a text about checkpoints\n" * 9, "not a safetensors file"),
        (lambda whole: b"\x80\x02pickled" + whole, "not a safetensors file"),
        (lambda whole: (9).to_bytes(8, "little") + b"{not json" + whole, "not a safetensors file: its header"),
        (lambda whole: (2).to_bytes(8, "little") + b"[]", "not a safetensors file"),
        (lambda whole: whole + b"tail", "cannot be read"),
        (lambda whole: safetensors.numpy.save({"W": np.ones(2)}), r"not written by numtrans: .* keys \[\]"),
        (lambda whole: safetensors.numpy.save({"W": np.ones(2)}, {"format": "pt"}), r"numtrans: .* \['format'\]"),
        (lambda whole: safetensors.numpy.save({"W": np.ones(2)}, {"numtrans": "?"}), "not written by numtrans"),
    ],
)
def test_broken_files_are_named_with_the_cause(good, content, cause):
    good.write_bytes(content(good.read_bytes()))
    with pytest.raises(CheckpointError, match=cause) as caught:
        load_weights(Net(), good)
    assert str(good) in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(CheckpointError, match=r"none.safetensors: no such file"):
        read_arrays(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        write_text(tmp_path / "none" / "a.txt", "x")


def test_keys_that_do_not_fit(good):
    net = Net(width=4)
    before = net.W.data.copy()
    with pytest.raises(CheckpointError, match=r"wrong shape: W is \(2, 3\), expected \(2, 4\)") as caught:
        load_weights(net, good)
    assert str(good) in str(caught.value)
    np.testing.assert_array_equal(net.W.data, before)
    net = Net()
    net.extra = Parameter(np.ones(1))
    with pytest.raises(CheckpointError, match="missing: extra"):
        load_weights(net, good)


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(good, monkeypatch, where):
    old = good.read_bytes()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    class FullFile:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, data):
            self.file.write(data[: len(data) // 2])
            full()

    if where == "write":
        monkeypatch.setattr(checkpoint, "open", lambda path, mode: FullFile(path.open(mode)), raising=False)
    else:
        monkeypatch.setattr(checkpoint.os, where, full)
    with pytest.raises(CheckpointError, match=r"No space left on device. A file that was there is unchanged"):
        save_weights(Net(width=5), good)
    assert good.read_bytes() == old
    assert os.listdir(good.parent) == [good.name]


KILLED = """
import os, sys, signal
import numpy as np
from numtrans import checkpoint
checkpoint.os.fsync = lambda descriptor: (print("writing", flush=True), __import__("time").sleep(60))
checkpoint.write_arrays(sys.argv[1], {"W": np.ones(1000)}, "weights")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_kill_in_the_middle_of_a_save_leaves_the_old_file(good):
    old = good.read_bytes()
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(good)], stdout=subprocess.PIPE, env=ENVIRONMENT)
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert good.read_bytes() == old
    assert len(os.listdir(good.parent)) == 2  # what the dead process left
    save_weights(Net(), good)
    assert os.listdir(good.parent) == [good.name]  # is used up by the next save
    load_weights(Net(), good)


def test_an_interrupt_in_a_save_leaves_no_rest(good, monkeypatch):
    old = good.read_bytes()
    monkeypatch.setattr(checkpoint.os, "fsync", lambda descriptor: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_text(good, "x")
    assert good.read_bytes() == old
    assert os.listdir(good.parent) == [good.name]


def test_text_and_json(tmp_path):
    write_json(tmp_path / "a.json", {"é": [1, 2]})
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == {"é": [1, 2]}
    checkpoint.append_text(tmp_path / "a.txt", "1\n")
    checkpoint.append_text(tmp_path / "a.txt", "2\n")
    assert (tmp_path / "a.txt").read_text() == "1\n2\n"
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.append_text(tmp_path, "1")


def test_folder_check(tmp_path):
    checkpoint.check_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file: not a folder that can be written to"):
        checkpoint.check_folder(tmp_path / "file")


def test_keep_freed_memory_in_a_process_of_its_own():
    code = "from numtrans.memory import keep_freed_memory as k; print(k()); print(sum([1.0] * 10**6))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert done.stdout.split() == [str(platform.libc_ver()[0] == "glibc"), "1000000.0"]
