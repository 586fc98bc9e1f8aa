"""Endpoints that other servers of this API have, and this one does not."""

from collections.abc import Mapping

ABSENT: Mapping[str, str] = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/embeddings": "the model writes text and nothing else",
    "/v1/moderations": "the model writes text and nothing else",
    "/v1/audio": "the model reads and writes text and nothing else",
    "/v1/images": "the model reads and writes text and nothing else",
    "/v1/videos": "the model reads and writes text and nothing else",
    "/v1/realtime": "use /v1/chat/completions with stream",
    "/v1/files": "nothing is stored",
    "/v1/uploads": "nothing is stored",
    "/v1/batches": "send the requests themselves, as many at once as you like",
    "/v1/vector_stores": "nothing is stored",
    "/v1/fine_tuning": "models are not trained",
    "/v1/fine-tunes": "models are not trained",
    "/v1/evals": "models are not judged",
    "/v1/assistants": "use /v1/chat/completions",
    "/v1/threads": "use /v1/chat/completions",
    "/v1/conversations": "use /v1/chat/completions",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/rerank": "the model writes text and nothing else",
    "/v1/score": "the model writes text and nothing else",
    "/rerank": "the model writes text and nothing else",
    "/score": "the model writes text and nothing else",
    "/pooling": "the model writes text and nothing else",
    "/classify": "the model writes text and nothing else",
}
"""Each with all that is below it, and what to do instead, or why."""


def why(path: str) -> str:
    """Why it is not there, for a message; "" for a path that nobody knows."""
    for prefix, reason in ABSENT.items():
        if path == prefix or path.startswith(prefix + "/"):
            return reason
    return ""
