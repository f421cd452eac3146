"""Parse an HTML page into a tree. A page that is not well-formed is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Node:
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def all(self, name: str | None = None, **wanted: str) -> list[Node]:
        """Return all elements of this name whose attributes contain the given words; `class_` is class."""
        keys = {key.removesuffix("_").replace("_", "-"): value for key, value in wanted.items()}
        return [
            node
            for node in self.walk()
            if name in (None, node.name) and all(value in node.attributes.get(key, "").split() for key, value in keys.items())
        ]

    def one(self, name: str | None = None, **wanted: str) -> Node:
        (found,) = self.all(name, **wanted)
        return found

    def walk(self) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                yield child
                yield from child.walk()

    @property
    def text(self) -> str:
        return " ".join("".join(child if isinstance(child, str) else f" {child.text} " for child in self.children).split())


class Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("page")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        keys = [key for key, _ in attrs]
        assert len(keys) == len(set(keys)), f"<{tag}> has an attribute twice: {keys}"
        node = Node(tag, {key: value or "" for key, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        node = self.open.pop()
        assert node.name == tag, f"</{tag}> ends <{node.name}> at line {self.getpos()[0]}"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(text: str) -> Node:
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"not closed: {[node.name for node in parser.open[1:]]}"
    return parser.open[0]


def cells(table: Node) -> list[list[str]]:
    """Return the rows of a table, including the header."""
    return [[cell.text for cell in row.walk() if cell.name in ("th", "td")] for row in table.all("tr")]
