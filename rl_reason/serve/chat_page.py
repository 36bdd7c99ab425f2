"""The page at /: one HTML file that talks to the routes of this server.

The policy of its content allows this script and this style alone, and requests
to this server alone. Text of a model becomes text nodes, never HTML.
"""

import base64
import hashlib
import pathlib
import re

TEXT = pathlib.Path(__file__).with_name("chat.html").read_text("utf-8")


def _hash(tag: str) -> str:
  """The source expression of the only element of a tag."""
  (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", TEXT, re.DOTALL)
  digest = hashlib.sha256(content.encode()).digest()
  return f"'sha256-{base64.b64encode(digest).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hash('script')}; style-src"
        f" {_hash('style')}; connect-src 'self'; img-src data:; base-uri"
        " 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",  # a new version has new hashes
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
