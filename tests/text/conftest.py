"""Files of tests lie in memory: a journal waits for the disk twice a call, and no kill needs it."""

import os
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # where the system has it


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    if os.access(MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", str(MEMORY))


@pytest.fixture
def tmp_path(in_memory):
    with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
        yield Path(folder)
