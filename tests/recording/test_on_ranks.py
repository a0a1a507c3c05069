"""Calls that several ranks of a program have made are one call, in groups of the same ranks."""

import subprocess
import sys
import textwrap

import pytest
import torch
import torch.distributed as dist
from tests.specimens._specimen import normal
from tests.specimens.ranks import GatherInGroup

import pullback
from pullback.conformance import Ranks
from pullback.errors import RecordingError
from pullback.recording import RecordedFunction, Recording, calls_on_ranks
from pullback.recording._recording import RecordedCall
from pullback.recording.codec import Encoder, Loader, decode_call
from pullback.recording.locator import Locator


def recorded(*places):
    calls = [RecordedCall([], [], [torch.ones(k + 1)], place) for k, place in enumerate(places)]
    return RecordedFunction(Locator.of(GatherInGroup), calls=calls)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([(0, 2, 1), (0, 2, 3), (1, 2, 3), (1, 2, 1)], [{0: 0, 1: 3}, {0: 1, 1: 2}]),
        ([(0, 2, 1), (1, 2, 2)], []),  # neither was kept on both
        ([(0, 1, 1)], []),
        ([None, None], []),
    ],
)
def test_the_same_call_of_each_rank_is_one(places, expected):
    assert calls_on_ranks(recorded(*places)) == expected


def test_the_places_of_calls_are_kept_in_the_file(tmp_path):
    Recording([], [recorded((0, 2, 1), (1, 2, 1), None)]).save(tmp_path / "calls.pt")
    (function,) = Recording.load(tmp_path / "calls.pt")
    assert [call.place for call in function.calls] == [(0, 2, 1), (1, 2, 1), None]


def test_a_group_is_made_anew_of_the_same_ranks():
    def inputs(rank):
        known = dist.new_group([1, 2])  # every rank of the world has to take part
        if not rank:
            return None
        encoder = Encoder(1000)
        plain = encoder.encode((normal(2, seed=rank), known))
        assert plain[1][1] == ("group", [1, 2])
        return tuple(decode_call([plain], [], encoder.tensors, Loader())[0][0])

    finding = pullback.check(GatherInGroup, ranks=Ranks(3, inputs))["distributed"]
    assert finding.verdict == "holds", finding


def test_a_group_is_refused_where_there_are_no_ranks():
    with pytest.raises(RecordingError, match="several ranks"):
        decode_call([("group", [0, 1])], [], [], Loader())


@pytest.mark.slow
def test_a_program_under_torchrun_is_checked_on_as_many_ranks(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""\
        import torch, torch.distributed as dist
        from tests.specimens.ranks import GatherByGlobalRank, GatherInGroup, ScatterDivides

        dist.init_process_group("gloo")
        group = dist.new_group([0, 1])
        x = torch.ones(2 + dist.get_rank() * 0, 3, requires_grad=True)
        for function in (GatherInGroup, GatherByGlobalRank):
            sum(y.sum() for y in function.apply(x, group)).backward()
        ScatterDivides.apply(x).sum().backward()
        dist.destroy_process_group()
        """)
    )
    command = [sys.executable, "-m", "pullback.cli", "check", "--json", "-", "--", "torchrun",
               "--nproc-per-node", "2", str(tmp_path / "train.py")]  # fmt: skip
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    for name, verdict in (("GatherInGroup", "holds"), ("ScatterDivides", "broken")):
        assert name in ended.stdout
        assert f'"verdict": "{verdict}"' in ended.stdout
