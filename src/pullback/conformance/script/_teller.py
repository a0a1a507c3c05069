"""`Teller`: makes the findings of a clause about one subject at one set of inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pullback.conformance.comparison._values import compared, show
from pullback.conformance.inputs._arguments import Arguments
from pullback.conformance.inputs._subject import Subject
from pullback.conformance.process._limits import NoEnd
from pullback.conformance.script._repro import Given, write_repro
from pullback.report import Finding, Verdict

__all__ = ["Teller"]


@dataclass(frozen=True)
class Teller:
    """What every finding, and the script that shows it, needs to know."""

    subject: Subject  # what is checked
    inputs: Arguments  # the arguments, in float64 where the function allows it
    original: Arguments  # the arguments as they were given
    seed: int = 0  # the seed of every random choice
    outputs: tuple[int, ...] = ()  # positions among the output tensors that are differentiated
    random: bool = False  # whether the function draws from a global generator
    # whether it refuses `torch.autograd.grad`, and takes ``.backward()``: one that runs forward
    # again in backward cannot tell which gradients are asked for
    accumulates: bool = False
    clause: str = ""  # the clause that is running

    def holds(self, detail: str) -> Finding:
        """A finding that the clause holds."""
        return self._finding(Verdict.HOLDS, detail)

    def skipped(self, detail: str) -> Finding:
        """A finding that the clause does not apply."""
        return self._finding(Verdict.SKIPPED, detail)

    def lacking(self, detail: str, hint: str = "") -> Finding:
        """A finding that the function says clearly that it does not support this."""
        return self._finding(Verdict.LACKING, detail, hint=hint)

    def crashes(self, detail: str, hint: str = "", repro: Sequence[str] = ()) -> Finding:
        """A finding that the function fails with an unclear error."""
        return self._finding(Verdict.CRASHES, detail, hint=hint, repro=self._script(repro))

    def raised(self, error: BaseException, detail: str, hint: str = "") -> Finding:
        """A finding that the function fails with an unclear error, or with none for too long."""
        return replace(self.crashes(detail, hint), fails="time" * isinstance(error, NoEnd))

    def broken(
        self,
        detail: str,
        *,
        expected: object = "",
        got: object = "",
        place: str = "",
        hint: str = "",
        repro: Sequence[str] = (),
        given: Given | None = None,
        said: str | None = None,
    ) -> Finding:
        """A finding that the function is silently wrong.

        Its script shows it, after the lines that make ``args``, ``xs`` and ``outs``, with the
        tensors judged with, by name. How expected and got differ is found from the numbers where it
        is not said.
        """
        script = self._script(repro, given or {})
        shown, said, entries = compared(expected, got, said)
        return self._finding(
            Verdict.BROKEN, f"{detail} {said}" if said else detail,
            expected=shown[0], got=shown[1], input=place, hint=hint, repro=script, entries=entries,
        )  # fmt: skip

    def _script(self, body: Sequence[str], given: Given | None = None) -> str:
        return write_repro(
            self.subject, self.inputs, self.outputs, self.seed, body,
            random=self.random, accumulates=self.accumulates, given=given or {},
        )  # fmt: skip

    def _finding(self, verdict: Verdict, detail: str, **more: str) -> Finding:
        source = self.subject.source
        return Finding(self.clause, verdict, detail, seed=self.seed, source=source, **more)

    def untidy(
        self,
        detail: str,
        *,
        expected: object = "",
        got: object = "",
        place: str = "",
        hint: str = "",
    ) -> Finding:
        """A finding that the numbers are right because torch mends them."""
        return self._finding(Verdict.UNTIDY, detail, expected=show(expected), got=show(got),
                             input=place, hint=hint)  # fmt: skip
