"""One tree from four sources; whatever is wrong names the setting and where it was set."""

import contextlib
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from pillion.config import (
    Config,
    ConfigError,
    Leaf,
    Loaded,
    TenantLimits,
    leaves,
    load,
    parse_bytes,
    parse_limits,
)


def _parts(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    arguments = [argument for argument in get_args(annotation) if not isinstance(argument, Meta)]
    return {annotation} if not arguments else set().union(*map(_parts, arguments))


LEAVES = {leaf.name: leaf for leaf in leaves()}


def given_in(sources: dict[str, Any], folder: Path) -> Loaded:
    """Loads {"file": text, "env": variables, "flag": values}, each of which may be absent."""
    file, environ, flags = None, {}, {}
    if "file" in sources:
        file = folder / "pillion.toml"
        file.write_text(sources["file"])
    environ = sources.get("env", {})
    flags = sources.get("flag", {})
    return load(flags, environ, file)


def value(loaded: Loaded, name: str) -> tuple[Any, str]:
    (setting,) = [setting for setting in loaded.settings if setting.leaf.name == name]
    assert getattr(getattr(loaded.config, setting.leaf.section), name) == setting.value
    return setting.value, setting.source


class TestPrecedence:
    @given(st.booleans(), st.booleans(), st.booleans())
    def test_is_defaults_file_environment_flags(self, file: bool, env: bool, flag: bool):
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder) / "p.toml"
            path.write_text("[gateway]\nport = 1001\n" if file else "")
            loaded = load({"port": 1003 if flag else None}, {"PILLION_PORT": "1002"} if env else {}, path)
            expected = (
                (1003, "--port") if flag else (1002, "PILLION_PORT") if env else (1001, str(path)) if file
                else (8000, "default")
            )  # fmt: skip
            assert value(loaded, "port") == expected

    def test_is_by_leaf_and_not_by_section(self, tmp_path: Path):
        loaded = given_in(
            {
                "file": '[gateway]\nport = 1\nhost = "file"\nmax_choices = 3\n[scheduler]\ntile = 8\n',
                "env": {"PILLION_HOST": "environment", "PILLION_MAX_CHOICES": "4"},
                "flag": {"max_choices": 5},
            },
            tmp_path,
        )
        file = str(tmp_path / "pillion.toml")
        assert value(loaded, "port") == (1, file)
        assert value(loaded, "host") == ("environment", "PILLION_HOST")
        assert value(loaded, "max_choices") == (5, "--max-choices")
        assert value(loaded, "tile") == (8, file)
        assert value(loaded, "watermark") == (0.01, "default")

    def test_absent_is_no_value(self, tmp_path: Path):
        loaded = load({"port": None, "api_key": ()}, {"PILLION_PORT": "", "PILLION_API_KEY": "a,b"})
        assert value(loaded, "port") == (8000, "default")  # an empty variable is none
        assert value(loaded, "api_key") == (("a", "b"), "PILLION_API_KEY")

    def test_the_file_may_be_named_by_the_environment_and_the_flag_wins(self, tmp_path: Path):
        for name, port in (("a", 1), ("b", 2)):
            (tmp_path / name).write_text(f"[gateway]\nport = {port}\n")
        environ = {"PILLION_CONFIG": str(tmp_path / "a")}
        assert load({}, environ).config.gateway.port == 1
        assert load({}, environ, tmp_path / "b").config.gateway.port == 2

    def test_the_defaults_are_the_tree_s(self):
        loaded = load({}, {})
        assert loaded.config == Config()
        assert {setting.source for setting in loaded.settings} == {"default"}
        assert [setting.leaf.name for setting in loaded.settings] == list(LEAVES)


class TestEverySetting:
    @pytest.mark.parametrize("name", LEAVES)
    def test_has_a_name_of_its_own_and_says_what_it_is(self, name: str):
        leaf = LEAVES[name]
        assert len(LEAVES) == len(list(leaves()))
        assert len(leaf.help) > 8
        assert leaf.flag == "--" + name.replace("_", "-")
        assert leaf.env == "PILLION_" + name.upper()

    @pytest.mark.parametrize("name", [name for name, leaf in LEAVES.items() if int in _parts(leaf.type)])
    def test_that_is_a_number_is_read_from_text_and_refuses_words(self, name: str):
        leaf: Leaf = LEAVES[name]
        assert value(load({}, {leaf.env: "7"}), name) == (7, leaf.env)
        with pytest.raises(ConfigError, match=f"^{leaf.env}: 'seven' is no whole number (of at least|from) "):
            load({}, {leaf.env: "seven"})


class TestUnknownNames:
    def test_in_the_environment(self):
        with pytest.raises(ConfigError, match="unknown variable PILLION_PROT; did you mean PILLION_PORT"):
            load({}, {"PILLION_PROT": "1"})
        assert load({}, {"OTHER_PROT": "1", "PILLIONS": "2"}).config == Config()

    def test_among_the_flags(self):
        with pytest.raises(ConfigError, match="unknown flag --max-num-seq; did you mean max_num_seqs"):
            load({"max_num_seq": 1}, {})

    @pytest.mark.parametrize(
        "text, message",
        [
            ("[gateway]\nprot = 1", r"unknown key prot in \[gateway\]; did you mean port"),
            ("[scheduler]\nport = 1", r"unknown key port in \[scheduler\]"),
            ("[gatway]\nport = 1", r"unknown section \[gatway\]; did you mean gateway"),
            ("gateway = 1", "gateway must be a section"),
            ("[gateway.more]\nport = 1", r"unknown key more in \[gateway\]"),
            ("[gateway]\nport 1", "is no TOML"),
        ],
    )
    def test_in_the_file(self, tmp_path: Path, text: str, message: str):
        with pytest.raises(ConfigError, match=message) as error:
            given_in({"file": text}, tmp_path)
        assert str(tmp_path / "pillion.toml") in str(error.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path):
        with pytest.raises(ConfigError, match=r"cannot read the configuration file .*nowhere: No such file"):
            load({}, {"PILLION_CONFIG": str(tmp_path / "nowhere")})

    def test_a_file_that_is_no_text(self, tmp_path: Path):
        (tmp_path / "p").write_bytes(b"\xff\xfe")
        with pytest.raises(ConfigError, match="is no TOML"):
            load({}, {}, tmp_path / "p")


class TestInvalidValues:
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

    def test_the_tree_is_frozen(self):
        with pytest.raises(AttributeError):
            load({}, {}).config.gateway.port = 1  # type: ignore[misc]


class TestSecrets:
    def test_are_known_as_such(self):
        assert {name for name, leaf in LEAVES.items() if leaf.secret} == {
            "api_key",
            "redis",
            "executor_secret",
        }

    @pytest.mark.parametrize(
        "text", ['[gateway]\napi_key = "hush-1234"', "[gateway]\napi_key = [1, {k = 'hush-1234'}]",
                 "[stack]\nredis = ['hush-1234']"],
    )  # fmt: skip
    def test_are_in_no_message(self, text: str, tmp_path: Path):
        with pytest.raises(ConfigError) as error:
            given_in({"file": text}, tmp_path)
        assert "hush" not in str(error.value)
        assert "the value is no " in str(error.value)


class TestFolders:
    def test_are_xdg_s_and_of_the_stack(self, monkeypatch: Any, tmp_path: Path):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        config = load({"stack": "two"}, {}).config
        assert config.state_path == tmp_path / "state" / "pillion" / "two"
        assert config.cache_path == tmp_path / "cache" / "pillion"
        given = load({"state_dir": "~/s", "cache_dir": str(tmp_path)}, {}).config
        assert given.state_path == Path.home() / "s" / "default"
        assert given.cache_path == tmp_path

    def test_are_in_the_home_without_xdg(self, monkeypatch: Any):
        for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        assert load({}, {}).config.state_path == Path.home() / ".local/state/pillion/default"
        assert load({}, {}).config.cache_path == Path.home() / ".cache/pillion"


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
