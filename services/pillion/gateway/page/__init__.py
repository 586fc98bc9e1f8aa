"""The chat page at `/` and the one at `/status`: the files beside this module, as they are. They hold no
secret, so they need no key.

The pages talk to this gateway only, keep the key in the tab's session storage, and show what a model wrote
as text; the policy makes the browser hold them to that.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from hashlib import sha256
from importlib.resources import files

from aiohttp import web

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html"),
    "/chat.css": ("chat.css", "text/css"),
    "/chat.js": ("chat.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/status": ("status.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
}
"""Which file each path has, and its media type."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        *(f"{kind} 'none'" for kind in ("base-uri", "form-action", "frame-ancestors", "trusted-types")),
        "require-trusted-types-for 'script'",
    )
)
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-cache",  # kept, but asked for again each time: a new release shows at once
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> Iterator[tuple[str, Callable[[web.Request], Awaitable[web.Response]]]]:
    """Each path and what answers a GET of it."""
    folder = files(__name__)
    for path, (name, kind) in FILES.items():
        yield path, _served(path, folder.joinpath(name).read_bytes(), kind)


def _served(path: str, content: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    tag = sha256(content).hexdigest()[:32]

    async def answer(http: web.Request) -> web.Response:
        if http.path.endswith("/") and path != "/":  # its files would be looked for below it
            return web.Response(status=308, headers={"Location": f"..{path}", **HEADERS})
        known = any(each.value in (tag, "*") for each in http.if_none_match or ())
        response = (
            web.Response(status=304, headers=HEADERS)
            if known
            else web.Response(body=content, content_type=kind, charset="utf-8", headers=HEADERS)
        )
        response.etag = tag
        return response

    return answer
