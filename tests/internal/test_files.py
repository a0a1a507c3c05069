"""A file is written whole, or stays as it was."""

import os
import resource
import stat
import sys
import threading
from contextlib import contextmanager

import pytest
import torch

from pullback.cli._files import write_file
from pullback.errors import ArgumentError, ProgramError, RecordingError
from pullback.internal._files import write_whole
from pullback.recording import Locator, RecordedFunction, Recording, record_program


@contextmanager
def full_disk():
    """No file may grow beyond a few bytes; nor may that to which pytest writes, between tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_good_page(tmp_path):
    path = tmp_path / "page.html"
    write_whole(path, "good")
    with full_disk(), pytest.raises(ArgumentError, match=r"as it was(.|\n)*File too large"):
        write_file(path, "x" * 1000)
    assert path.read_text() == "good"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_full_disk_leaves_the_last_good_recording(tmp_path):
    path = tmp_path / "calls.pt"
    path.write_text("good")
    recording = Recording(["python"], [RecordedFunction(Locator("a", "F"))])
    with full_disk(), pytest.raises(RecordingError, match=r"as it was(.|\n)*File too large"):
        recording.save(path)
    assert path.read_text() == "good"
    assert os.listdir(tmp_path) == ["calls.pt"]


def test_a_program_that_finds_the_disk_full_is_not_told_to_be_started_in_another_way():
    # Nor may Python leave half a file of compiled code where the next process would read it.
    program = [sys.executable, "-B", "-c", "import torch"]
    said = r"could not be recorded(.|\n)*File too large"
    with full_disk(), pytest.raises(ProgramError, match=said):
        record_program(program)


def test_no_space_is_said(tmp_path, monkeypatch):
    def refuse(number):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ArgumentError, match="No space left on device"):
        write_file(tmp_path / "page.html", "x")
    assert os.listdir(tmp_path) == []


def test_modes_and_links_stay_and_a_pipe_is_written_as_it_is(tmp_path):
    path, link, pipe = (tmp_path / name for name in ("page", "link", "pipe"))
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "to a reader")
    reader.join()
    assert read == ["to a reader"]


def test_a_recording_is_written_into_a_file_that_is_open(tmp_path):
    path = tmp_path / "calls.pt"
    Recording(["python"], [RecordedFunction(Locator("a", "F"))]).save(path)
    assert torch.load(path, weights_only=True)["program"] == ["python"]
