"""How a chat's answer is drawn and read, once model and prompt are known: tool calls, reasoning. Pure."""

from dataclasses import replace

from pillion.contracts.entries import MAX_CONSTRAINT, Constraint
from pillion.gateway.calls import FORMS
from pillion.gateway.calls.grammar import Controls, arguments, lark
from pillion.gateway.protocol.errors import bad
from pillion.gateway.protocol.request import CallForm, Calls, Generation, Shape, Tools


def shaped(
    asked: Generation, form: CallForm | None, controls: Controls, *, thinks: bool, opened: bool
) -> Generation:
    """The request with its output and its shape filled in. Raises ApiError for what does not go together.

    `form`: of the model's calls. `thinks`: it may reason first; `opened`: the prompt ends with the mark.
    """
    asked = replace(asked, output=replace(asked.output, thinks=thinks, thinking=thinks and opened))
    if asked.tools is None:
        return asked
    if form is None:
        raise bad(
            "tools",
            "tools: how this model writes calls is not known; start with --tool-call-parser.",
            "unsupported_parameter",
        )
    if asked.shape is not None and asked.shape.constraint.kind != "json":
        raise bad(
            asked.shape.param,
            f"{asked.shape.param} leaves no room for tools; use a JSON schema, or tool_choice none.",
            "invalid_value",
        )
    tools, forced = asked.tools, asked.tools.required
    names = tuple(tool["function"]["name"] for tool in tools.definitions)
    calls = Calls(
        form,
        tools.only or names,
        single=not (tools.parallel or forced),  # else the grammar sees to that
        certain=forced,
        early=asked.output.stream,
    )
    asked = replace(asked, output=replace(asked.output, calls=calls))
    if not forced and asked.shape is None:
        return asked
    return replace(asked, shape=_shape(tools, calls, controls, None if forced else asked.shape))


def _shape(tools: Tools, calls: Calls, controls: Controls, content: Shape | None = None) -> Shape:
    """Calls, or `content`."""
    parts = [] if content is None else [content]
    functions = []
    for index, tool in enumerate(tools.definitions):
        function = tool["function"]
        if function["name"] in calls.names:
            functions.append(function)
            path = f"tools[{index}].function.parameters"
            parts.append(Shape(Constraint("json", arguments(function)), path))
    grammar = lark(
        FORMS[calls.form].frame(controls),
        functions,
        controls,
        several=tools.parallel,
        content=None if content is None else content.constraint.text,
    )
    param = "tools" if content is None else content.param
    if len(grammar) > MAX_CONSTRAINT:
        raise bad(param, f"{param} must have at most {MAX_CONSTRAINT} characters in all.", "string_too_long")
    return Shape(Constraint("lark", grammar), param, tuple(parts))
