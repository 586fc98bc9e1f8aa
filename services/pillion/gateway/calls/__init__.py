"""The forms in which models write tool calls, one a module.

Each has `MARKS`, the texts that frame its calls and that are read also where they are control tokens, and
`read`, a parser (see `pillion.gateway.source`) for an answer's text. What is not a whole call of a function
that the request defined stays content.
"""

import re
from hashlib import sha256
from types import ModuleType

from pillion.gateway.calls import hermes, llama3_json, mistral
from pillion.gateway.protocol.request import CallForm

FORMS: dict[CallForm, ModuleType] = {"hermes": hermes, "llama3_json": llama3_json, "mistral": mistral}

# What templates that describe a form have in common, and, first, forms that are not known here.
_SIGNS: tuple[tuple[CallForm | None, re.Pattern[str]], ...] = (
    (None, re.compile(r"<function=|<arg_key>|<parameter=")),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("hermes", re.compile(r"<tool_call>")),
    ("llama3_json", re.compile(r"<\|python_tag\|>|\{\\?\"name\\?\": function name, \\?\"parameters\\?\"")),
    (None, re.compile(r"\btools\b")),
)


def knows_tools(template: str) -> bool:
    """Whether a chat template writes what tools there are."""
    return re.search(r"\btools\b", template) is not None


def form_of(template: str) -> CallForm | None:
    """The form in which a model with this template writes calls, None for one that is not known.

    With a template that knows no tools it is the one that `pillion.gateway.untaught` asks for.
    """
    return next((form for form, sign in _SIGNS if sign.search(template)), "hermes")


_SHORT = 9  # characters of an id that Mistral's templates take


def identity(form: CallForm, call: str) -> str:
    """A call's id, the same at every gateway. `call` names it among all."""
    digest = sha256(call.encode()).hexdigest()
    return digest[:_SHORT] if form == "mistral" else f"call_{digest[:24]}"
