"""Altered recordings: an error of ours or a sound load, never an execution."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from tests.copies import run_python
from tests.fuzzing import examples
from tests.recording.attacks import prepare

from pullback.errors import PullbackError, RecordingError
from pullback.recording import Recording
from pullback.recording.codec import Encoder

ROOT = Path(__file__).parents[2]


def attacked(folder: Path, seed: str, count: int, *more: str) -> dict:
    command = ["-m", "tests.recording.attacks", *more, str(folder), seed, str(count)]
    done = run_python(*command, folder=ROOT)
    number = folder / "number"
    last = number.read_text() if number.exists() else "none"
    assert done.returncode == 0, f"seed {seed}, recording {last}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.hypothesis  # `make fuzz` runs it with more recordings, from new seeds
@pytest.mark.timeout(1800)
def test_an_altered_recording_is_refused_or_sound(tmp_path, request) -> None:
    seed = str(request.config.getoption("--hypothesis-seed", None) or "0")
    found = attacked(tmp_path, seed, examples(400))
    assert found["faults"] == [], f"seed {seed}"
    assert found["outcomes"]["loaded"] > 0.02 * examples(400)
    assert found["outcomes"]["refused"] > 0.5 * examples(400)


def test_the_attack_succeeds_where_the_reader_trusts(tmp_path) -> None:
    found = attacked(tmp_path, "t", 400, "--trust")
    text = "\n".join(found["faults"])
    assert "sys.path grew" in text
    signs = ("the Function is <", "the script was run", "canary_import", "__getattr__", "may call")
    assert sum(sign in text for sign in signs) >= 2, text


# One by one ------------------------------------------------------------------------------------


def recording(path: Path, module: str, qualname: str, *arguments: object, file: str = "") -> Path:
    locator = {"module": module, "qualname": qualname, "file": file, "completed": False}
    call = {"arguments": list(arguments), "keywords": [], "tensors": [torch.ones(1)]}
    item = {
        "locator": locator,
        "paths": [str(path)],
        "script": "",
        "applied": 1,
        "reasons": {},
        "calls": [call],
    }
    data = {"format": "pullback recording", "version": 2, "program": [], "functions": [item]}
    torch.save(data, path / "calls.pt")
    return path / "calls.pt"


CHECKPOINT = ("torch.utils.checkpoint", "CheckpointFunction")


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("os", "system"), ("cProfile", "run"), ("builtins", "eval"), ("torch", "load"),
        ("torch.nn", "Linear"), ("torch.nn.modules.linear", "Linear"), ("antigravity", "fly"),
        ("torch.autograd.function", "once_differentiable"), ("no_such_module", "F"),
    ],
)  # fmt: skip
def test_what_is_no_function_is_not_loaded(tmp_path, module, qualname) -> None:
    (item,) = Recording.load(recording(tmp_path, module, qualname))
    before = set(sys.modules)
    with pytest.raises(RecordingError):
        item.load()
    assert set(sys.modules) == before


@pytest.mark.parametrize(
    "argument",
    [
        ("named", "cProfile", "run"), ("named", "os", "system"), ("named", "torch", "load"),
        ("partial", [("named", "os", "system"), ("tuple", ["ls"]), ("dict", [])]),
        ("method", ("tensor", 0, False, "cpu", False), "__class__"),
        ("method", ("named", "builtins", "int"), "__subclasses__"),
        ("object", 0, "torch.nn.modules.linear", "Linear",
         [("_forward_hooks", ("OrderedDict", [(0, ("named", "os", "system"))]))]),
        ("module", "os"), ("enum", "signal", "Signals", "SIGKILL"),
        ("closure", "os", "walk.<locals>.x", 1, [], None, None, []),
        ("named", "builtins", torch.ones(1)), ("named", torch.ones(1), "sin"),
        ("module", torch.ones(1)), ("method", ("tensor", 0, False, "cpu", False), torch.ones(1)),
        ("enum", "signal", "Signals", torch.ones(1)),
    ],
    ids=lambda node: "-".join(str(part) for part in node[:3])[:40],
)  # fmt: skip
def test_a_callable_that_runs_code_is_not_handed_on(tmp_path, argument) -> None:
    (item,) = Recording.load(recording(tmp_path, *CHECKPOINT, argument))
    assert issubclass(item.load(), torch.autograd.Function)
    with pytest.raises(RecordingError, match=r"may not name|malformed|code of an inner"):
        item.arguments(0)


def test_functions_of_tensors_and_types_of_data_are_handed_on(tmp_path) -> None:
    nodes = [
        ("named", "torch", "sin"),
        ("named", "torch", "Tensor.add"),
        ("named", "builtins", "int"),
    ]
    (item,) = Recording.load(recording(tmp_path, *CHECKPOINT, *nodes))
    assert item.arguments(0) == ((torch.sin, torch.Tensor.add, int), {})


def test_a_script_is_loaded_when_it_is_named(tmp_path) -> None:
    prepare(tmp_path)
    script = str(tmp_path / "work" / "train.py")
    sys.canary = []
    path = recording(tmp_path, "__main__", "Mine", ("named", script, "own"), file=script)
    (item,) = Recording.load(path)
    with pytest.raises(RecordingError, match="cannot be imported here") as caught:
        item.load()
    assert f"--script {script}" in str(caught.value)
    before = list(sys.path)
    (item,) = Recording.load(path, scripts=[script])
    assert item.load().__name__ == "Mine"
    assert item.arguments(0)[0][0].__name__ == "own"
    assert set(sys.path) - set(before) >= {str(tmp_path / "work")}
    assert str(tmp_path) not in sys.path  # the paths of the recording stay out
    assert sys.canary == []


@pytest.mark.parametrize("name", ["Started", "launch"])
def test_what_a_script_gives_another_name_is_not_handed_on(tmp_path, name) -> None:
    prepare(tmp_path)
    script = tmp_path / "work" / "train.py"
    script.write_text(
        f"import subprocess\nStarted, launch = subprocess.Popen, subprocess.run\n"
        f"{name} = {name}\n{script.read_text()}"
    )
    path = recording(tmp_path, "__main__", "Mine", ("named", str(script), name), file=str(script))
    (item,) = Recording.load(path, scripts=[script])
    with pytest.raises(RecordingError, match="may not name"):
        item.arguments(0)


def test_a_module_that_lies_beside_a_recording_is_not_found(tmp_path) -> None:
    (tmp_path / "beside.py").write_text(
        "import pathlib, torch\n"
        "pathlib.Path('imported').touch()\n"
        "class Beside(torch.autograd.Function): pass\n"
    )
    path = recording(tmp_path, "beside", "Beside", torch.ones(1))
    done = run_python("-m", "pullback", "check", str(path), folder=tmp_path)
    assert "cannot be imported here" in done.stdout, done
    assert not (tmp_path / "imported").exists()


def test_a_script_that_is_not_there_is_named(tmp_path) -> None:
    path = recording(tmp_path, *CHECKPOINT)
    with pytest.raises(PullbackError, match="no script"):
        Recording.load(path, scripts=[tmp_path / "no.py"])


def test_a_trusted_recording_loads_what_it_names(tmp_path) -> None:
    (item,) = Recording.load(
        recording(tmp_path, *CHECKPOINT, ("named", "shutil", "which")), trust=True
    )
    assert item.arguments(0)[0][0].__name__ == "which"


def test_a_tensor_larger_than_its_data_is_refused(tmp_path) -> None:
    path = recording(tmp_path, *CHECKPOINT)
    data = torch.load(path)
    data["functions"][0]["calls"][0]["tensors"] = [torch.ones(1).expand(2**40)]
    torch.save(data, path)
    with pytest.raises(RecordingError, match="more than its file"):
        Recording.load(path)


def test_a_file_that_inflates_is_refused_before_it_does(tmp_path) -> None:
    path = recording(tmp_path, *CHECKPOINT)
    small = tmp_path / "small.pt"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            new.writestr(entry.filename, content if len(content) != 4 else bytes(2**22))
    with pytest.raises(RecordingError, match="compressed"):
        Recording.load(small)


def bomb(levels: int) -> object:
    node: object = 1
    for _ in range(levels):
        node = ("list", [node] * 10)
    return node


def nested(levels: int) -> object:
    node: object = 1
    for _ in range(levels):
        node = ("list", [node])
    return node


@pytest.mark.parametrize(
    ("node", "said"), [(bomb(30), "again and again"), (nested(200), "200 deep")]
)
def test_parts_that_are_named_again_and_again_are_refused(tmp_path, node, said) -> None:
    with pytest.raises(RecordingError, match=said):
        Recording.load(recording(tmp_path, *CHECKPOINT, node))


def test_a_tensor_that_is_named_again_and_again_is_refused(tmp_path) -> None:
    call = {"arguments": [], "keywords": [], "tensors": [torch.ones(2**10)] * 50}
    torch.save([call] * 50, tmp_path / "calls.pt")
    with pytest.raises(RecordingError, match="holds more than its file"):
        Recording.load(tmp_path / "calls.pt")


def test_one_stored_tensor_makes_one_value(tmp_path) -> None:
    arrays = [("array", 0)] * 3
    item = Recording.load(recording(tmp_path, *CHECKPOINT, *arrays)).functions[0]
    with pytest.raises(RecordingError, match="one stored tensor"):
        item.arguments(0)


def test_what_is_nested_as_deep_as_the_encoder_goes_is_read(tmp_path) -> None:
    value: object = 1
    for _ in range(40):
        value = {"a": value}
    Recording.load(recording(tmp_path, *CHECKPOINT, Encoder(2**20).encode(value)))
