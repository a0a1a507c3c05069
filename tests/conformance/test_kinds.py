"""A step along the tangent leaves what an argument is by its square, and not before."""

import pytest
import torch
from tests.specimens._specimen import normal
from tests.specimens.right.domains import logarithms, motion, orthogonal, rotation, shares, unit

from pullback.conformance.inputs._structure import bound_rows, keep, structures, tangent

FRAME = torch.linalg.qr(normal(5, 2).detach())[0]
PLACES = torch.tensor([0, 0, 0, 1.0], dtype=torch.float64).expand(2, 1, 4)
POINTS = {
    "orthogonal": orthogonal(4),
    "a rotation": rotation(2).detach(),
    "frame": FRAME,
    "wide frame": FRAME.mT.contiguous(),
    "unitary": torch.linalg.qr(torch.complex(normal(3, 3), normal(3, 3, seed=2)).detach())[0],
    "a rigid motion": motion(2).detach(),
    "places and motion": torch.cat([motion(2).detach(), PLACES], -2),
    "of length one": unit(3, 4).detach(),
    "columns of length one": unit(3, 4).detach().mT.contiguous(),
    "adding up to one": shares(3, 4).detach(),
    "logarithms of shares": logarithms(3, 4).detach(),
}


@pytest.mark.parametrize("name", POINTS)
def test_what_moves_along_a_tangent_is_off_by_the_square_of_the_step(name):
    point = POINTS[name]
    step = torch.randn(point.shape, dtype=point.dtype, generator=torch.Generator().manual_seed(7))
    along = tangent(point, step)
    assert along.abs().max() > 0.1
    off = []
    for t in (1e-2, 1e-3):
        moved = point + t * along
        kept = keep(point, moved)
        assert kept is not None
        off.append(float((kept - moved).abs().max()))
    assert off[1] <= 0.02 * off[0] + 1e-14


@pytest.mark.parametrize("least", [1e-1, 1e-3, 1e-6])
def test_a_definite_matrix_has_room_to_every_side(least):
    q = orthogonal(4)
    point = (q * torch.tensor([1.0, 0.5, 0.2, least], dtype=torch.float64)) @ q.mT
    point = (point + point.mT) / 2
    for seed in range(20):
        step = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        moved = point + 0.1 * tangent(point, step)
        assert torch.linalg.eigvalsh(moved)[0] > 0
        assert "definite" in [kind.name for kind in structures(moved)]


def test_rows_bind_where_no_matrix_does():
    assert bound_rows(POINTS["of length one"]) == "of length one"
    assert bound_rows(POINTS["orthogonal"]) == ""
    assert bound_rows(normal(3, 4).detach()) == ""


def test_a_singular_matrix_has_no_nearest_rotation():
    assert keep(POINTS["a rotation"], torch.ones(2, 3, 3, dtype=torch.float64)) is None


def test_a_rotation_becomes_no_reflection():
    turned = POINTS["a rotation"].clone()
    turned[..., 0] *= -1
    kept = keep(POINTS["a rotation"], turned + 0.1)
    assert kept is not None
    assert bool((torch.linalg.det(kept) > 0).all())
