"""The forms in which models write tool calls, one a module.

Each has `MARKS`, the texts that frame its calls and that are read also where they are control tokens, and
`read`, a parser (see `pillion.gateway.source`) for an answer's text. What is not a whole call of a function
that the request defined stays content.
"""

from hashlib import sha256

from pillion.gateway.calls import hermes, llama3_json, mistral
from pillion.gateway.protocol.request import CallForm

FORMS = {"hermes": hermes, "llama3_json": llama3_json, "mistral": mistral}

_SHORT = 9  # characters of an id that Mistral's templates take


def identity(form: CallForm, call: str) -> str:
    """A call's id, the same at every gateway. `call` names it among all."""
    digest = sha256(call.encode()).hexdigest()
    return digest[:_SHORT] if form == "mistral" else f"call_{digest[:24]}"
