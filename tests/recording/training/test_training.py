"""What trains no more is named, with the line; what is sound is not accused."""

import inspect
import warnings

import pytest
import torch
from tests.recording.training import dead, sound

from pullback.recording import watch_training


def cut_lines(program) -> set[str]:
    """The lines that a program marks, or those marked with its name elsewhere."""
    source = inspect.getsource(dead).splitlines()
    lines, first = inspect.getsourcelines(program)
    own = [first + k for k, line in enumerate(lines) if line.rstrip().endswith("# cut")]
    named = f"# cut in {program.__name__}"
    return {f"dead.py:{number}" for number in own} | {
        f"dead.py:{number}" for number, line in enumerate(source, 1) if line.endswith(named)
    }


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", dead.PROGRAMS)
def test_what_trains_no_more_is_named(name: str) -> None:
    program, said = dead.PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the programs' own
        with watch_training() as found:
            program()
    assert {(item.kind.replace(" ", "_"), item.name) for item in found} == said
    lines = cut_lines(program)
    places = {item.place.rpartition("/")[2] for item in found}
    if lines:
        assert places == lines
    assert not found
    assert all(item.name in str(found) for item in found)


@pytest.mark.parametrize("name", sound.PROGRAMS)
def test_what_is_sound_is_not_accused(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with watch_training() as found:
            sound.PROGRAMS[name]()
    assert list(found) == []
    assert found
