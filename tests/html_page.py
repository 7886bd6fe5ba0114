"""An HTML page as a browser parses it: elements with their attributes and text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_EMPTY = ("meta", "br", "link", "img", "input", "hr")


@dataclass(slots=True, eq=False)
class Element:
    """One element."""

    tag: str
    attributes: dict[str, str]
    within: tuple[Element, ...]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the element and of its descendants, with single spaces."""
        return " ".join(self.exact.split())

    @property
    def exact(self) -> str:
        """The same with spaces, tabs and line breaks unchanged."""
        return "".join(self.parts)


class Page(HTMLParser):
    """The elements of a page, in document order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add an element."""
        if tag in ("td", "tr", "th") and self._open:
            self._close_cells(tag)
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(self._open))
        self.elements.append(element)
        if tag not in _EMPTY:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add an element without content, such as those of SVG."""
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}, tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        """Close all elements up to the latest one with this tag."""
        tags = [element.tag for element in self._open]
        if tag in tags:
            del self._open[len(tags) - 1 - tags[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        """Add text to all open elements."""
        for element in self._open:
            element.parts.append(data)

    def _close_cells(self, tag: str) -> None:
        """A cell ends at the start of the next cell or row."""
        ended = ("td", "th") if tag != "tr" else ("td", "th", "tr")
        while self._open[-1].tag in ended:
            self._open.pop()

    def of(self, tag: str, **attributes: str) -> Iterator[Element]:
        """The elements of a tag with these attributes."""
        for element in self.elements:
            if element.tag == tag and attributes.items() <= element.attributes.items():
                yield element

    def inside(self, element: Element) -> list[Element]:
        """The descendants of an element."""
        return [one for one in self.elements if element in one.within]

    def having(self, attribute: str) -> list[Element]:
        """The elements with an attribute."""
        return [element for element in self.elements if attribute in element.attributes]
