"""Hooks of MkDocs: the notebook becomes a page, and links to files outside docs/ become plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

NOTEBOOK = "notebook.ipynb"
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)[^)]+\)")
ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the notebook, with its outputs, and the pages of the repository's root."""
    docs, root = Path(config.docs_dir), Path(config.config_file_path).parent
    for name, page in ROOT_PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (root / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    text, pictures = notebook(docs / NOTEBOOK)
    files.append(File.generated(config, "notebook.md", content=text))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    source = files.get_file_from_path(NOTEBOOK)
    if source is not None:
        files.remove(source)
    return files


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the notebook as Markdown, and its pictures by name."""
    import nbformat
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    outputs = {f"notebook-{name}": content for name, content in resources["outputs"].items()}
    for name in resources["outputs"]:
        text = text.replace(f"({name})", f"(notebook-{name})")
    return re.sub(r"<style scoped>.*?</style>", "", text, flags=re.S), outputs


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to the notebook lead to its page; keep the text of links to source files, which lead out of the site."""
    return OUTSIDE.sub(r"\1", markdown).replace(f"({NOTEBOOK})", "(notebook.md)")
