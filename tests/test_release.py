"""What is released says one version and one address."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_file_says_the_same_version():
    version = PROJECT["project"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version: "{version}"' in (ROOT / "packaging/conda/recipe.yaml").read_text()


def test_links_of_the_page_lead_to_the_repository():
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    [change] = hook["substitutions"]
    page = re.sub(change["pattern"], change["replacement"], (ROOT / "README.md").read_text())
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("https://")] == []
    home = PROJECT["project"]["urls"]["Homepage"]
    for link in links:
        if link.startswith(home):
            assert (ROOT / link.removeprefix(f"{home}/blob/main/")).exists(), link


def test_the_recipe_needs_what_the_wheel_needs():
    recipe = (ROOT / "packaging/conda/recipe.yaml").read_text().lower()
    for need in PROJECT["project"]["dependencies"]:
        name, _, least = need.lower().partition(">=")
        assert f"- {name} >={least}" in recipe
