"""`pillion simulate`, from its flags to its report."""

import json

import pytest
from click.testing import CliRunner

from pillion.ops.cli import main
from pillion.steptime import save

TRACE = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(
    f"{i / 10},{20 + i},{3 + i % 4}\n" for i in range(30)
)


@pytest.fixture
def call(sim, tmp_path):
    save(sim.step_time(), tmp_path / "cost.json")
    (tmp_path / "trace.csv").write_text(TRACE)
    (tmp_path / "lengths.csv").write_text(TRACE.replace("arrived_at", "when"))

    def run(words: str):
        args = [word.replace("~", " ") for word in words.replace("@", f"{tmp_path}/").split()]
        return CliRunner().invoke(main, ["simulate", "--cost-model", str(tmp_path / "cost.json"), *args])

    return run


def test_the_report_says_what_was_asked_and_what_came(call, tmp_path):
    done = call(
        "--rate 20 --requests 40 --lengths chats --max-num-seqs 16 --seed 3 --output @out --slo-ttft 0.7"
    )
    assert done.exit_code == 0, done.output
    assert "Simulated: stall-free on one replica" in done.output and "goodput" in done.output
    made = json.loads((tmp_path / "out.json").read_text())
    assert made["provenance"]["load"]["seed"] == 3 and made["provenance"]["scheduler"]["max_num_seqs"] == 16
    (told,) = made["raw"]["repeats"]
    assert (told["requests"]["sent"], told["requests"]["slo"]) == (40, {"ttft": 0.7, "tbt": 0.1})
    assert told["steps"]["most_running"] <= 16
    figures = {one["name"]: one["values"] for one in made["summary"]}
    assert figures["finished"] == [40] and figures["TBT p99"] == [told["requests"]["tbt_s"]["p99"]]
    assert {plot["title"] for plot in made["plots"]} >= {
        "Time between tokens",
        "What a step carries",
        "Queues",
    }
    assert (tmp_path / "out.html").read_text().count("<svg") == 7


def test_repeats_have_other_seeds(call, tmp_path):
    call("--rate 20 --requests 20 --lengths chats --repeats 2 --seed 5 --output @both")
    both = json.loads((tmp_path / "both.json").read_text())["raw"]["repeats"]
    call("--rate 20 --requests 20 --lengths chats --seed 6 --output @second")
    assert json.loads((tmp_path / "second.json").read_text())["raw"]["repeats"] == both[1:] != both[:1]


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ("--trace @trace.csv", 30),
        ("--trace @trace.csv --requests 7 --scale 4", 7),
        ("--trace @lengths.csv --rate 50 --requests 11", 11),
        ("--trace @lengths.csv --clients 3 --think 0.1 --requests 12", 12),
        ("--lengths chats --rate 20 --cv 3 --requests 13", 13),
        ("--lengths chats --arrivals gamma --rate 20 --requests 14", 14),
        ("--lengths chats --rate 20 --requests 15 --no-residuals --replicas 3 --policy stall-free", 15),
        ("--lengths chats --rate 20 --requests 16 --admission --tenant-rpm 1000", 16),
    ],
)
def test_loads_of_every_kind(call, tmp_path, words, sent):
    done = call(f"{words} --output @out")
    assert done.exit_code == 0, done.output
    requests = json.loads((tmp_path / "out.json").read_text())["raw"]["repeats"][0]["requests"]
    assert (requests["sent"], requests["finished"]) == (sent, sent)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "say how requests arrive: give --rate, --clients or a --trace"),
        ("--trace @lengths.csv", "has no arrived_at: give --rate or --clients"),
        ("--trace @trace.csv --lengths chats", "give --trace or --lengths, not both"),
        ("--rate 1 --lengths none", "--lengths none is unknown; there is arxiv_summarization, azure_code,"),
        ("--trace @absent.csv", "cannot be read"),
        ("--rate 1 --policy none", "'none' is none of stall-free,"),
        ("--arrivals poisson", "--arrivals poisson needs --rate"),
        ("--arrivals closed", "--arrivals closed needs --clients"),
        ("--clients 2 --rate 3", "--rate means nothing to closed arrivals (--clients); leave it out"),
        ("--rate 3 --scale 3", "--scale means nothing to poisson arrivals"),
        ("--trace @trace.csv --cv 3", "--cv means nothing to a replayed trace"),
        ("--rate 1 --cost-model @absent.json", "`pillion profile` makes one"),
        ("--rate 1 --output @trace.csv/x --requests 1", "cannot write the report"),
        ("--rate 1 --admission --tenant-limits a~rpm=x", "--tenant-limits"),
        ("--rate 1 --max-num-seqs 0", "--max-num-seqs"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(call, words, said):
    done = call(words)
    assert done.exit_code in (1, 2) and said in done.output
    assert "Traceback" not in done.output and not isinstance(done.exception, TypeError | ValueError)


def test_what_admission_would_refuse_is_told_where_there_is_none(call):
    load = "--rate 20 --requests 10 --lengths chats --slo-ttft 1 --tenant-rpm 5"
    note = "! --slo-ttft, --tenant-rpm: nothing is refused for it without --admission"
    for flags, told in (("", True), ("--admission", False), ("--replicas 2", False)):
        done = call(f"{load} {flags}")
        assert done.exit_code == 0 and (note in done.output) == told, done.output


def test_pipeline_stages_are_told(call, tmp_path):
    load = "--rate 20 --requests 60 --lengths chats --no-residuals"
    done = call(f"{load} --pipeline-parallel-size 2 --stage-latency 0.001 --output @two")
    assert done.exit_code == 0 and "Pipeline stages" in done.output, done.output
    made = json.loads((tmp_path / "two.json").read_text())
    assert (made["provenance"]["load"]["stages"], made["provenance"]["load"]["stage_latency"]) == (2, 0.001)
    seen = made["raw"]["repeats"][0]["pipeline"]
    figures = {one["name"]: one["values"] for one in made["summary"]}
    assert figures["stage time idle"] == [seen["idle_share"]] and 0 < seen["idle_share"] < 1
    kinds = [figures[f"bubbles PB{kind}"][0] for kind in (1, 2, 3)]
    assert all(kinds) and sum(kinds) == pytest.approx(seen["bubble_share"] * seen["stage_s"])
    assert figures["bubbles of a request median"] == [seen["request_s"]["median"]] and "PB1" in str(
        made["definitions"]
    )
    call(f"{load} -pp 2 --output @near")
    near = json.loads((tmp_path / "near.json").read_text())["raw"]["repeats"][0]
    assert near["requests"]["tpot_s"]["median"] < made["raw"]["repeats"][0]["requests"]["tpot_s"]["median"]
    call(f"{load} -pp 1 --output @one")
    one = json.loads((tmp_path / "one.json").read_text())
    assert "pipeline" not in one["raw"]["repeats"][0] and "PB1" not in str(one)
    assert call(f"{load} -pp 0").exit_code == 2
