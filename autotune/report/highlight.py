"""A kernel's text with its syntax in colours: as few elements as say it."""

from __future__ import annotations

from itertools import groupby

from markupsafe import Markup, escape

from autotune.escape import printable

_KINDS = (
    ("Comment.Preproc", "p"),
    ("Comment", "c"),
    ("Keyword", "k"),
    ("Name.Builtin", "k"),
    ("Literal.String", "s"),
    ("Literal.Number", "n"),
)
"""The names of Pygments' tokens, as they begin, to classes of the style sheet; everything else is plain."""


def highlighted(text: str) -> Markup:
    """CUDA as HTML, every character of it escaped."""
    from pygments.lexers import CudaLexer

    tokens = ((_kind(str(token)), part) for token, part in CudaLexer(ensurenl=False).get_tokens(printable(text)))
    pieces = []
    for kind, parts in groupby(tokens, key=lambda one: one[0]):
        joined = escape("".join(part for _, part in parts))
        pieces.append(Markup("<i class={}>{}</i>").format(kind, joined) if kind else joined)
    return Markup("").join(pieces)


def _kind(token: str) -> str:
    """The class of a token, which is written `Token.Comment.Single`."""
    name = token.removeprefix("Token.")
    return next((kind for begin, kind in _KINDS if name.startswith(begin)), "")
