"""`python -m benchmarks.kernels_in_use.reproduce [NAME...]`: run the scripts of `reproductions/`.

Each page has a script, of torch and the package alone, and what it prints. Here the script is run
as it stands, in Triton's interpreter where there is no GPU, and its answer must be that of the
page; `--write` puts it there instead.
"""

import argparse
import contextlib
import importlib
import io
import re
from pathlib import Path

import torch

from benchmarks.kernels_in_use._interpreter import install

FOLDER = Path(__file__).parents[2] / "reproductions"
PAGE = re.compile(
    r"```python\n(?P<script>.*?)```\n\n(?P<words>.*?)```text\n(?P<answer>.*?)```", re.DOTALL
)


def run(script: str) -> str:
    """What a script prints."""
    said = io.StringIO()
    torch.manual_seed(0)
    with contextlib.redirect_stdout(said):
        exec(compile(script, "script", "exec"), {"__name__": "__main__"})
    return said.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        install(active=True)
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        page = PAGE.search(text)
        if page is None or (options.names and path.stem not in options.names):
            continue
        stem = path.stem.partition("-")[0]
        if stem in ("mamba", "unsloth") and not torch.cuda.is_available():
            importlib.import_module(f"benchmarks.kernels_in_use.cases_{stem}")  # which lets it in
        answer = run(page["script"])
        print(f"== {path.stem}\n{answer}", end="", flush=True)
        if options.write:
            start, end = page.span("answer")
            path.write_text(text[:start] + answer + text[end:], encoding="utf-8")
        elif answer != page["answer"]:
            raise SystemExit(f"{path.name} says otherwise:\n{page['answer']}")


if __name__ == "__main__":
    main()
