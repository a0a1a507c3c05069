"""What looks like a secret in a command line is written into no file."""

import json
from pathlib import Path

import pytest
import torch

from pullback.cli import main
from pullback.internal._secrets import mask_secrets

SECRET = "sk-proj-Ab3dEf6hIj9kLmN0"


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", SECRET],
        [f"--api_key={SECRET}"],
        ["--password", "short"],
        ["HF_TOKEN=short"],
        ["--wandb.token", "short"],
        ["-secret=short"],
        ["https://me:short@host/data"],
        [SECRET],
        [f"trainer.key.{SECRET}"],
        ["ghp_0123456789abcdefABCD"],
        ["aB3dEf6hIj9kLmN0pQr5tUv8xYz1aB3dEf6hIj9"],
        ["--header", f"Bearer {SECRET}"],
        ["--header", "Authorization: Basic short"],
        ["-H", "X-Api-Key: short"],
        ["-H", "Authorization:  Bearer  short"],
        ["--cookie", "session=short"],
        ["--config", '{"api_key": "short"}'],
        ["--config", "{'api_key' : short }"],
        ["--passphrase", "short"],
        ["--db-pwd", "short"],
        *([option, "short"] for option in ("--pat", "--github-pat", "--passwd", "--access-token")),
        *([option, "short"] for option in ("--pass", "--pw", "--otp", "--jwt", "--psk", "--creds")),
        *([f"{name}=short"] for name in ("--pat", "GH_PAT", "github.pat", "PASS", "MY_JWT")),
        ["https://0123456789abcdef0123@host/1"],
        ["https://host/data?sv=1&sig=short"],
    ],
)
def test_secrets_are_masked(words):
    masked = " ".join(mask_secrets(["python", "train.py", *words]))
    assert "***" in masked
    assert words[-1] not in masked.split()
    assert "short" not in masked
    assert SECRET not in masked


PLAIN = [
    "python", "train.py", "--lr", "1e-3", "--tokenizer", "gpt2", "--keys", "a,b", "--token-dim=8",
    "/data/long/Path2Some/Checkpoint-000123456789/model.safetensors", "--key", "--other",
    "meta-llama/Llama-3.1-8B-Instruct", "https://host:8080/path", "--max-tokens=4096",
    "package.auth:Function", "https://me@host/path", "https://host/?signal=1", "--bear", "bearer",
    "--path", "data", "--pattern", "*.py", "--patience=3", "PATH=/bin", "--compat", "new",
    "--bypass", "first", "--backward-pass=double", "--spat=3", "--passes", "2", "--pwm=1",
]  # fmt: skip


def test_what_is_no_secret_stays():
    assert mask_secrets(PLAIN) == PLAIN


@pytest.mark.usefixtures("copied_programs", "copied_workers")
def test_no_file_of_a_check_holds_a_secret(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\n"
        "class Twice(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n"
        "Twice.apply(torch.ones(2, requires_grad=True))\n"
    )
    words = ["check", "--clauses", "linear", "--html", "page.html", "--json", "found.json"]
    words += ["-o", "calls.pt", "--", "python", "train.py", "--api-key", SECRET]
    monkeypatch.setattr("sys.argv", ["pullback", *words])
    assert main(words) == 0
    for path in tmp_path.glob("*.*"):
        assert SECRET.encode() not in path.read_bytes(), path
    assert json.loads(Path("found.json").read_text())["ok"]
    assert torch.load("calls.pt", weights_only=True)["program"][-1] == "***"
