"""`completed`: a package's Functions completed for a while, whoever else is at work."""

import gc
import sys
import textwrap
import threading
import weakref

import pytest
import torch

import pullback

func = torch.func

FUNCTION = """
import torch

class Cube(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 3 * x ** 2 * g

cube = Cube.apply
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose submodules end the process, print, and raise when they are imported."""
    root = tmp_path / "published_cubes"
    (root / "scripts").mkdir(parents=True)
    (root / "__init__.py").write_text("from published_cubes.maths import Cube, cube\n")
    (root / "maths.py").write_text(FUNCTION)
    (root / "unused.py").write_text("raise RuntimeError('imported')\n")
    (root / "scripts" / "__init__.py").write_text("")
    (root / "scripts" / "run.py").write_text("import sys\nsys.exit(3)\n")
    (root / "scripts" / "loud.py").write_text(
        textwrap.dedent("""
            import pathlib
            pathlib.Path(__file__).with_suffix(".imported").touch()
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield root
    for name in [n for n in sys.modules if n.partition(".")[0] == "published_cubes"]:
        del sys.modules[name]


def value():
    return torch.tensor(2.0, dtype=torch.float64)


def test_only_what_is_imported_is_completed(package):
    with pullback.completed("published_cubes") as functions:
        import published_cubes

        assert [f.__name__ for f in functions] == ["Cube"]
        assert func.hessian(published_cubes.cube)(value()) == 12
    assert "published_cubes.unused" not in sys.modules
    assert "published_cubes.scripts.run" not in sys.modules
    assert not (package / "scripts" / "loud.imported").exists()


def test_a_submodule_by_name_is_imported(package):
    with pullback.completed("published_cubes.maths") as functions:
        assert [f.__name__ for f in functions] == ["Cube"]


def test_a_module_that_ends_the_process_is_an_error_of_ours(package):
    with (
        pytest.raises(pullback.errors.ArgumentError, match="cannot be imported"),
        pullback.completed("published_cubes.scripts.run"),
    ):
        pass


def test_what_is_no_module_is_refused():
    with (
        pytest.raises(pullback.errors.ArgumentTypeError, match="takes a module"),
        pullback.completed(3),
    ):
        pass


def test_a_module_imported_meanwhile_is_as_before(package):
    with pullback.completed("published_cubes"):
        (package / "late.py").write_text(FUNCTION)
        import published_cubes.late as late

        assert late.cube(value()) == 8


def test_a_subclass_runs_its_own_rules(package):
    import published_cubes

    class Fourth(published_cubes.Cube):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**4

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 4 * x**3 * g

    with pullback.completed("published_cubes"):
        assert Fourth.apply(value()) == 16
        assert func.hessian(Fourth.apply)(value()) == 48

        class Fifth(published_cubes.Cube):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**5

            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 5 * x**4 * g

        x = value().requires_grad_()
        y = Fifth.apply(x)
        assert y == 32
        assert torch.autograd.grad(y, x)[0] == 80
    assert Fourth.apply(value()) == 16
    assert "apply" not in vars(published_cubes.Cube)


def test_contexts_that_overlap(package):
    import published_cubes

    first = pullback.completed("published_cubes")
    second = pullback.completed("published_cubes")
    bound = published_cubes.cube
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert func.hessian(published_cubes.cube)(value()) == 12
    assert func.hessian(published_cubes.Cube.apply)(value()) == 12
    second.__exit__(None, None, None)
    assert "apply" not in vars(published_cubes.Cube)
    assert published_cubes.cube is bound


def test_threads_enter_and_leave(package):
    import published_cubes

    failed = []
    bound = published_cubes.cube

    def work():
        try:
            for _ in range(50):
                with pullback.completed("published_cubes"):
                    x = value().requires_grad_()
                    assert torch.autograd.grad(published_cubes.cube(x), x)[0] == 12
        except BaseException as error:  # a thread has no other way to tell
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert "apply" not in vars(published_cubes.Cube)
    assert published_cubes.cube is bound


def test_what_was_completed_is_freed(package):
    gc.freeze()  # what was made before is looked at no more: with all of torch that takes seconds
    with pullback.completed("published_cubes") as functions:
        reference = weakref.ref(functions[0])
    del functions
    for name in [n for n in sys.modules if n.partition(".")[0] == "published_cubes"]:
        del sys.modules[name]
    gc.collect()
    assert reference() is None
