"""Texts become values; whatever is wrong names the setting and where it was set."""

import contextlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from pillion.config import ConfigError, TenantLimits, load, parse_bytes, parse_limits
from tests.shared.config.conftest import LEAVES, given_in, value


def _parts(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    arguments = [argument for argument in get_args(annotation) if not isinstance(argument, Meta)]
    return {annotation} if not arguments else set().union(*map(_parts, arguments))


class TestInvalidValues:
    @pytest.mark.parametrize("name", [name for name, leaf in LEAVES.items() if int in _parts(leaf.type)])
    def test_that_is_a_number_is_read_from_text_and_refuses_words(self, name: str):
        leaf = LEAVES[name]
        assert value(load({}, {leaf.env: "7"}), name) == (7, leaf.env)
        with pytest.raises(ConfigError, match=f"^{leaf.env}: 'seven' is no whole number (of at least|from) "):
            load({}, {leaf.env: "seven"})

    @pytest.mark.parametrize(
        "name, bad, said",
        [
            ("port", "70000", "no whole number from 0 to 65535"),
            ("port", "-1", "no whole number from 0 to 65535"),
            ("port", "80.5", "no whole number from 0 to 65535"),
            ("max_waiting", "0", "no whole number of at least 1"),
            ("watermark", "1", "no number of at least 0 and below 1"),
            ("watermark", "-0.1", "no number of at least 0 and below 1"),
            ("gpu_memory_utilization", "x", "no number above 0 and at most 1"),
            ("slo_tbt", "0", "no number above 0"),
            ("slo_tbt", "nan", "no number above 0"),
            ("slo_tbt", "inf", "no number above 0"),
            ("tile", "0", "no whole number of at least 1"),
            ("lease_seconds", "1e400", "no number above 0"),
            ("dtype", "float8", "none of auto, bfloat16, float32, float16"),
            ("stack", "a b", "no name of letters, digits, '.', '_' and '-'"),
            ("stack", "{x}", "no name of letters, digits, '.', '_' and '-'"),
            ("enable_prefix_caching", "maybe", "neither true nor false"),
            ("log_level", "loud", "none of debug, info, warning, error"),
            ("prefill_guard", "none", "none of stretch, turns"),
        ],
    )
    def test_name_the_source_and_the_value(self, name: str, bad: str, said: str, tmp_path: Path):
        leaf = LEAVES[name]
        for flags, environ, source in (({name: bad}, {}, leaf.flag), ({}, {leaf.env: bad}, leaf.env)):
            with pytest.raises(ConfigError) as error:
                load(flags, environ)
            assert str(error.value) == f"{source}: {bad!r} is {said}"
        with pytest.raises(ConfigError) as error:
            given_in({"file": f'[{leaf.section}]\n{name} = "{bad}"'}, tmp_path)
        assert str(error.value) == f"{tmp_path / 'pillion.toml'}: {name}: {bad!r} is {said}"

    @pytest.mark.parametrize("name", LEAVES)
    def test_speak_no_python(self, name: str, tmp_path: Path):
        with pytest.raises(ConfigError) as error:
            given_in({"file": f"[{LEAVES[name].section}]\n{name} = {{a = 1}}"}, tmp_path)
        assert re.search(r" is (no|none|neither) ", str(error.value))
        assert not re.search(r"`|Expected|int\b|str\b|float\b|array|object|null", str(error.value))

    @pytest.mark.parametrize("text", ["true", "1", "yes", "TRUE"])
    def test_words_for_yes(self, text: str):
        assert load({}, {"PILLION_ENABLE_PREFIX_CACHING": text}).config.scheduler.enable_prefix_caching

    @pytest.mark.parametrize("text", ["false", "0", "no", "False"])
    def test_words_for_no(self, text: str):
        assert not load({}, {"PILLION_ENABLE_PREFIX_CACHING": text}).config.scheduler.enable_prefix_caching


class TestSecrets:
    @pytest.mark.parametrize(
        "text", ['[gateway]\napi_key = "hush-1234"', "[gateway]\napi_key = [1, {k = 'hush-1234'}]",
                 "[stack]\nredis = ['hush-1234']"],
    )  # fmt: skip
    def test_are_in_no_message(self, text: str, tmp_path: Path):
        with pytest.raises(ConfigError) as error:
            given_in({"file": text}, tmp_path)
        assert "hush" not in str(error.value)
        assert "the value is no " in str(error.value)


class TestSizes:
    @pytest.mark.parametrize(
        "text, size",
        [("512MiB", 512 << 20), ("4GiB", 4 << 30), ("1.5G", 3 << 29), ("123", 123), ("64 kb", 64 << 10),
         ("2TiB", 2 << 40), (" 7B ", 7)],
    )  # fmt: skip
    def test_are_read(self, text: str, size: int):
        assert parse_bytes(text) == size

    @pytest.mark.parametrize(
        "text", ["", "B", "GiB", "-1G", "0", "nan", "inf", "1e400", "1..5M", "4 cats", "1PiB"]
    )
    def test_that_are_none_are_refused(self, text: str):
        with pytest.raises(ConfigError, match="is no size"):
            parse_bytes(text)

    @given(st.text(max_size=8))
    def test_are_a_positive_number_or_an_error(self, text: str):
        with contextlib.suppress(ConfigError):
            assert parse_bytes(text) >= 0


def test_a_size_that_is_none_is_refused_before_anything_starts():
    with pytest.raises(ConfigError, match="PILLION_KV_CACHE_MEMORY: '5XB' is no size"):
        load(environ={"PILLION_KV_CACHE_MEMORY": "5XB"})


class TestTenantLimits:
    def test_are_one_line_a_tenant_in_every_source(self, tmp_path: Path):
        texts = ("alice rpm=60 weight=2.5", "bob tpm=1000 concurrency=4", "carol")
        listed = ", ".join(f'"{text}"' for text in texts)
        for sources in (
            {"flag": {"tenant_limits": texts}},
            {"env": {"PILLION_TENANT_LIMITS": ",".join(texts)}},
            {"file": f"[admission]\ntenant_limits = [{listed}]"},
        ):
            config = given_in(sources, tmp_path).config.admission
            assert parse_limits(config.tenant_limits, TenantLimits(rpm=5)) == {
                "alice": TenantLimits(rpm=60, weight=2.5),
                "bob": TenantLimits(rpm=5, tpm=1000, concurrency=4),
                "carol": TenantLimits(rpm=5),
            }

    @pytest.mark.parametrize(
        "text, said",
        [
            ("alice rpm", "rpm is no whole number of at least 1"), ("alice rpm=0", "rpm is no whole number"),
            ("alice rps=1", "no tenant's limits"), ("alice rpm=1 rpm=2", "no tenant's limits"),
            ("", "names no tenant"), ("rpm=1", "names no tenant"),
            ("alice weight=0", "weight is no number above 0"),
            ("alice weight=inf", "weight is no number above 0"), ("bob", "the tenant bob has limits twice"),
        ],
    )  # fmt: skip
    def test_that_are_none_are_refused_with_the_remedy(self, text: str, said: str):
        with pytest.raises(ConfigError, match=f"^--tenant-limits: .*{said}"):
            load({"tenant_limits": ("bob", text)}, {})
