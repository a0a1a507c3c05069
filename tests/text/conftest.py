"""Files of tests lie in memory, and clients of models read no certificates."""

import os
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # where the system has it


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch):
    """No server here has one: to read all of the machine takes a client longer than a test."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def in_memory(monkeypatch):
    """A journal waits for the disk twice a call, and no kill needs it."""
    if os.access(MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", str(MEMORY))


@pytest.fixture
def tmp_path(in_memory):
    with tempfile.TemporaryDirectory(prefix="pullback-") as folder:
        yield Path(folder)
