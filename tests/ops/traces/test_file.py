"""Trace files as their makers write them, and what is wrong with others."""

import pytest

from pillion.ops.traces import Arrival, BadTrace, read, timed


def test_lengths_with_columns_of_their_own(tmp_path):
    file = tmp_path / "lengths.csv"
    file.write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.85\n2015,156.0,2171,12.9\n"
    )
    trace = read(file)
    assert trace == [Arrival(0.0, 3772, 54), Arrival(0.0, 2015, 156)] and not timed(trace)


def test_arrivals_are_put_in_order_and_start_at_nought(tmp_path):
    file = tmp_path / "arrivals.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\r\n9.5,374,44\r\n4.25,396,109\r\n")
    trace = read(file)
    assert trace == [Arrival(0.0, 396, 109), Arrival(5.25, 374, 44)] and timed(trace)


def test_groups_priorities_and_tenants(tmp_path):
    file = tmp_path / "groups.csv"
    file.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens,prefix_group,prefix_tokens,priority,tenant\n"
        "0,100,5,3,64,-1,alice\n1,100,5,,,,\n"
    )
    assert read(file) == [
        Arrival(0.0, 100, 5, group=3, prefix=64, priority=-1, tenant="alice"),
        Arrival(1.0, 100, 5),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must name its columns, num_prefill_tokens and num_decode_tokens"),
        ("prompt,num_decode_tokens\n1,2\n", "must name its columns, num_prefill_tokens among them"),
        ("num_prefill_tokens,num_decode_tokens\n", "holds no request"),
        ("num_prefill_tokens,num_decode_tokens\n5,5\n5,0\n", "line 3: num_decode_tokens is 0; .*least 1"),
        ("num_prefill_tokens,num_decode_tokens\n5.5,5\n", "line 2: num_prefill_tokens is 5.5; .*whole"),
        ("num_prefill_tokens,num_decode_tokens\n5\n", "line 2: num_decode_tokens is missing"),
        ("num_prefill_tokens,num_decode_tokens\nfive,5\n", "line 2: num_prefill_tokens is 'five', no number"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\nnan,5,5\n", "line 2: arrived_at is 'nan', no"),
        ("num_prefill_tokens,num_decode_tokens,prefix_tokens\n5,5,6\n", "is 6, the prompt has 5"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_said_with_its_line(tmp_path, text, said):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    with pytest.raises(BadTrace, match=said):
        read(file)


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(BadTrace, match="cannot be read"):
        read(tmp_path / "absent.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadTrace, match="cannot be read"):
        read(tmp_path / "bytes.csv")
