"""A stream is taken apart: when each token came, whatever pieces the network made of it."""

import pytest

from pillion.ops.bench.client import taken_apart

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'


def test_a_token_came_when_its_event_was_whole():
    line = taken_apart(
        1.0,
        [
            (2.0, b': hello\n\ndata: {"choices":[{"text":"a","token_ids":[5]}]}\n\ndata: {"choi'),
            (3.0, b'ces":[{"text":"","token_ids":[6,7],"finish_reason":"length"}]}'),
            (4.0, b"\n\n" + USAGE + b"data: [DONE]\n\n"),
        ],
    )
    assert line.tokens == [2.0, 4.0, 4.0] and line.by_ids
    assert (line.ttft, line.gaps) == (1.0, [2.0, 0.0])
    assert (line.prompt_tokens, line.output_tokens, line.finish, line.error) == (7, 3, "length", None)


def test_without_ids_a_piece_of_text_is_a_token_and_usage_tells_their_number():
    events = [b'data: {"choices":[{"text":"%s"}]}\n' % text for text in (b"one", b"", b"two three")]
    line = taken_apart(0.0, [(float(at), event) for at, event in enumerate(events, 1)] + [(4.0, USAGE)])
    assert (line.tokens, line.by_ids, line.output_tokens) == ([1.0, 3.0], False, 3)
    bare = taken_apart(0.0, [(1.0, events[0])])
    assert (bare.output_tokens, bare.prompt_tokens) == (1, 0)


def test_cached_tokens_are_told():
    details = USAGE.replace(b'"completion', b'"prompt_tokens_details":{"cached_tokens":4},"completion')
    assert taken_apart(0.0, [(1.0, details)]).cached_tokens == 4
    none = USAGE.replace(b'"completion', b'"prompt_tokens_details":null,"completion')
    assert taken_apart(0.0, [(1.0, none)]).cached_tokens == 0


@pytest.mark.parametrize(
    ("event", "error", "code"),
    [
        (b'data: {"error":{"message":"no room","code":"queue_full"}}\n', "no room", "queue_full"),
        (b'data: {"error":"gone"}\n', "gone", None),
        (b"data: {what\n", "no completion's", None),
        (b'data: {"choices":7}\n', "no completion's", None),
    ],
)
def test_an_error_within_a_stream_is_kept(event: bytes, error: str, code: str | None):
    line = taken_apart(0.0, [(1.0, event)])
    assert line.error is not None and error in line.error
    assert line.code == code
