"""What kind of token a sink sits on."""

from __future__ import annotations

import unicodedata

__all__ = ["token_kind"]


def token_kind(token: str, *, first: bool, bos: bool) -> str:
    """bos, first, delimiter (punctuation, symbols, white space only) or other.

    >>> token_kind(",\\n", first=False, bos=False), token_kind(" the", first=False, bos=False)
    ('delimiter', 'other')
    """
    if first:
        return "bos" if bos else "first"
    marks = all(unicodedata.category(c)[0] in "PSZC" for c in token)
    return "delimiter" if token and marks else "other"
